// Sixteen floats side by side. Sums are made in these fixed lanes, so that they vectorise without
// reordering at the compiler's whim. The type is a vector extension of GCC and Clang, which make it
// of whatever registers there are. Sums, products and shifts of it become one instruction each;
// comparisons do not where the function is inlined into one for wider registers.
#pragma once

#include <cstring>

#include "jaxgnn_ffi/number.h"

namespace jaxgnn {

constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(4 * kLanes)));
using IntegerLanes = int32_t __attribute__((vector_size(4 * kLanes)));
using ShortLanes = uint16_t __attribute__((vector_size(2 * kLanes)));

// Vectors are handed over by reference: by value their calling convention differs by processor.
JAXGNN_INLINE inline void LoadLanes(const float* x, Lanes& lanes) {
  std::memcpy(&lanes, x, sizeof(lanes));
}

JAXGNN_INLINE inline void LoadLanes(const BFloat16* x, Lanes& lanes) {
  ShortLanes bits;
  std::memcpy(&bits, x, sizeof(bits));
  const IntegerLanes words = __builtin_convertvector(bits, IntegerLanes) << 16;
  std::memcpy(&lanes, &words, sizeof(lanes));
}

JAXGNN_INLINE inline void LoadLanes(const Float16* x, Lanes& lanes) {
  float values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = x[lane].ToFloat();
  std::memcpy(&lanes, values, sizeof(lanes));
}

JAXGNN_INLINE inline float SumOfLanes(const Lanes& lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof(lanes));
  using Eight = float __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
  Eight half, other_half;
  std::memcpy(&half, sums, sizeof(half));
  std::memcpy(&other_half, sums + 8, sizeof(half));
  half += other_half;
  Four quarter, other_quarter;
  std::memcpy(&quarter, &half, sizeof(quarter));
  std::memcpy(&other_quarter, reinterpret_cast<const char*>(&half) + 16, sizeof(quarter));
  quarter += other_quarter;
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

template <typename A, typename B>
JAXGNN_INLINE inline float Dot(const A* a, const B* b, int64_t dim) {
  Lanes sums = {}, left, right;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    LoadLanes(a + i, left);
    LoadLanes(b + i, right);
    sums += left * right;
  }
  float rest = 0.0f;
  for (; i < dim; ++i) rest += ToFloat(a[i]) * ToFloat(b[i]);
  return SumOfLanes(sums) + rest;
}

}  // namespace jaxgnn
