// The k-sparse kernels on the GPU; see jaxgnn/ops/reference/maxk_spmm.py for the maths.
#include "jaxgnn_ffi/edge_blocks.h"
#include "jaxgnn_ffi/forward_warp.h"
#include "jaxgnn_ffi/four_entries.h"
#include "jaxgnn_ffi/grad_values_warp.h"
#include "jaxgnn_ffi/pieces.h"
#include "jaxgnn_ffi/records.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

template <typename T, typename Id, typename S, bool kFactors>
__global__ void __launch_bounds__(128)
    ForwardKernel(PieceGraph graph, const T* values, const Id* ids, int blocks, int dim, T* y,
                  float* partial) {
  extern __shared__ float shared[];
  using Warp = ForwardWarp<T, Id, S, kFactors>;
  constexpr int kGroups = Warp::kGroups;
  const Warp warp{graph,
                  values,
                  ids,
                  blocks,
                  dim,
                  shared + threadIdx.y * (dim + S::lanes) * kGroups,
                  static_cast<int>(threadIdx.x)};
  const int64_t num_long = graph.NumLong(), num_pieces = graph.NumPieces();
  const int64_t tasks = num_long + (num_pieces - num_long + kGroups - 1) / kGroups;
  for (int64_t task = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; task < tasks;
       task += int64_t{gridDim.x} * blockDim.y) {
    const bool is_long = task < num_long;
    const int64_t number = is_long ? task : num_long + (task - num_long) * kGroups + warp.Group();
    const bool exists = number < num_pieces;
    const Piece piece = exists ? graph.Get(number) : Piece{0, 0, 0, -1};
    const int edges = static_cast<int>(piece.end - piece.begin);
    const int skipped = is_long ? warp.Group() : 0, stride = is_long ? kGroups : 1;
    const int count = (edges - skipped + stride - 1) / stride;
    warp.Clear();
    // The first group has the most edges: of a long piece, and of short ones sorted by length.
    warp.Add(piece.begin + skipped, stride, count, __shfl_sync(kAllLanes, count, 0));
    const float scale = graph.RowScale(piece.row);
    if (is_long && piece.slot < 0) {
      warp.StoreSum(y + piece.row * int64_t{dim}, scale);
    } else if (is_long) {
      warp.StoreSum(partial + piece.slot * dim, 1.0f);
    } else {
      warp.StoreRows(exists && piece.slot < 0 ? y + piece.row * int64_t{dim} : nullptr, scale);
      // The short end of a row of several pieces.
      if (piece.slot >= 0) warp.StorePartial(partial + piece.slot * dim);
      __syncwarp();
    }
  }
}

// Calls `body` with tags for the kernel that takes records of this shape, if there is one.
template <typename T, typename Body>
bool SwitchShape(const RecordShape& shape, const Body& body) {
  auto matches = [&](int lanes, int chunks, int entries) {
    return shape.lanes == lanes && shape.chunks == chunks && shape.entries == entries;
  };
  constexpr int kWide = 16 / sizeof(T);
  if (matches(4, 1, 4)) return body(Shape<4, 1, 4>{}), true;
  if (matches(4, 1, kWide)) return body(Shape<4, 1, kWide>{}), true;
  if (matches(4, 2, kWide)) return body(Shape<4, 2, kWide>{}), true;
  if (matches(4, 16 / kWide, kWide)) return body(Shape<4, 16 / kWide, kWide>{}), true;
  if (matches(32, 1, 1)) return body(Shape<32, 1, 1>{}), true;
  return false;
}

// Calls `body(values type, id type)`: 8-bit ids where they can name the column behind the last.
template <typename Body>
ffi::Error SwitchRecord(ffi::DataType value, ffi::DataType id, const Body& body) {
  return SwitchFloat(value, [&](auto value_type) {
    return id == ffi::U8 ? body(value_type, Type<uint8_t>{}) : body(value_type, Type<uint16_t>{});
  });
}

template <typename T, typename Id, typename S>
void LaunchForward(S, cudaStream_t stream, const PieceGraph& graph, const RecordShape& shape,
                   const T* values, const Id* ids, T* y, float* partial) {
  const bool factors = graph.weights != nullptr || graph.col_scale != nullptr;
  auto* kernel = factors ? ForwardKernel<T, Id, S, true> : ForwardKernel<T, Id, S, false>;
  // Half of a multiprocessor's memory stays first-level cache: hub records are read from there.
  constexpr int kSharedPercent = 50;
  const int64_t warp_bytes = int64_t{shape.dim + S::lanes} * (kWarp / S::lanes) * sizeof(float);
  const int64_t warps = std::clamp<int64_t>(AllowSharedBytes(kernel) / warp_bytes, 1, 4);
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSharedPercent);
  kernel<<<StridingBlocks(graph.max_pieces, warps), dim3(kWarp, warps), warps * warp_bytes,
           stream>>>(graph, values, ids, shape.blocks, shape.dim, y, partial);
}

ffi::Error Forward(cudaStream_t stream, ffi::AnyBuffer indptr, ffi::AnyBuffer unit_rows,
                   ffi::AnyBuffer unit_offsets, ffi::AnyBuffer pieces, ffi::AnyBuffer counts,
                   ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                   ffi::AnyBuffer col_scale, ffi::AnyBuffer values, ffi::AnyBuffer columns,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> record_values,
                   ffi::Result<ffi::AnyBuffer> record_ids, ffi::Result<ffi::AnyBuffer> partial,
                   int64_t edges_per_piece, int64_t lanes, int64_t chunks, int64_t entries) {
  const Batch batch(y->dimensions(), 2);
  const int64_t num_nodes = values.dimensions()[batch.rank()], dim = y->dimensions().back();
  if (y->element_count() == 0) return ffi::Error::Success();
  const PieceGraphs graphs(batch, indptr, unit_rows, unit_offsets, pieces, counts, indices, weights,
                           row_scale, col_scale, edges_per_piece);
  const int64_t blocks = record_values->dimensions().back() / (lanes * chunks * entries);
  const RecordShape shape{static_cast<int>(lanes),
                          static_cast<int>(chunks),
                          static_cast<int>(entries),
                          static_cast<int>(blocks),
                          static_cast<int>(values.dimensions().back()),
                          static_cast<int>(dim)};
  return SwitchRecord(
      values.element_type(), record_ids->element_type(), [&](auto value, auto id_type) {
        using T = typename decltype(value)::type;
        using Id = typename decltype(id_type)::type;
        bool known = true;
        for (int64_t member = 0; member < batch.size() && known; ++member) {
          PieceGraph graph = graphs.Of(member);
          const float* scale = std::is_same_v<T, float> ? graph.col_scale : nullptr;
          if (scale != nullptr) graph.col_scale = nullptr;
          T* records = batch.Item<T>(*record_values, member);
          Id* ids = batch.Item<Id>(*record_ids, member);
          T* out = batch.Item<T>(*y, member);
          float* sums = batch.Item<float>(*partial, member);
          known = SwitchShape<T>(shape, [&](auto tags) {
            LaunchRecords<decltype(tags)>(stream, shape, batch.Item<const T>(values, member),
                                          batch.Bytes(columns, member), columns.element_type(),
                                          scale, num_nodes, records, ids);
            LaunchForward(tags, stream, graph, shape, records, ids, out, sums);
          });
          LaunchAddPieces(stream, graph, sums, out, dim);
        }
        if (!known) return ffi::Error::InvalidArgument("jaxgnn: maxk_spmm: no such record shape");
        return LastError();
      });
}

template <typename T, typename Column, bool kAligned>
__global__ void __launch_bounds__(256)
    GradValuesKernel(PieceGraph graph, const Column* columns, const T* dy, int64_t nodes, int k,
                     int dim, int lanes, float* sums) {
  extern __shared__ float shared[];
  __shared__ EdgeList lists[8];
  GradValuesWarp<T, Column, kAligned> warp{graph,
                                           columns,
                                           dy,
                                           k,
                                           dim,
                                           lanes,
                                           sums,
                                           shared + threadIdx.y * dim,
                                           lists + threadIdx.y,
                                           static_cast<int>(threadIdx.x)};
  const int32_t first_node = static_cast<int32_t>(nodes * blockIdx.y / gridDim.y);
  const int32_t last_node = static_cast<int32_t>(nodes * (blockIdx.y + 1) / gridDim.y);
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    warp.Run(graph.Get(number), first_node, last_node);
  }
}

// dvalues_jt = c_j sums_jt, in place if the types are equal.
template <typename T>
__global__ void ScaleRows(const float* scale, const float* sums, int64_t nodes, int64_t k,
                          T* dvalues) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < nodes * k; i += stride) {
    dvalues[i] = FromFloat<T>(scale ? scale[i / k] * sums[i] : sums[i]);
  }
}

// Sums that begin at zero, are added to by `launch(sums)`, then scaled and rounded. They lie where
// the result will, or if that is narrower, in `workspace`.
template <typename T, typename Launch>
void WithSums(cudaStream_t stream, int64_t nodes, int64_t k, const float* scale, float* workspace,
              T* dvalues, const Launch& launch) {
  float* sums = workspace;
  if constexpr (std::is_same_v<T, float>) sums = dvalues;
  cudaMemsetAsync(sums, 0, nodes * k * sizeof(float), stream);
  launch(sums);
  if (std::is_same_v<T, float> && scale == nullptr) return;
  ScaleRows<T><<<StridingBlocks(nodes * k, 256), 256, 0, stream>>>(scale, sums, nodes, k, dvalues);
}

ffi::Error GradValues(cudaStream_t stream, ffi::AnyBuffer indptr, ffi::AnyBuffer unit_rows,
                      ffi::AnyBuffer unit_offsets, ffi::AnyBuffer pieces, ffi::AnyBuffer counts,
                      ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                      ffi::AnyBuffer col_scale, ffi::AnyBuffer columns, ffi::AnyBuffer dy,
                      ffi::Result<ffi::AnyBuffer> dvalues, ffi::Result<ffi::AnyBuffer> workspace,
                      int64_t edges_per_piece, int64_t tiles) {
  const Batch batch(dvalues->dimensions(), 2);
  const int64_t nodes = dvalues->dimensions()[batch.rank()], k = dvalues->dimensions().back();
  const int64_t dim = dy.dimensions().back();
  if (dvalues->element_count() == 0) return ffi::Error::Success();
  const PieceGraphs graphs(batch, indptr, unit_rows, unit_offsets, pieces, counts, indices, weights,
                           row_scale, col_scale, edges_per_piece);
  return SwitchFloat(dy.element_type(), [&](auto value) {
    using T = typename decltype(value)::type;
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      for (int64_t member = 0; member < batch.size(); ++member) {
        const PieceGraph graph = graphs.Of(member);
        const auto launch = [&](float* sums) {
          auto* kernel =
              k % 4 == 0 ? GradValuesKernel<T, Column, true> : GradValuesKernel<T, Column, false>;
          LaunchPieces(kernel, stream, graph, dim, tiles, batch.Item<const Column>(columns, member),
                       batch.Item<const T>(dy, member), nodes, static_cast<int>(k),
                       static_cast<int>(dim), LanesFor(k), sums);
        };
        WithSums(stream, nodes, k, graph.col_scale, batch.Item<float>(*workspace, member),
                 batch.Item<T>(*dvalues, member), launch);
      }
      return LastError();
    });
  });
}

// The same by blocks of rows. A thread block a task, `most_held` rows of dy at a time in shared
// memory.
template <typename T, typename Column, int kLanes, bool kAligned, bool kWeights, bool kManyRows>
__global__ void __launch_bounds__(1024)
    GradValuesBlocksKernel(EdgeBlocks graph, const Column* columns, const T* dy, int k, int dim,
                           int most_held, bool prefetches, float* sums) {
  extern __shared__ uint4 shared_words[];
  const BlockTask task = graph.Task(blockIdx.x);
  if (task.begin >= task.end) return;
  const HeldRows<T> held(shared_words, most_held, dim, graph.row_scale != nullptr);
  for (int first = 0; first < task.rows; first += most_held) {
    const int64_t sender = task.first_sender;
    const int count = min(most_held, task.rows - first);
    __syncthreads();
    held.Load(graph, dy, task.first_row + first, count);
    __syncthreads();
    const BlockRuns<T, Column, kLanes, kAligned, kWeights, kManyRows> runs{
        graph, task, held, columns + sender * k, sums + sender * k, k, first, count, prefetches};
    for (int at = threadIdx.x % kLanes * 4; at < k; at += 4 * kLanes) runs.Run(at);
  }
}

// Above so many bytes of a tile's sums additions would mostly find theirs in no cache, which makes
// them more than twice as slow: in blocks of few rows they are fetched before.
constexpr int64_t kCachedBytes = 96 << 20;
// Blocks of so few rows leave room for others on a multiprocessor.
constexpr int kFewRows = 64;

template <typename T, typename Column, int kLanes, bool kAligned, bool kManyRows>
void LaunchBlocks(cudaStream_t stream, const EdgeBlocks& graph, int64_t tasks,
                  const Column* columns, const T* dy, int64_t k, int64_t dim, float* sums) {
  auto* kernel = graph.weights
                     ? GradValuesBlocksKernel<T, Column, kLanes, kAligned, true, kManyRows>
                     : GradValuesBlocksKernel<T, Column, kLanes, kAligned, false, kManyRows>;
  const int64_t row_bytes = HeldRows<T>::Bytes(1, dim);
  const int64_t fitting = (AllowSharedBytes(kernel) - 16) / row_bytes;
  const int64_t held = std::clamp<int64_t>(fitting, 1, graph.rows_per_block);
  const int64_t sum_bytes = graph.senders_per_tile * k * sizeof(float);
  kernel<<<static_cast<unsigned>(tasks), kManyRows ? 1024 : 256, HeldRows<T>::Bytes(held, dim),
           stream>>>(graph, columns, dy, static_cast<int>(k), static_cast<int>(dim),
                     static_cast<int>(held), sum_bytes > kCachedBytes, sums);
}

// Calls `launch(lanes that share a neighbour, whether k is in whole fours)`.
template <typename Launch>
void SwitchLanes(int64_t k, const Launch& launch) {
  constexpr std::true_type kAligned{};
  if (k % 4 != 0) return launch(std::integral_constant<int, 8>{}, std::false_type{});
  if (k <= 16) return launch(std::integral_constant<int, 4>{}, kAligned);
  if (k <= 32) return launch(std::integral_constant<int, 8>{}, kAligned);
  if (k <= 64) return launch(std::integral_constant<int, 16>{}, kAligned);
  return launch(std::integral_constant<int, 32>{}, kAligned);
}

ffi::Error GradValuesBlocks(cudaStream_t stream, ffi::AnyBuffer row_order, ffi::AnyBuffer entries,
                            ffi::AnyBuffer edges, ffi::AnyBuffer blocks, ffi::AnyBuffer begins,
                            ffi::AnyBuffer ends, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                            ffi::AnyBuffer col_scale, ffi::AnyBuffer columns, ffi::AnyBuffer dy,
                            ffi::Result<ffi::AnyBuffer> dvalues,
                            ffi::Result<ffi::AnyBuffer> workspace, int64_t rows_per_block,
                            int64_t senders_per_span, int64_t senders_per_tile) {
  const Batch batch(dvalues->dimensions(), 2);
  const int64_t nodes = dvalues->dimensions()[batch.rank()], k = dvalues->dimensions().back();
  const int64_t rows = dy.dimensions()[batch.rank()], dim = dy.dimensions().back();
  const int64_t tasks = blocks.dimensions().back();
  if (dvalues->element_count() == 0) return ffi::Error::Success();
  return SwitchFloat(dy.element_type(), [&](auto value) {
    using T = typename decltype(value)::type;
    return SwitchNarrowColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      for (int64_t member = 0; member < batch.size(); ++member) {
        const EdgeBlocks graph{batch.Item<const int32_t>(row_order, member),
                               batch.Item<const uint32_t>(entries, member),
                               batch.Bytes(edges, member),
                               batch.Item<const int32_t>(blocks, member),
                               batch.Bytes(begins, member),
                               batch.Bytes(ends, member),
                               begins.element_type() == ffi::S64,
                               batch.Item<const float>(weights, member),
                               batch.Item<const float>(row_scale, member),
                               static_cast<int>(rows_per_block),
                               static_cast<int>(senders_per_span),
                               static_cast<int>(senders_per_tile),
                               static_cast<int>(rows)};
        const auto launch = [&](float* sums) {
          if (graph.entries == nullptr || rows == 0) return;
          SwitchLanes(k, [&](auto lanes, auto aligned) {
            auto* launch_blocks = graph.rows_per_block > kFewRows
                                      ? LaunchBlocks<T, Column, lanes(), aligned(), true>
                                      : LaunchBlocks<T, Column, lanes(), aligned(), false>;
            launch_blocks(stream, graph, tasks, batch.Item<const Column>(columns, member),
                          batch.Item<const T>(dy, member), k, dim, sums);
          });
        };
        WithSums(stream, nodes, k, batch.Item<const float>(col_scale, member),
                 batch.Item<float>(*workspace, member), batch.Item<T>(*dvalues, member), launch);
      }
      return LastError();
    });
  });
}

// dw_ij = r_i c_j Σ_t dy_i[column_jt] value_jt.
template <typename T, typename Column>
__global__ void __launch_bounds__(256)
    GradWeightsKernel(PieceGraph graph, const T* values, const Column* columns, const T* dy,
                      int64_t k, int64_t dim, int lanes, float* dweights) {
  extern __shared__ float shared[];
  float* row = shared + threadIdx.y * dim;
  const int lane = threadIdx.x, neighbours = kWarp / lanes;
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    const Piece piece = graph.Get(number);
    const float scale = graph.RowScale(piece.row);
    __syncwarp();
    for (int64_t i = lane; i < dim; i += kWarp) row[i] = scale * ToFloat(dy[piece.row * dim + i]);
    __syncwarp();
    for (int64_t first = piece.begin; first < piece.end; first += neighbours) {
      const int64_t edge = first + lane / lanes;
      float sum = 0.0f;
      int32_t node = 0;
      if (edge < piece.end) {
        node = graph.indices[edge];
        for (int64_t t = lane % lanes; t < k; t += lanes) {
          sum += row[columns[node * k + t]] * ToFloat(values[node * k + t]);
        }
      }
      sum = SumLanes(sum, lanes);
      if (edge < piece.end && lane % lanes == 0) dweights[edge] = graph.ColScale(node) * sum;
    }
  }
}

ffi::Error GradWeights(cudaStream_t stream, ffi::AnyBuffer indptr, ffi::AnyBuffer unit_rows,
                       ffi::AnyBuffer unit_offsets, ffi::AnyBuffer pieces, ffi::AnyBuffer counts,
                       ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                       ffi::AnyBuffer col_scale, ffi::AnyBuffer values, ffi::AnyBuffer columns,
                       ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dweights,
                       int64_t edges_per_piece) {
  const Batch batch(dweights->dimensions(), 1);
  const int64_t dim = dy.dimensions().back(), k = values.dimensions().back();
  if (dweights->element_count() == 0) return ffi::Error::Success();
  const PieceGraphs graphs(batch, indptr, unit_rows, unit_offsets, pieces, counts, indices, weights,
                           row_scale, col_scale, edges_per_piece);
  return SwitchFloat(dy.element_type(), [&](auto value) {
    using T = typename decltype(value)::type;
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      for (int64_t member = 0; member < batch.size(); ++member) {
        const PieceGraph graph = graphs.Of(member);
        float* out = batch.Item<float>(*dweights, member);
        LaunchZeroPadding(stream, graph, out);
        LaunchPieces(GradWeightsKernel<T, Column>, stream, graph, dim, 1,
                     batch.Item<const T>(values, member), batch.Item<const Column>(columns, member),
                     batch.Item<const T>(dy, member), k, dim, LanesFor(k), out);
      }
      return LastError();
    });
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm, jaxgnn::Forward,
                              JAXGNN_BIND_PIECES()
                                  .Arg<xla::ffi::AnyBuffer>()  // kept values
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Ret<xla::ffi::AnyBuffer>()  // values of the records
                                  .Ret<xla::ffi::AnyBuffer>()  // ids of the records
                                  .Ret<xla::ffi::AnyBuffer>()  // partial sums
                                  .Attr<int64_t>("edges_per_piece")
                                  .Attr<int64_t>("lanes")
                                  .Attr<int64_t>("chunks")
                                  .Attr<int64_t>("entries"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm_grad_values, jaxgnn::GradValues,
                              JAXGNN_BIND_PIECES()
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>()  // gradient
                                  .Ret<xla::ffi::AnyBuffer>()  // its sums, if not float32
                                  .Attr<int64_t>("edges_per_piece")
                                  .Attr<int64_t>("tiles"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm_grad_values_blocks, jaxgnn::GradValuesBlocks,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::AnyBuffer>()  // rows in order of blocks or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // entries
                                  .Arg<xla::ffi::AnyBuffer>()  // edges
                                  .Arg<xla::ffi::AnyBuffer>()  // blocks of the tasks
                                  .Arg<xla::ffi::AnyBuffer>()  // begins of the tasks
                                  .Arg<xla::ffi::AnyBuffer>()  // ends of the tasks
                                  .Arg<xla::ffi::AnyBuffer>()  // weights or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // row scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // column scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>()  // gradient
                                  .Ret<xla::ffi::AnyBuffer>()  // its sums, if not float32
                                  .Attr<int64_t>("rows_per_block")
                                  .Attr<int64_t>("senders_per_span")
                                  .Attr<int64_t>("senders_per_tile"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm_grad_weights, jaxgnn::GradWeights,
                              JAXGNN_BIND_PIECES()
                                  .Arg<xla::ffi::AnyBuffer>()  // kept values
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("edges_per_piece"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

#pragma GCC visibility pop
