// Runs CUDA source of warps on a CPU, for tests: a fiber for each lane of a block, one block after
// the other.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

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
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
// A load that a GPU does not align ends the process.
template <typename T>
T __ldg(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T) != 0) abort();
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return __ldg(from);
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline float __saturatef(float value) { return value > 0 ? fminf(value, 1.0f) : 0.0f; }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned places) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (8 * (places >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}
inline unsigned __viaddmin_s16x2_relu(unsigned a, unsigned b, unsigned c) {
  unsigned result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto half = [&](unsigned word) { return static_cast<int16_t>(word >> shift); };
    const int sum = static_cast<int16_t>(half(a) + half(b));
    result |= static_cast<unsigned>(max(min(sum, int{half(c)}), 0)) << shift;
  }
  return result;
}
inline void atomicAdd(float* to, float value) { *to += value; }
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
  unsigned x, y;
};
static Index threadIdx, blockIdx, gridDim, blockDim;
constexpr int kSharedFloats = 227 * 256;
alignas(16) static float shared[kSharedFloats];
static float* const tables = shared;

constexpr int kLanesOfWarp = 32, kMostThreads = 1024;
static ucontext_t scheduler, lanes[kMostThreads];
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
static Barrier of_warp[kMostThreads / kLanesOfWarp], of_block;

inline void __syncwarp() { of_warp[thread_now / kLanesOfWarp].Wait(kLanesOfWarp); }
inline void __syncthreads() { of_block.Wait(threads_left); }

// Each lane sends some words, which the lanes of its warp may read until the next call.
struct Sent {
  unsigned words[6];
};
static Sent sent[kMostThreads];
inline const Sent* Exchange(const Sent& words) {
  __syncwarp();  // all have read what was sent before
  sent[thread_now] = words;
  __syncwarp();
  return sent + thread_now / kLanesOfWarp * kLanesOfWarp;
}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  Sent words = {};
  memcpy(&words, &value, sizeof value);
  memcpy(&value, Exchange(words) + (from & 31), sizeof value);
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int distance) {
  return __shfl_sync(lanes, value, thread_now % kLanesOfWarp ^ distance);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const Sent* all = Exchange({{vote}});
  unsigned votes = 0;
  for (int i = 0; i < kLanesOfWarp; ++i) votes |= all[i].words[0] << i;
  return votes;
}
inline bool __all_sync(unsigned lanes, bool vote) { return __ballot_sync(lanes, vote) == ~0u; }

// mma.m16n8k8 of TF32, by the layout of PTX: lane 4 g + t has the rows g and g + 8 and the columns
// t and t + 4 of a, the rows t and t + 4 and the column g of b, and the columns 2 t and 2 t + 1 of
// the sums. The last 13 bits of a number are not read.
inline float Tf32(unsigned bits) { return __uint_as_float(bits & 0xffffe000u); }
inline void EmulatedMma(float* sum, const unsigned* a, const unsigned* b) {
  const Sent* all = Exchange({{a[0], a[1], a[2], a[3], b[0], b[1]}});
  const int g = thread_now % kLanesOfWarp / 4, t = thread_now % 4;
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

// The fields of a launch (ffi/cuda/launch.cc).
struct Launch {
  int64_t tasks, tasks_per_block, most_blocks, blocks_y, threads_x, threads_y, shared_bytes;
};

static void (*body_now)(const int64_t*);
static const int64_t* words_now;
static bool finished[kMostThreads];

static void Lane() {
  body_now(words_now);
  finished[thread_now] = true;
}

// Runs the block `blockIdx` until all of its threads have finished.
inline void RunBlock() {
  constexpr size_t kStackBytes = 1 << 16;
  static char* const stacks = static_cast<char*>(malloc(kMostThreads * kStackBytes));
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  memset(shared, 0xff, sizeof shared);  // NaN
  for (Barrier& barrier : of_warp) barrier = {};
  of_block = {};
  for (int i = 0; i < threads; ++i) {
    finished[i] = false;
    getcontext(&lanes[i]);
    lanes[i].uc_stack.ss_sp = stacks + i * kStackBytes;
    lanes[i].uc_stack.ss_size = kStackBytes;
    lanes[i].uc_link = &scheduler;
    makecontext(&lanes[i], Lane, 0);
  }
  for (threads_left = threads; threads_left > 0;) {
    for (int i = 0; i < threads; ++i) {
      if (finished[i]) continue;
      thread_now = i;
      threadIdx = {i % blockDim.x, i / blockDim.x};
      swapcontext(&scheduler, &lanes[i]);
      threads_left -= finished[i];
    }
  }
}

template <typename T>
T FromWord(int64_t word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else {
    return static_cast<T>(word);
  }
}

// Calls a kernel with its parameters from words.
template <auto kKernel>
struct Body;
template <typename... Parameters, void (*kKernel)(Parameters...)>
struct Body<kKernel> {
  static void Call(const int64_t* words) { Call(words, std::index_sequence_for<Parameters...>{}); }
  template <size_t... kPlaces>
  static void Call(const int64_t* words, std::index_sequence<kPlaces...>) {
    kKernel(FromWord<Parameters>(words[kPlaces])...);
  }
};

// Runs a kernel as ffi/cuda/launch.cc launches it.
template <auto kKernel>
void Run(const int64_t* words, const Launch& launch, int64_t rows) {
  const int64_t tasks = launch.tasks < 0 ? rows : launch.tasks;
  const int64_t needed = (tasks + launch.tasks_per_block - 1) / launch.tasks_per_block;
  if (launch.shared_bytes > static_cast<int64_t>(sizeof shared)) abort();
  const int64_t blocks = needed < launch.most_blocks ? needed : launch.most_blocks;
  gridDim = {blocks > 1 ? static_cast<unsigned>(blocks) : 1,
             static_cast<unsigned>(launch.blocks_y)};
  blockDim = {static_cast<unsigned>(launch.threads_x), static_cast<unsigned>(launch.threads_y)};
  body_now = Body<kKernel>::Call, words_now = words;
  for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) RunBlock();
  }
}
