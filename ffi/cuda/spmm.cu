// spmm and sddmm with dense features on the GPU; see jaxgnn/ops/reference/spmm.py for the maths.
#include "jaxgnn_ffi/pieces.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// Stores `kBytes` bytes.
template <int kBytes>
__device__ __forceinline__ void StoreWords(void* to, const uint32_t* words) {
  if constexpr (kBytes == 16) {
    *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (kBytes == 4) {
    *static_cast<uint32_t*>(to) = words[0];
  } else {
    static_assert(kBytes == 2);
    *static_cast<uint16_t*>(to) = static_cast<uint16_t>(words[0]);
  }
}

template <typename T, int kEntries>
__device__ __forceinline__ void StoreFloats(T* to, const float* values, float scale) {
  constexpr int kBytes = kEntries * sizeof(T);
  uint32_t words[(kBytes + 3) / 4];
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < kEntries; ++i) words[i] = __float_as_uint(scale * values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const uint32_t bits = FromFloat<T>(scale * values[i]).bits;
      words[i / 2] = i % 2 ? words[i / 2] | bits << 16 : bits;
    }
  }
  StoreWords<kBytes>(to, words);
}

// y_i = r_i Σ_j w_ij c_j x_j for a slice of the columns: kLanes lanes read one neighbour, kEntries
// columns each, and the groups of a warp take turns at the edges of its piece. Slices come one
// after another (blockIdx.y), so that a narrow slice of x stays in the second-level cache.
template <typename T, int kLanes, int kEntries, bool kFactors>
struct SpmmWarp {
  static constexpr int kGroups = kWarp / kLanes, kAhead = 4, kBytes = kEntries * sizeof(T);

  const PieceGraph& graph;
  const T* x;  // from the lane's columns on
  int64_t dim;

  // Adds kAhead edges from `first` on, kGroups apart; if `kCut`, those before `end`.
  template <bool kCut>
  __device__ __forceinline__ void Add(int64_t first, int64_t end, float* sum) const {
    uint32_t words[kAhead][(kBytes + 3) / 4] = {};
    float factor[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const int64_t edge = first + s * kGroups;
      factor[s] = 0.0f;
      if (kCut && edge >= end) continue;
      const int64_t node = graph.indices[edge];
      LoadWords<kBytes>(words[s], x + node * dim);
      factor[s] = kFactors ? graph.Weight(edge) * graph.ColScale(node) : 1.0f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
#pragma unroll
      for (int i = 0; i < kEntries; ++i) sum[i] += factor[s] * FloatAt<T>(words[s], i);
    }
  }
};

template <typename T, int kLanes, int kEntries, bool kFactors>
__global__ void __launch_bounds__(256)
    SpmmKernel(PieceGraph graph, const T* x, int64_t dim, T* y, float* partial) {
  using Warp = SpmmWarp<T, kLanes, kEntries, kFactors>;
  constexpr int kGroups = Warp::kGroups, kStep = Warp::kAhead * kGroups;
  const int group = threadIdx.x / kLanes;
  const int64_t column = (int64_t{blockIdx.y} * kLanes + threadIdx.x % kLanes) * kEntries;
  const bool inside = column < dim;
  // Lanes behind the last column read the first ones, and store nothing.
  const Warp warp{graph, x + (inside ? column : 0), dim};
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    const Piece piece = graph.Get(number);
    float sum[kEntries] = {};
    int64_t first = piece.begin;
    for (; first + kStep <= piece.end; first += kStep) {
      warp.template Add<false>(first + group, piece.end, sum);
    }
    if (first < piece.end) warp.template Add<true>(first + group, piece.end, sum);
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
#pragma unroll
      for (int step = kLanes; step < kWarp; step *= 2) {
        sum[i] += __shfl_xor_sync(kAllLanes, sum[i], step);
      }
    }
    if (group != 0 || !inside) continue;
    if (piece.slot < 0) {
      StoreFloats<T, kEntries>(y + piece.row * dim + column, sum, graph.RowScale(piece.row));
    } else {
#pragma unroll
      for (int i = 0; i < kEntries; ++i) partial[piece.slot * dim + column + i] = sum[i];
    }
  }
}

constexpr int kWarpsPerBlock = 8;

template <typename T, int kLanes, int kEntries>
void LaunchSpmm(cudaStream_t stream, const PieceGraph& graph, const T* x, int64_t dim, T* y,
                float* partial) {
  constexpr int64_t kColumns = kLanes * kEntries;
  const dim3 grid(StridingBlocks(graph.max_pieces, kWarpsPerBlock),
                  static_cast<unsigned>((dim + kColumns - 1) / kColumns));
  const bool factors = graph.weights != nullptr || graph.col_scale != nullptr;
  auto* kernel =
      factors ? SpmmKernel<T, kLanes, kEntries, true> : SpmmKernel<T, kLanes, kEntries, false>;
  kernel<<<grid, dim3(kWarp, kWarpsPerBlock), 0, stream>>>(graph, x, dim, y, partial);
  LaunchAddPieces(stream, graph, partial, y, dim);
}

ffi::Error Spmm(cudaStream_t stream, ffi::AnyBuffer indptr, ffi::AnyBuffer unit_rows,
                ffi::AnyBuffer unit_offsets, ffi::AnyBuffer pieces, ffi::AnyBuffer counts,
                ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                ffi::AnyBuffer col_scale, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y,
                ffi::Result<ffi::AnyBuffer> partial, int64_t edges_per_piece, int64_t lanes) {
  const Batch batch(y->dimensions(), 2);
  const int64_t dim = y->dimensions().back();
  if (y->element_count() == 0) return ffi::Error::Success();
  const PieceGraphs graphs(batch, indptr, unit_rows, unit_offsets, pieces, counts, indices, weights,
                           row_scale, col_scale, edges_per_piece);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWide = 16 / sizeof(T);
    for (int64_t member = 0; member < batch.size(); ++member) {
      const PieceGraph graph = graphs.Of(member);
      const T* features = batch.Item<const T>(x, member);
      T* out = batch.Item<T>(*y, member);
      float* sums = batch.Item<float>(*partial, member);
      if (dim % kWide != 0) {
        LaunchSpmm<T, kWarp, 1>(stream, graph, features, dim, out, sums);
      } else if (lanes == 8) {
        LaunchSpmm<T, 8, kWide>(stream, graph, features, dim, out, sums);
      } else if (lanes == 16) {
        LaunchSpmm<T, 16, kWide>(stream, graph, features, dim, out, sums);
      } else {
        LaunchSpmm<T, kWarp, kWide>(stream, graph, features, dim, out, sums);
      }
    }
    return LastError();
  });
}

// e_ij = r_i c_j ⟨a_i, b_j⟩: a warp a piece, whose row a_i it holds in shared memory; kLanes lanes
// a neighbour, kEntries columns a step.
template <typename T, int kEntries>
__global__ void __launch_bounds__(256)
    SddmmKernel(PieceGraph graph, const T* a, const T* b, int64_t dim, float* edges) {
  extern __shared__ float shared[];
  constexpr int kLanes = 8, kNeighbours = kWarp / kLanes, kBytes = kEntries * sizeof(T);
  float* row = shared + threadIdx.y * dim;
  const int lane = threadIdx.x;
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    const Piece piece = graph.Get(number);
    const float scale = graph.RowScale(piece.row);
    __syncwarp();
    for (int64_t i = lane; i < dim; i += kWarp) row[i] = scale * ToFloat(a[piece.row * dim + i]);
    __syncwarp();
    for (int64_t first = piece.begin; first < piece.end; first += kNeighbours) {
      const int64_t edge = first + lane / kLanes;
      const int64_t node = edge < piece.end ? graph.indices[edge] : -1;
      float sum = 0.0f;
      if (node >= 0) {
        for (int64_t at = lane % kLanes * kEntries; at < dim; at += kLanes * kEntries) {
          uint32_t words[(kBytes + 3) / 4];
          LoadWords<kBytes>(words, b + node * dim + at);
#pragma unroll
          for (int i = 0; i < kEntries; ++i) sum += row[at + i] * FloatAt<T>(words, i);
        }
      }
      sum = SumLanes(sum, kLanes);
      if (node >= 0 && lane % kLanes == 0) edges[edge] = graph.ColScale(node) * sum;
    }
  }
}

ffi::Error Sddmm(cudaStream_t stream, ffi::AnyBuffer indptr, ffi::AnyBuffer unit_rows,
                 ffi::AnyBuffer unit_offsets, ffi::AnyBuffer pieces, ffi::AnyBuffer counts,
                 ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                 ffi::AnyBuffer col_scale, ffi::AnyBuffer a, ffi::AnyBuffer b,
                 ffi::Result<ffi::AnyBuffer> edges, int64_t edges_per_piece) {
  const Batch batch(edges->dimensions(), 1);
  const int64_t dim = a.dimensions().back();
  if (edges->element_count() == 0) return ffi::Error::Success();
  const PieceGraphs graphs(batch, indptr, unit_rows, unit_offsets, pieces, counts, indices, weights,
                           row_scale, col_scale, edges_per_piece);
  return SwitchFloat(a.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWide = 16 / sizeof(T);
    for (int64_t member = 0; member < batch.size(); ++member) {
      const PieceGraph graph = graphs.Of(member);
      float* out = batch.Item<float>(*edges, member);
      LaunchZeroPadding(stream, graph, out);
      auto* kernel = dim % kWide == 0 ? SddmmKernel<T, kWide> : SddmmKernel<T, 1>;
      LaunchPieces(kernel, stream, graph, dim, 1, batch.Item<const T>(a, member),
                   batch.Item<const T>(b, member), dim, out);
    }
    return LastError();
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_spmm, jaxgnn::Spmm,
                              JAXGNN_BIND_PIECES()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Ret<xla::ffi::AnyBuffer>()  // partial sums
                                  .Attr<int64_t>("edges_per_piece")
                                  .Attr<int64_t>("lanes"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_sddmm, jaxgnn::Sddmm,
                              JAXGNN_BIND_PIECES()
                                  .Arg<xla::ffi::AnyBuffer>()  // a
                                  .Arg<xla::ffi::AnyBuffer>()  // b
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("edges_per_piece"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

#pragma GCC visibility pop
