// Sparse times k-sparse; see jaxgnn/ops/_maxk_spmm/reference/maxk_spmm.py for the maths. `T` is the
// type of features, `Column` that of their columns, `Id` that of columns in records.
#include "add_pieces.h"
#include "forward_warp.h"
#include "records.h"

extern "C" __global__ void __launch_bounds__(128) maxk_spmm(PARAMETERS) {
  PieceGraph graph = GRAPH_OF_PARAMETERS;
  if (kScaledRecords) graph.col_scale = nullptr;
  constexpr int kGroups = ForwardWarp::kGroups;
  const ForwardWarp warp{graph,
                         record_values,
                         record_ids,
                         static_cast<int>(blocks),
                         static_cast<int>(dim),
                         shared + threadIdx.y * (dim + kLanes) * kGroups,
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
      warp.StoreSum(y + piece.row * dim, scale);
    } else if (is_long) {
      warp.StoreSum(partial + piece.slot * dim, 1.0f);
    } else {
      warp.StoreRows(exists && piece.slot < 0 ? y + piece.row * dim : nullptr, scale);
      // The short end of a row of several pieces.
      if (piece.slot >= 0) warp.StorePartial(partial + piece.slot * dim);
      __syncwarp();
    }
  }
}
