// Gradient of maxk_spmm to the weights of edges. `T` is the type of features.
#include "zero_padding.h"

// dw_ij = r_i c_j Σ_t dy_i[column_jt] value_jt.
extern "C" __global__ void __launch_bounds__(256) grad_weights(PARAMETERS) {
  const PieceGraph graph = GRAPH_OF_PARAMETERS;
  float* row = shared + threadIdx.y * dim;
  constexpr int kNeighbours = kWarp / kLanes;
  const int lane = threadIdx.x;
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    const Piece piece = graph.Get(number);
    const float scale = graph.RowScale(piece.row);
    __syncwarp();
    for (int64_t i = lane; i < dim; i += kWarp) row[i] = scale * ToFloat(dy[piece.row * dim + i]);
    __syncwarp();
    for (int64_t first = piece.begin; first < piece.end; first += kNeighbours) {
      const int64_t edge = first + lane / kLanes;
      float sum = 0.0f;
      int32_t node = 0;
      if (edge < piece.end) {
        node = graph.indices[edge];
        for (int64_t t = lane % kLanes; t < k; t += kLanes) {
          sum += row[columns[node * k + t]] * ToFloat(values[node * k + t]);
        }
      }
      sum = SumLanes(sum, kLanes);
      if (edge < piece.end && lane % kLanes == 0) of_edges[edge] = graph.ColScale(node) * sum;
    }
  }
}
