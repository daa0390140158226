// A graph as CUDA kernels walk it: pieces of rows, longest first (jaxgnn/graph/plan/schedule.py).
#pragma once

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/warp.h"

namespace jaxgnn {

// At most edges_per_piece consecutive edges of one row.
struct Piece {
  int32_t row;
  int64_t begin, end;
  int64_t slot;  // where its partial sums go, or -1 if it is all of its row
};

// The pieces of one graph and the coefficients of its edges, each one where its array is null.
struct PieceGraph {
  const void *indptr, *unit_offsets;
  bool wide;  // offsets are int64
  const int32_t *unit_rows, *pieces, *counts, *indices;
  const float *weights, *row_scale, *col_scale;
  int64_t edges_per_piece, num_rows, num_edges, max_pieces;

  // Partial sums of rows of several pieces. Full pieces lie apart by their length, so the quotient
  // of their first edge names them; what is left of such rows is named likewise.
  JAXGNN_INLINE int64_t SlotsOfAKind() const { return num_edges / edges_per_piece + 1; }
  JAXGNN_INLINE int64_t Slot(int64_t begin, int64_t end) const {
    const bool full = end - begin == edges_per_piece;
    return begin / edges_per_piece + (full ? 0 : SlotsOfAKind());
  }

#ifdef __CUDACC__
  __device__ int64_t Offset(const void* offsets, int64_t i) const {
    return wide ? static_cast<const int64_t*>(offsets)[i] : static_cast<const int32_t*>(offsets)[i];
  }
  __device__ int64_t NumLong() const { return counts[0]; }
  __device__ int64_t NumPieces() const { return counts[1]; }

  __device__ Piece Get(int64_t number) const {
    const int32_t unit = pieces[number], row = unit_rows[unit];
    const int64_t begin = Offset(unit_offsets, unit);
    const int64_t row_begin = Offset(indptr, row), row_end = Offset(indptr, row + 1);
    const int64_t end = row_end - begin < edges_per_piece ? row_end : begin + edges_per_piece;
    const bool whole = row_end - row_begin <= edges_per_piece;
    return {row, begin, end, whole ? -1 : Slot(begin, end)};
  }

  __device__ float RowScale(int64_t row) const { return row_scale ? row_scale[row] : 1.0f; }
  __device__ float ColScale(int64_t column) const { return col_scale ? col_scale[column] : 1.0f; }
  __device__ float Weight(int64_t edge) const { return weights ? weights[edge] : 1.0f; }
#endif
};

// The operands that come first in every sparse kernel, by batch member.
class PieceGraphs {
 public:
  using Buffer = xla::ffi::AnyBuffer;

  PieceGraphs(const Batch& batch, const Buffer& indptr, const Buffer& unit_rows,
              const Buffer& unit_offsets, const Buffer& pieces, const Buffer& counts,
              const Buffer& indices, const Buffer& weights, const Buffer& row_scale,
              const Buffer& col_scale, int64_t edges_per_piece)
      : batch_(batch),
        indptr_(indptr),
        unit_rows_(unit_rows),
        unit_offsets_(unit_offsets),
        pieces_(pieces),
        counts_(counts),
        indices_(indices),
        weights_(weights),
        row_scale_(row_scale),
        col_scale_(col_scale),
        edges_per_piece_(edges_per_piece) {}

  PieceGraph Of(int64_t member) const {
    return {batch_.Bytes(indptr_, member),
            batch_.Bytes(unit_offsets_, member),
            indptr_.element_type() == xla::ffi::S64,
            batch_.Item<const int32_t>(unit_rows_, member),
            batch_.Item<const int32_t>(pieces_, member),
            batch_.Item<const int32_t>(counts_, member),
            batch_.Item<const int32_t>(indices_, member),
            batch_.Item<const float>(weights_, member),
            batch_.Item<const float>(row_scale_, member),
            batch_.Item<const float>(col_scale_, member),
            edges_per_piece_,
            indptr_.dimensions().back() - 1,
            indices_.dimensions().back(),
            pieces_.dimensions().back()};
  }

 private:
  const Batch& batch_;
  const Buffer &indptr_, &unit_rows_, &unit_offsets_, &pieces_, &counts_, &indices_, &weights_,
      &row_scale_, &col_scale_;
  int64_t edges_per_piece_;
};

#ifdef __CUDACC__

// Rows of several pieces: adds their partial sums in order, scales and stores. A warp looks through
// its share of the rows for them and takes 32 columns (blockIdx.y) of each.
template <typename T>
__global__ void AddPieces(PieceGraph graph, const float* partial, T* y, int64_t dim) {
  const int lane = threadIdx.x;
  const int64_t column = int64_t{blockIdx.y} * kWarp + lane;
  const int64_t warps = int64_t{gridDim.x} * blockDim.y;
  const int64_t warp = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  for (int64_t first = warp * kWarp; first < graph.num_rows; first += warps * kWarp) {
    const int64_t mine = first + lane;
    const bool is_long = mine < graph.num_rows &&
                         graph.Offset(graph.indptr, mine + 1) - graph.Offset(graph.indptr, mine) >
                             graph.edges_per_piece;
    for (unsigned left = __ballot_sync(kAllLanes, is_long); left != 0; left &= left - 1) {
      const int64_t row = first + __ffs(left) - 1;
      const int64_t row_begin = graph.Offset(graph.indptr, row);
      const int64_t row_end = graph.Offset(graph.indptr, row + 1);
      if (column >= dim) continue;
      float sum = 0.0f;
#pragma unroll 4
      for (int64_t begin = row_begin; begin < row_end; begin += graph.edges_per_piece) {
        const int64_t full = begin + graph.edges_per_piece;
        sum += partial[graph.Slot(begin, full < row_end ? full : row_end) * dim + column];
      }
      y[row * dim + column] = FromFloat<T>(graph.RowScale(row) * sum);
    }
  }
}

template <typename T>
void LaunchAddPieces(cudaStream_t stream, const PieceGraph& graph, const float* partial, T* y,
                     int64_t dim) {
  if (graph.num_edges <= graph.edges_per_piece) return;
  constexpr int kWarps = 8;
  const dim3 grid(StridingBlocks((graph.num_rows + kWarp - 1) / kWarp, kWarps),
                  static_cast<unsigned>((dim + kWarp - 1) / kWarp));
  AddPieces<T><<<grid, dim3(kWarp, kWarps), 0, stream>>>(graph, partial, y, dim);
}

// Sets the entries of padding slots to zero.
static __global__ void ZeroPadding(PieceGraph graph, float* edges) {
  const int64_t end = graph.Offset(graph.indptr, graph.num_rows);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t edge = end + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; edge < graph.num_edges;
       edge += stride) {
    edges[edge] = 0.0f;
  }
}

inline void LaunchZeroPadding(cudaStream_t stream, const PieceGraph& graph, float* edges) {
  constexpr int kThreads = 256;
  ZeroPadding<<<StridingBlocks(graph.num_edges, kThreads), kThreads, 0, stream>>>(graph, edges);
}

// A warp a piece with a dense row of floats in shared memory, `passes` times over all pieces.
template <typename Kernel, typename... Args>
void LaunchPieces(Kernel* kernel, cudaStream_t stream, const PieceGraph& graph, int64_t dim,
                  int64_t passes, Args... args) {
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(float));
  const int64_t warps = std::clamp<int64_t>(AllowSharedBytes(kernel) / row_bytes, 1, 8);
  const dim3 grid(StridingBlocks(graph.max_pieces, warps), static_cast<unsigned>(passes));
  kernel<<<grid, dim3(kWarp, warps), warps * row_bytes, stream>>>(graph, args...);
}

#endif  // __CUDACC__

// The stream and the operands of PieceGraphs.
#define JAXGNN_BIND_PIECES()                               \
  xla::ffi::Ffi::Bind()                                    \
      .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()       \
      .Arg<xla::ffi::AnyBuffer>() /* indptr */             \
      .Arg<xla::ffi::AnyBuffer>() /* unit rows */          \
      .Arg<xla::ffi::AnyBuffer>() /* unit offsets */       \
      .Arg<xla::ffi::AnyBuffer>() /* pieces */             \
      .Arg<xla::ffi::AnyBuffer>() /* their counts */       \
      .Arg<xla::ffi::AnyBuffer>() /* indices */            \
      .Arg<xla::ffi::AnyBuffer>() /* weights or empty */   \
      .Arg<xla::ffi::AnyBuffer>() /* row scale or empty */ \
      .Arg<xla::ffi::AnyBuffer>() /* column scale or empty */

}  // namespace jaxgnn
