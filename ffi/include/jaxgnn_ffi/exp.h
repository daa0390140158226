// The exponential function, for loops that vectorise.
#pragma once

#include "jaxgnn_ffi/number.h"

namespace jaxgnn {

// exp(x) for x <= 0 or NaN, without branches or calls, so that loops over it vectorise. Errs by
// about one unit in the last place; what would be subnormal is zero.
JAXGNN_INLINE inline float ExpOfNegative(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kSmallest = -87.0f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x > kSmallest ? x : kSmallest;
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = clamped - n * kLn2High - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float power = BitCast<float>((static_cast<int32_t>(n) + 127) << 23);
  const float value = x < kSmallest ? 0.0f : p * power;
  return x == x ? value : x;
}

}  // namespace jaxgnn
