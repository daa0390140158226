// Gradients to kept values as sums in float32, which begin at zero, are added to, then scaled and
// rounded. They lie where the result will, or if that is narrower, in `workspace`.
#include "warp.h"

#define SUMS_OF_PARAMETERS SumsOf(dvalues, workspace)

__device__ __forceinline__ float* SumsOf(float* dvalues, float*) { return dvalues; }
__device__ __forceinline__ float* SumsOf(BFloat16*, float* workspace) { return workspace; }

extern "C" __global__ void clear_sums(PARAMETERS) {
  float* sums = SUMS_OF_PARAMETERS;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < num_cols * k; i += stride) sums[i] = 0.0f;
}

// dvalues_jt = c_j sums_jt, in place if the types are equal.
extern "C" __global__ void scale_sums(PARAMETERS) {
  const float* sums = SUMS_OF_PARAMETERS;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t i = first; i < num_cols * k; i += stride) {
    dvalues[i] = FromFloat<T>(col_scale ? col_scale[i / k] * sums[i] : sums[i]);
  }
}
