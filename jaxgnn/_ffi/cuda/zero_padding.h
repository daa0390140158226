// Sets the entries of padding slots to zero, for kernels whose result has an entry for each edge.
#include "pieces.h"

extern "C" __global__ void zero_padding(PARAMETERS) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * blockDim.y;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  for (int64_t edge = indptr[num_rows] + thread * blockDim.x + threadIdx.x; edge < num_edges;
       edge += stride) {
    of_edges[edge] = 0.0f;
  }
}
