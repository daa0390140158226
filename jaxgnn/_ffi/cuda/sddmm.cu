// sddmm with dense features; see jaxgnn/ops/_graph/reference/spmm.py for the maths. `T` is the type
// of features.
#include "zero_padding.h"

// e_ij = r_i c_j ⟨a_i, b_j⟩: a warp a piece, whose row a_i it holds in shared memory; kLanes lanes
// a neighbour, kEntries columns a step.
extern "C" __global__ void __launch_bounds__(256) sddmm(PARAMETERS) {
  const PieceGraph graph = GRAPH_OF_PARAMETERS;
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
      if (node >= 0 && lane % kLanes == 0) of_edges[edge] = graph.ColScale(node) * sum;
    }
  }
}
