// Rows of several pieces: adds their partial sums in order, scales and stores. A warp looks through
// its share of the rows for them and takes 32 columns (blockIdx.y) of each.
#include "pieces.h"

extern "C" __global__ void add_pieces(PARAMETERS) {
  const PieceGraph graph = GRAPH_OF_PARAMETERS;
  const int lane = threadIdx.x;
  const int64_t column = int64_t{blockIdx.y} * kWarp + lane;
  const int64_t warps = int64_t{gridDim.x} * blockDim.y;
  const int64_t warp = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  for (int64_t first = warp * kWarp; first < num_rows; first += warps * kWarp) {
    const int64_t mine = first + lane;
    const bool is_long = mine < num_rows && indptr[mine + 1] - indptr[mine] > edges_per_piece;
    for (unsigned left = __ballot_sync(kAllLanes, is_long); left != 0; left &= left - 1) {
      const int64_t row = first + __ffs(left) - 1;
      const int64_t row_begin = indptr[row], row_end = indptr[row + 1];
      if (column >= dim) continue;
      float sum = 0.0f;
#pragma unroll 4
      for (int64_t begin = row_begin; begin < row_end; begin += edges_per_piece) {
        const int64_t full = begin + edges_per_piece;
        sum += partial[graph.Slot(begin, full < row_end ? full : row_end) * dim + column];
      }
      y[row * dim + column] = FromFloat<T>(graph.RowScale(row) * sum);
    }
  }
}
