// Gradient of maxk_spmm to kept values, row by row. `T` is the type of features, `Column` that of
// their columns.
#include "grad_values_warp.h"
#include "sums.h"

extern "C" __global__ void __launch_bounds__(256) grad_values(PARAMETERS) {
  const PieceGraph graph = GRAPH_OF_PARAMETERS;
  EdgeList* lists = reinterpret_cast<EdgeList*>(shared);
  GradValuesWarp warp{graph,
                      columns,
                      dy,
                      static_cast<int>(k),
                      static_cast<int>(dim),
                      SUMS_OF_PARAMETERS,
                      reinterpret_cast<float*>(lists + blockDim.y) + threadIdx.y * dim,
                      lists + threadIdx.y,
                      static_cast<int>(threadIdx.x)};
  const int32_t first_node = static_cast<int32_t>(num_cols * blockIdx.y / gridDim.y);
  const int32_t last_node = static_cast<int32_t>(num_cols * (blockIdx.y + 1) / gridDim.y);
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    warp.Run(graph.Get(number), first_node, last_node);
  }
}
