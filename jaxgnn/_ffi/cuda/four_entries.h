// Four neighbouring entries of a compressed row, which one lane of the backward works on.
#include "warp.h"

// Adds four neighbouring floats, 16-byte aligned.
__device__ __forceinline__ void AddFour(float* to, const float* values) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, values[i]);
#endif
}

// The columns from `at` on of a row of k; `kAligned` if rows are whole groups of four. They are
// taken out of the loaded words where they are used, so that no load waits for the one before.
struct FourEntries {
  static constexpr int kWords = kAligned ? sizeof(Column) : 4;
  uint32_t words[kWords];

  __device__ __forceinline__ void Load(const Column* columns, int at, int k) {
    if constexpr (kAligned) {
      LoadWords<4 * sizeof(Column)>(words, columns + at);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = at + i < k ? columns[at + i] : 0;
    }
  }

  __device__ __forceinline__ uint32_t operator[](int i) const {
    return kAligned ? IdAt<Column>(words, i) : words[i];
  }

  // Brings the sums from `at` on to the second-level cache, to stay longer than what is streamed.
  static __device__ __forceinline__ void Prefetch(const float* sums, int at) {
#if __CUDA_ARCH__ >= 800
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(sums + at));
#endif
  }

  static __device__ __forceinline__ void Add(float* sums, int at, int k, const float* values) {
    if constexpr (kAligned) {
      AddFour(sums + at, values);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (at + i < k) atomicAdd(sums + at + i, values[i]);
      }
    }
  }
};
