// The k largest entries of each row; see jaxgnn/ops/_maxk/reference/maxk.py. `T` is the type of
// entries, `Column` that of their columns.
#include "rows.h"

// An integer that orders like a rank, and back. Ranks are values or magnitudes, never -0.
__device__ __forceinline__ uint32_t Key(float rank) {
  const uint32_t bits = __float_as_uint(rank);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float RankOfKey(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// What a warp remembers from row to row, since rows are often alike: the range of ranks that levels
// divide, and the level at which k entries were found.
struct Levels {
  static constexpr int kCount = 1 << 14;
  float scale = 0.0f, shift;  // none yet if the scale is zero
  int level = kCount / 2;

  __device__ __forceinline__ void Span(float low, float high) {
    scale = __fdividef(1.0f, high - low);
    shift = -low * scale;
    // Too narrow or too wide a range for floats to divide.
    if (!(high > low && scale > 0.0f && scale < INFINITY && fabsf(shift) < INFINITY)) scale = 0.0f;
  }
};

// One row in the registers of a warp: lane l holds the columns l * kOwn up to (l + 1) * kOwn.
//
// The k-th largest entry is looked for among levels: integers that order like the ranks, two in a
// register, of which one instruction compares both. Entries that k of them reach are the k largest.
// Only where entries that differ share the level in question, or are not finite, does the search go
// on between keys, bit by bit.
struct MaxkRow {
  static constexpr int kPairs = kOwn / 2, kBytes = kOwn * sizeof(T);

  float ranks[kOwn];
  uint32_t levels[kPairs];  // of the entries 2 p and 2 p + 1 in the halves of word p
  int lane, dim;

  __device__ __forceinline__ bool Inside(int i) const {
    return lane * kOwn + (kWide ? 0 : i) < dim;
  }

  // Returns whether all entries of the row are finite. What is behind the last column ranks lowest
  // and comes last among its equals, so it is never kept.
  __device__ __forceinline__ bool Load(const T* row) {
    uint32_t words[(kBytes + 3) / 4];
    if (kWide && Inside(0)) LoadWords<kBytes>(words, row + lane * kOwn);
    float zero = 0.0f;  // times anything infinite or NaN: NaN
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      ranks[i] = -INFINITY;
      if (!Inside(i)) continue;
      const float x = kWide ? FloatAt<T>(words, i) : ToFloat(row[lane * kOwn + i]);
      zero = fmaf(x, 0.0f, zero);
      // Adding zero makes +0 of -0.
      ranks[i] = (kByMagnitude ? fabsf(x) : x) + 0.0f;
    }
    return __all_sync(kAllLanes, zero == 0.0f);
  }

  // NaN ranks with +inf.
  __device__ __forceinline__ void RankNan() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) ranks[i] = fminf(ranks[i], INFINITY);
  }

  // Keys of the smallest and the largest entry of `mask`.
  __device__ __forceinline__ void Range(uint32_t mask, uint32_t* least, uint32_t* most) const {
    float low = INFINITY, high = -INFINITY;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (!(mask >> Bit(i) & 1)) continue;
      low = fminf(low, ranks[i]);
      high = fmaxf(high, ranks[i]);
    }
    *least = MinOfWarp(Key(low));
    *most = MaxOfWarp(Key(high));
  }

  __device__ __forceinline__ uint32_t MaskOfRow() const {
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) mask |= static_cast<uint32_t>(Inside(i)) << Bit(i);
    return mask;
  }

  __device__ __forceinline__ void MakeLevels(const Levels& of) {
    // Adding 2^23 leaves the rounded level in the low bits. Each step keeps the order.
    constexpr float kToInteger = 8388608.0f, kLast = Levels::kCount - 2;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const float a = __saturatef(fmaf(ranks[2 * p], of.scale, of.shift));
      const float b = __saturatef(fmaf(ranks[2 * p + 1], of.scale, of.shift));
      levels[p] = __byte_perm(__float_as_uint(fmaf(a, kLast, kToInteger)),
                              __float_as_uint(fmaf(b, kLast, kToInteger)), 0x5410);
    }
  }

  // One in each half where the entry reaches `level`.
  __device__ __forceinline__ uint32_t Reaches(int p, int level) const {
    const uint32_t minus = static_cast<uint32_t>(1 - level) & 0xffffu;
    return __viaddmin_s16x2_relu(levels[p], minus * 0x10001u, 0x00010001u);
  }

  __device__ __forceinline__ int CountFromLevel(int level) const {
    uint32_t counts = 0;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) counts += Reaches(p, level);
    return SumOfWarp(static_cast<int>((counts & 0xffffu) + (counts >> 16)));
  }

  // Bits of the entries that reach `level`: those of even entries, and 16 bits on, of odd ones.
  __device__ __forceinline__ uint32_t MaskFromLevel(int level) const {
    uint32_t mask = 0;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) mask |= Reaches(p, level) << p;
    return mask;
  }

  static __device__ __forceinline__ int Bit(int entry) { return entry / 2 + entry % 2 * 16; }

  template <typename Test>
  __device__ __forceinline__ uint32_t MaskOf(const Test& test) const {
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) mask |= static_cast<uint32_t>(test(ranks[i])) << Bit(i);
    return mask;
  }

  // Set bits of `mask` in the lanes before this one.
  __device__ __forceinline__ int Before(uint32_t mask) const {
    const unsigned before = (1u << lane) - 1;
    const int own = __popc(mask);
    int count = 0;
#pragma unroll
    for (int bit = 0; (1 << bit) <= kOwn; ++bit) {
      count += __popc(__ballot_sync(kAllLanes, own >> bit & 1) & before) << bit;
    }
    return count;
  }

  // The first `most` of the entries of `mask`, by column.
  __device__ __forceinline__ uint32_t First(uint32_t mask, int most) const {
    int rank = Before(mask);
    uint32_t first = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (!(mask >> Bit(i) & 1)) continue;
      if (rank < most) first |= 1u << Bit(i);
      ++rank;
    }
    return first;
  }

  // The kept entries.
  __device__ __forceinline__ uint32_t Keep(int k, bool finite, Levels* of) {
    uint32_t least, most;
    if (!finite || of->scale == 0.0f) {
      if (!finite) RankNan();
      Range(MaskOfRow(), &least, &most);
      if (finite) of->Span(RankOfKey(least), RankOfKey(most));
      if (of->scale == 0.0f || !finite) return KeepByKey(k, least, most + 1, 0);
    }
    MakeLevels(*of);
    int low = 0, high = Levels::kCount, above = 0;  // entries that reach `high`
    int middle = of->level;
    constexpr int kGuesses = 6;
    for (int step = 0; high - low > 1; ++step) {
      if (step >= kGuesses || middle <= low || middle >= high) middle = (low + high) / 2;
      const int count = CountFromLevel(middle);
      if (count == k) {
        of->level = middle;
        return MaskFromLevel(middle);
      }
      // Near the k-th largest, entries lie about this far apart in rows of a bell curve.
      constexpr int kLevelsPerEntry = Levels::kCount / (kOwn * kWarp);
      const int guess = middle + (count - k) * kLevelsPerEntry;
      if (count > k) {
        low = middle;
      } else {
        high = middle;
        above = count;
      }
      middle = guess;
    }
    // A level at an end holds all that lies beyond it: the next row shall span its own.
    if (low == 0 || low >= Levels::kCount - 2) of->scale = 0.0f;
    Range(MaskFromLevel(low) & ~MaskFromLevel(high), &least, &most);
    return KeepByKey(k, least, most + 1, above);
  }

  // The same between keys: at least k entries reach `low`, and `above` < k of them `high`.
  __device__ __forceinline__ uint32_t KeepByKey(int k, uint32_t low, uint32_t high, int above) {
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      const float rank = RankOfKey(middle);
      int count = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) count += ranks[i] >= rank;
      count = SumOfWarp(count);
      if (count >= k) {
        low = middle;
      } else {
        high = middle;
        above = count;
      }
    }
    const float rank = RankOfKey(low);
    return MaskOf([&](float r) { return r > rank; }) |
           First(MaskOf([&](float r) { return r == rank; }), k - above);
  }
};

// Rows of neighbouring columns are put together in shared memory, so that global memory is written
// in whole sectors; values are read again, from the first-level cache.
extern "C" __global__ void __launch_bounds__(256) maxk(PARAMETERS) {
  Column* kept = reinterpret_cast<Column*>(shared) + threadIdx.y * k;
  MaxkRow in;
  in.lane = threadIdx.x;
  in.dim = static_cast<int>(dim);
  Levels levels;
  for (int64_t row = FirstRow(); row < rows; row += RowStride()) {
    const bool finite = in.Load(x + row * dim);
    const uint32_t mask = in.Keep(static_cast<int>(k), finite, &levels);
    int to = in.Before(mask);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (mask >> in.Bit(i) & 1) kept[to++] = static_cast<Column>(threadIdx.x * kOwn + i);
    }
    __syncwarp();
    for (int i = threadIdx.x; i < k; i += kWarp) {
      values[row * k + i] = x[row * dim + kept[i]];
      columns[row * k + i] = kept[i];
    }
    __syncwarp();
  }
}
