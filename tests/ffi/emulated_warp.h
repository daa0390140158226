// Runs CUDA source of warps on a CPU, for tests: a fiber for each lane of a block, one block after
// the other.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__
#define __align__(bytes) alignas(bytes)
#define __restrict__

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <typename T>
T __ldg(const T* from) {
  return *from;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct Index {
  int x, y;
};
static Index threadIdx, blockIdx, gridDim;
alignas(16) static float tables[1 << 16];

constexpr int kLanes = 32, kWarps = 8, kThreads = kLanes * kWarps;
static ucontext_t scheduler, lanes[kThreads];
static int thread_now, threads_left;

// A barrier of a warp or of the block. A lane that waits lets the others run.
struct Barrier {
  int arrived = 0, passed = 0;
  void Wait(int expected) {
    const int mine = passed;
    if (++arrived == expected) {
      arrived = 0;
      ++passed;
    }
    while (passed == mine) swapcontext(&lanes[thread_now], &scheduler);
  }
};
static Barrier of_warp[kWarps], of_block;

inline void __syncwarp() { of_warp[thread_now / kLanes].Wait(kLanes); }
inline void __syncthreads() { of_block.Wait(threads_left); }

// Each lane sends some numbers, which the lanes of its warp may read until the next call.
struct Sent {
  float floats[4];
  unsigned words[6];
};
static Sent sent[kThreads];
inline const Sent* Exchange(const Sent& own) {
  __syncwarp();  // all have read what was sent before
  sent[thread_now] = own;
  __syncwarp();
  return sent + thread_now / kLanes * kLanes;
}
inline float __shfl_xor_sync(unsigned, float value, int distance) {
  return Exchange({{value}, {}})[thread_now % kLanes ^ distance].floats[0];
}
inline int __shfl_sync(unsigned, int value, int from) {
  return static_cast<int>(Exchange({{}, {static_cast<unsigned>(value)}})[from].words[0]);
}

// mma.m16n8k8 of TF32, by the layout of PTX: lane 4 g + t has the rows g and g + 8 and the columns
// t and t + 4 of a, the rows t and t + 4 and the column g of b, and the columns 2 t and 2 t + 1 of
// the sums. The last 13 bits of a number are not read.
inline float Tf32(unsigned bits) { return __uint_as_float(bits & 0xffffe000u); }
inline void EmulatedMma(float* sum, const unsigned* a, const unsigned* b) {
  const Sent* all = Exchange({{}, {a[0], a[1], a[2], a[3], b[0], b[1]}});
  const int g = thread_now % kLanes / 4, t = thread_now % 4;
  for (int place = 0; place < 4; ++place) {
    const int half = place / 2, column = 2 * t + place % 2;  // of the rows, and of the sums
    for (int k = 0; k < 8; ++k) {
      const unsigned of_a = all[4 * g + k % 4].words[half + k / 4 * 2];
      const unsigned of_b = all[4 * column + k % 4].words[4 + k / 4];
      sum[place] += Tf32(of_a) * Tf32(of_b);
    }
  }
}
#define Mma EmulatedMma

using Kernel = void (*)(int, int, const int*, const int*, const int*, const float*, const float*,
                        const float*, const float*, const float*, const float*, const float*, float*,
                        float*);

struct Call {
  Kernel kernel;
  int rows, edges;
  const int *indptr, *indices, *slots;
  const float *first, *second, *third, *of_layer, *first_tangent, *second_tangent, *third_tangent;
  float *tiles, *out;
};
static Call call_now;
static bool finished[kThreads];

static void Lane() {
  const Call& c = call_now;
  c.kernel(c.rows, c.edges, c.indptr, c.indices, c.slots, c.first, c.second, c.third, c.of_layer,
           c.first_tangent, c.second_tangent, c.third_tangent, c.tiles, c.out);
  finished[thread_now] = true;
}

// Runs the block `block` until all of its threads have finished.
inline void RunBlock(Index block) {
  static std::vector<char> stacks(static_cast<size_t>(kThreads) << 16);
  blockIdx = block;
  for (Barrier& barrier : of_warp) barrier = {};
  of_block = {};
  for (int i = 0; i < kThreads; ++i) {
    finished[i] = false;
    getcontext(&lanes[i]);
    lanes[i].uc_stack.ss_sp = stacks.data() + (static_cast<size_t>(i) << 16);
    lanes[i].uc_stack.ss_size = 1 << 16;
    lanes[i].uc_link = &scheduler;
    makecontext(&lanes[i], Lane, 0);
  }
  for (threads_left = kThreads; threads_left > 0;) {
    for (int i = 0; i < kThreads; ++i) {
      if (finished[i]) continue;
      thread_now = i;
      threadIdx = {i, 0};
      swapcontext(&scheduler, &lanes[i]);
      threads_left -= finished[i];
    }
  }
}

// Calls a kernel as if launched for all rows and parts of the channels; with `blocks` above zero, by
// that many blocks.
inline void Run(const Call& call, int columns, int blocks) {
  call_now = call;
  const int of_rows = call.rows > 0 ? (call.rows + kWarps - 1) / kWarps : 1;
  gridDim = {blocks > 0 ? blocks : of_rows, blocks > 0 ? 1 : columns};
  for (int y = 0; y < gridDim.y; ++y) {
    for (int x = 0; x < gridDim.x; ++x) RunBlock({x, y});
  }
}
