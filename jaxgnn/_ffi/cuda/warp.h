// A warp's lanes, its shared memory, loads and sums.

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

extern __shared__ __align__(16) float shared[];

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

// Sum, minimum and maximum over the lanes of a warp. GPUs before compute capability 8.0 lack the
// instructions.
__device__ __forceinline__ int SumOfWarp(int value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
#endif
}
__device__ __forceinline__ uint32_t MinOfWarp(uint32_t value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(kAllLanes, value);
#else
  for (int step = 16; step > 0; step /= 2) {
    value = min(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
#endif
}
__device__ __forceinline__ uint32_t MaxOfWarp(uint32_t value) { return ~MinOfWarp(~value); }
