// Rows that the warps of all blocks stride over.
#include "warp.h"

__device__ int64_t FirstRow() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ int64_t RowStride() { return int64_t{gridDim.x} * blockDim.y; }
