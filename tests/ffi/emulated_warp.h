// Runs CUDA source of warps on a CPU, for tests: a fiber for each lane, one warp after the other.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) alignas(bytes)
#define __restrict__

struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline int min(int a, int b) { return a < b ? a : b; }

struct Index {
  int x, y;
};
static Index threadIdx, blockIdx, gridDim;
alignas(16) static float tables[1 << 16];

constexpr int kLanes = 32;
static ucontext_t scheduler, lanes[kLanes];
static int lane_now;
static float sent[kLanes];
static int sent_int[kLanes];

inline void __syncwarp() { swapcontext(&lanes[lane_now], &scheduler); }
inline float __shfl_xor_sync(unsigned, float value, int distance) {
  const int lane = lane_now;
  sent[lane] = value;
  __syncwarp();
  const float got = sent[lane ^ distance];
  __syncwarp();
  return got;
}
inline int __shfl_sync(unsigned, int value, int from) {
  sent_int[lane_now] = value;
  __syncwarp();
  const int got = sent_int[from];
  __syncwarp();
  return got;
}

using Kernel = void (*)(int, int, const int*, const int*, const int*, const float*, const float*,
                        const float*, float*);

struct Call {
  Kernel kernel;
  int rows, edges;
  const int *indptr, *indices, *slots;
  const float *first, *second, *third;
  float* out;
};
static Call call_now;
static bool finished[kLanes];

static void Lane() {
  const Call& c = call_now;
  c.kernel(c.rows, c.edges, c.indptr, c.indices, c.slots, c.first, c.second, c.third, c.out);
  finished[lane_now] = true;
}

// Calls a kernel as if launched with blocks of `warps` warps.
inline void Run(const Call& call, int columns, int warps) {
  static std::vector<char> stacks(kLanes << 16);
  call_now = call;
  gridDim = {call.rows > 0 ? (call.rows + warps - 1) / warps : 1, columns};
  for (int part = 0; part < columns; ++part) {
    for (int row = 0; row < gridDim.x * warps; ++row) {
      for (int i = 0; i < kLanes; ++i) {
        finished[i] = false;
        getcontext(&lanes[i]);
        lanes[i].uc_stack.ss_sp = stacks.data() + (static_cast<size_t>(i) << 16);
        lanes[i].uc_stack.ss_size = 1 << 16;
        lanes[i].uc_link = &scheduler;
        makecontext(&lanes[i], Lane, 0);
      }
      for (int left = kLanes; left > 0;) {
        left = 0;
        for (int i = 0; i < kLanes; ++i) {
          if (finished[i]) continue;
          lane_now = i;
          threadIdx = {row % warps * kLanes + i, 0};
          blockIdx = {row / warps, part};
          swapcontext(&scheduler, &lanes[i]);
          left += !finished[i];
        }
      }
    }
  }
}
