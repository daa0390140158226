// Random numbers of samplers: the same bits as jaxgnn/sampling/random.py, which defines them.
//
// A file that includes this is compiled with -ffp-contract=off: `Log` is the same everywhere only
// if each of its operations is rounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "jaxgnn_ffi/isa.h"

namespace jaxgnn {
namespace sampling {

struct Key {
  uint32_t first, second;
};

enum Stream : uint32_t { kNeighbours, kWeighted, kLabor };

JAXGNN_INLINE inline uint32_t RotateLeft(uint32_t x, int by) { return x << by | x >> (32 - by); }

// Threefry-2x32 with 20 rounds.
JAXGNN_INLINE inline Key Threefry(Key key, Key counter) {
  const uint32_t keys[3] = {key.first, key.second, key.first ^ key.second ^ 0x1bd11bda};
  uint32_t x = counter.first + keys[0], y = counter.second + keys[1];
  const auto round = [&](int by) JAXGNN_INLINE {
    x += y;
    y = RotateLeft(y, by) ^ x;
  };
  const auto even = [&]() JAXGNN_INLINE { round(13), round(15), round(26), round(6); };
  const auto odd = [&]() JAXGNN_INLINE { round(17), round(29), round(16), round(24); };
  even(), x += keys[1], y += keys[2] + 1;
  odd(), x += keys[2], y += keys[0] + 2;
  even(), x += keys[0], y += keys[1] + 3;
  odd(), x += keys[1], y += keys[2] + 4;
  even(), x += keys[2], y += keys[0] + 5;
  return {x, y};
}

inline Key BatchKey(uint64_t seed, uint32_t epoch, uint32_t step) {
  const Key key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  return Threefry(key, {epoch, step});
}

inline Key HopKey(Key batch, uint32_t hop, Stream stream) { return Threefry(batch, {hop, stream}); }

// The counter of a pair of a node and a slot.
JAXGNN_INLINE inline Key Counter(uint64_t node, uint64_t slot) {
  return {static_cast<uint32_t>(node), static_cast<uint32_t>(slot | node >> 32 << 20)};
}

JAXGNN_INLINE inline uint64_t Word(Key result) {
  return static_cast<uint64_t>(result.first) << 32 | result.second;
}

// Words are drawn in groups of so many: memory for whole groups is needed.
constexpr int64_t kDrawGroup = 16;

// Replaces counters, as `Word` writes them, by random words.
inline void Draw(Key key, int64_t count, uint64_t* words) {
  WithWidestIsa([=]() JAXGNN_INLINE {
    for (int64_t begin = 0; begin < count; begin += kDrawGroup) {
      uint64_t* group = words + begin;
      for (int64_t i = 0; i < kDrawGroup; ++i) {
        const Key counter{static_cast<uint32_t>(group[i] >> 32), static_cast<uint32_t>(group[i])};
        group[i] = Word(Threefry(key, counter));
      }
    }
  });
}

// An integer in [0, bound).
inline uint64_t Below(uint64_t word, uint64_t bound) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(word) * bound >> 64);
}

// A multiple of 2^-53 in [0, 1).
inline double Uniform(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

// Natural logarithm of a positive number that is not denormal.
inline double Log(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1022), mantissa;
  bits = (bits & (~uint64_t{0} >> 12)) | uint64_t{1022} << 52;
  std::memcpy(&mantissa, &bits, sizeof mantissa);
  if (mantissa < 0.70710678118654757) mantissa *= 2.0, exponent -= 1.0;
  const double s = (mantissa - 1.0) / (mantissa + 1.0), square = s * s;
  constexpr double kOdd[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                             1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  double series = 1.0 / 21;
  for (double part : kOdd) series = series * square + part;
  const double artanh = s + s * (square * series);
  return exponent * 0x1.62e42fefa3800p-1 + (2.0 * artanh + exponent * 0x1.ef35793c76730p-45);
}

// How draws of senders move from one word to the next: sums of their upper halves times factors.
struct Mix {
  uint64_t first = 0, second = 0;

  uint64_t Sum(uint64_t word, uint64_t next_word) const {
    return (word >> 32) * first + (next_word >> 32) * second;
  }

  // The probability that another sum is larger.
  double Larger(uint64_t sum) const {
    const double least = static_cast<double>(std::min(first, second)) * 0x1p-31;
    const double most = static_cast<double>(std::max(first, second)) * 0x1p-31;
    const double below = static_cast<double>(sum) * 0x1p-63;
    const double rest = static_cast<double>(((first + second) << 32) - sum) * 0x1p-63;
    const double corners = 2.0 * least * most;
    if (below < least) return 1.0 - below * below / corners;
    return rest < least ? rest * rest / corners : (rest - 0.5 * least) / most;
  }
};

}  // namespace sampling
}  // namespace jaxgnn
