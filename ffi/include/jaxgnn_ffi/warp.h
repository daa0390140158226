// What the CUDA kernels share: a warp's lanes, launches, loads and the handlers' errors.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "jaxgnn_ffi/number.h"

namespace jaxgnn {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

inline xla::ffi::Error LastError() {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return xla::ffi::Error::Success();
  return xla::ffi::Error::Internal(std::string("jaxgnn: ") + cudaGetErrorString(error));
}

// Blocks that keep the device busy while each strides over its share of `tasks`.
inline unsigned StridingBlocks(int64_t tasks, int64_t tasks_per_block) {
  constexpr int kBlocksPerMultiprocessor = 32;
  int device = 0, multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int64_t needed = (tasks + tasks_per_block - 1) / tasks_per_block;
  return static_cast<unsigned>(
      std::clamp<int64_t>(needed, 1, int64_t{multiprocessors} * kBlocksPerMultiprocessor));
}

// Lets launches of a kernel have all the shared memory that a block may have beside what the kernel
// declares, and returns how much that is. The same at every call, whatever a launch takes of it, so
// that calls from several threads or in one graph agree.
template <typename Kernel>
int64_t AllowSharedBytes(Kernel* kernel) {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, kernel);
  bytes -= static_cast<int>(attributes.sharedSizeBytes);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  return bytes;
}

#ifdef __CUDACC__

// `kBytes` bytes through the read-only path in the widest loads that divide them.
template <int kBytes>
__device__ __forceinline__ void LoadWords(uint32_t* words, const void* from) {
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 part = __ldg(static_cast<const uint4*>(from) + i);
      words[4 * i] = part.x, words[4 * i + 1] = part.y;
      words[4 * i + 2] = part.z, words[4 * i + 3] = part.w;
    }
  } else if constexpr (kBytes % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 8; ++i) {
      const uint2 part = __ldg(static_cast<const uint2*>(from) + i);
      words[2 * i] = part.x, words[2 * i + 1] = part.y;
    }
  } else if constexpr (kBytes % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) words[i] = __ldg(static_cast<const uint32_t*>(from) + i);
  } else if constexpr (kBytes == 2) {
    words[0] = __ldg(static_cast<const uint16_t*>(from));
  } else {
    static_assert(kBytes == 1);
    words[0] = __ldg(static_cast<const uint8_t*>(from));
  }
}

// Entry `i` of an array of T packed in words.
template <typename T>
__device__ __forceinline__ float FloatAt(const uint32_t* words, int i) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(words[i]);
  } else {
    return T{static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)))}.ToFloat();
  }
}

template <typename Id>
__device__ __forceinline__ uint32_t IdAt(const uint32_t* words, int i) {
  if constexpr (sizeof(Id) == 4) {
    return words[i];
  } else {
    constexpr int kPerWord = 4 / sizeof(Id);
    return (words[i / kPerWord] >> (8 * sizeof(Id) * (i % kPerWord))) &
           ((1u << (8 * sizeof(Id))) - 1);
  }
}

__device__ __forceinline__ float SumLanes(float value, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

#endif  // __CUDACC__

}  // namespace jaxgnn
