// Row-wise top-k and the moves between dense and compressed rows; see jaxgnn/ops/reference/maxk.py.
#include <limits>
#include <vector>

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/number.h"
#include "jaxgnn_ffi/parallel.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kRowsPerTask = 64;

int64_t CountRows(Dimensions dimensions) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < dimensions.size(); ++i) rows *= dimensions[i];
  return rows;
}

// Calls `body(row)` for all rows in parallel, compiled for AVX2.
template <typename Body>
void ForRows(ffi::ThreadPool pool, int64_t rows, const Body& body) {
  ParallelFor(pool, (rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    WithAvx2([&]() JAXGNN_INLINE {
      const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
      for (int64_t row = task * kRowsPerTask; row < end; ++row) body(row);
    });
  });
}

// The rank of an entry as an integer of the same order: sign and magnitude bits of a float compare
// like a sign-magnitude integer, which makes -0 and +0 equal. NaN becomes +inf.
JAXGNN_INLINE inline int32_t RankOfBits(uint32_t magnitude, bool negative, uint32_t infinity,
                                        bool by_magnitude) {
  const int32_t rank = static_cast<int32_t>(magnitude < infinity ? magnitude : infinity);
  const bool keep_sign = negative && !by_magnitude && magnitude <= infinity;
  return keep_sign ? -rank : rank;
}
JAXGNN_INLINE inline int32_t Rank(float x, bool by_magnitude) {
  const uint32_t bits = BitCast<uint32_t>(x);
  return RankOfBits(bits & 0x7fffffff, bits >> 31, 0x7f800000, by_magnitude);
}
JAXGNN_INLINE inline int32_t Rank(BFloat16 x, bool by_magnitude) {
  return RankOfBits(x.bits & 0x7fff, x.bits >> 15, 0x7f80, by_magnitude);
}
JAXGNN_INLINE inline int32_t Rank(Float16 x, bool by_magnitude) {
  return RankOfBits(x.bits & 0x7fff, x.bits >> 15, 0x7c00, by_magnitude);
}

// Entries ranked above `threshold` are kept, and of those equal to it the first `ties`.
struct Cut {
  int32_t threshold;
  int64_t ties;
};

JAXGNN_INLINE inline int64_t CountAtLeast(const int32_t* rank, int64_t dim, int32_t bound) {
  int32_t count = 0;
  for (int64_t i = 0; i < dim; ++i) count += rank[i] >= bound;
  return count;
}

// A rank of float32 as the value it stands for, and back.
JAXGNN_INLINE inline float ValueOfRank(int64_t rank) {
  const uint32_t sign = rank < 0 ? 0x80000000u : 0u;
  return BitCast<float>(sign | static_cast<uint32_t>(rank < 0 ? -rank : rank));
}

// Where to cut (low, high) next. The values of a row are spread more evenly than their bits, so
// the middle of the values finds the cut in fewer steps; only the middle of the bits is sure to.
constexpr int kValueSteps = 12;

JAXGNN_INLINE inline int64_t Middle(int64_t low, int64_t high, bool by_value) {
  if (by_value) {
    const int64_t middle = Rank(0.5f * ValueOfRank(low) + 0.5f * ValueOfRank(high), false);
    if (low < middle && middle < high) return middle;
  }
  return low + (high - low) / 2;
}

// Bisects for the k-th largest rank. Ranks of a float32 can be cut by value.
JAXGNN_INLINE inline Cut ExactCut(const int32_t* rank, int64_t dim, int64_t k, bool is_float32) {
  int32_t smallest = rank[0], largest = rank[0];
  for (int64_t i = 1; i < dim; ++i) {
    smallest = std::min(smallest, rank[i]);
    largest = std::max(largest, rank[i]);
  }
  // At least k entries reach `low`; fewer than k reach `high`.
  int64_t low = smallest, high = static_cast<int64_t>(largest) + 1;
  for (int step = 0; high - low > 1; ++step) {
    const int64_t middle = Middle(low, high, is_float32 && step < kValueSteps);
    const int64_t count = CountAtLeast(rank, dim, static_cast<int32_t>(middle));
    if (count == k) return {static_cast<int32_t>(middle - 1), 0};
    (count > k ? low : high) = middle;
  }
  const int64_t above = CountAtLeast(rank, dim, static_cast<int32_t>(low + 1));
  return {static_cast<int32_t>(low), k - above};
}

// The documented early stop: bisects the range of the values `steps` times.
template <typename T>
JAXGNN_INLINE inline float EarlyThreshold(const T* x, int64_t dim, int64_t k, bool by_magnitude,
                                          int64_t steps, float* bounded) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  float low = kLargest, high = -kLargest;
  for (int64_t i = 0; i < dim; ++i) {
    float value = ToFloat(x[i]);
    if (by_magnitude) value = value < 0 ? -value : value;
    value = value == value ? value : kLargest;
    bounded[i] = std::max(-kLargest, std::min(kLargest, value));
    low = std::min(low, bounded[i]);
    high = std::max(high, bounded[i]);
  }
  for (int64_t step = 0; step < steps; ++step) {
    const float middle = 0.5f * low + 0.5f * high;
    int32_t count = 0;
    for (int64_t i = 0; i < dim; ++i) count += bounded[i] >= middle;
    (count >= k ? low : high) = middle;
  }
  return low;
}

struct Scratch {
  std::vector<int32_t> ranks;
  std::vector<float> bounded;
  std::vector<uint64_t> flags;  // a byte for each entry, 1 if it may be kept

  static Scratch& Get(int64_t dim) {
    static thread_local Scratch scratch;
    scratch.ranks.resize(dim);
    scratch.bounded.resize(dim);
    scratch.flags.assign((dim + 7) / 8, 0);
    return scratch;
  }
};

// Writes the first k flagged entries that `wanted` agrees to, eight flags at a look.
template <typename T, typename Column, typename Wanted>
JAXGNN_INLINE inline void Compact(const T* x, const uint64_t* flags, int64_t k,
                                  const Wanted& wanted, T* values, Column* columns) {
  int64_t kept = 0;
  for (int64_t block = 0; kept < k; ++block) {
    for (uint64_t word = flags[block]; word != 0 && kept < k; word &= word - 1) {
      const int64_t i = block * 8 + __builtin_ctzll(word) / 8;
      if (!wanted(i)) continue;
      values[kept] = x[i];
      columns[kept] = static_cast<Column>(i);
      ++kept;
    }
  }
}

// The same for ids of `column_bytes` bytes each.
template <typename T, typename Wanted>
JAXGNN_INLINE inline void Compact(const T* x, const uint64_t* flags, int64_t k,
                                  const Wanted& wanted, T* values, void* columns,
                                  int64_t column_bytes) {
  if (column_bytes == 1) {
    Compact(x, flags, k, wanted, values, static_cast<uint8_t*>(columns));
  } else if (column_bytes == 2) {
    Compact(x, flags, k, wanted, values, static_cast<uint16_t*>(columns));
  } else {
    Compact(x, flags, k, wanted, values, static_cast<uint32_t*>(columns));
  }
}

template <typename T>
JAXGNN_INLINE inline void MaxkRow(const T* __restrict x, int64_t dim, int64_t k, bool by_magnitude,
                                  int64_t early_stop, int32_t* __restrict rank,
                                  float* __restrict bounded, uint64_t* __restrict flags,
                                  T* __restrict values, void* columns, int64_t column_bytes) {
  uint8_t* flag = reinterpret_cast<uint8_t*>(flags);
  const auto all = [](int64_t) JAXGNN_INLINE { return true; };
  if (early_stop >= 0) {
    const float threshold = EarlyThreshold(x, dim, k, by_magnitude, early_stop, bounded);
    for (int64_t i = 0; i < dim; ++i) flag[i] = bounded[i] >= threshold;
    Compact(x, flags, k, all, values, columns, column_bytes);
    return;
  }
  for (int64_t i = 0; i < dim; ++i) rank[i] = Rank(x[i], by_magnitude);
  Cut cut = ExactCut(rank, dim, k, std::is_same_v<T, float>);
  if (cut.ties == 0) {
    for (int64_t i = 0; i < dim; ++i) flag[i] = rank[i] > cut.threshold;
    Compact(x, flags, k, all, values, columns, column_bytes);
    return;
  }
  for (int64_t i = 0; i < dim; ++i) flag[i] = rank[i] >= cut.threshold;
  const auto above_or_first = [&](int64_t i) JAXGNN_INLINE {
    return rank[i] > cut.threshold || cut.ties-- > 0;
  };
  Compact(x, flags, k, above_or_first, values, columns, column_bytes);
}

ffi::Error Maxk(ffi::ThreadPool pool, ffi::AnyBuffer x, bool by_magnitude, int64_t early_stop,
                ffi::Result<ffi::AnyBuffer> values, ffi::Result<ffi::AnyBuffer> columns) {
  const int64_t dim = x.dimensions().back(), k = values->dimensions().back();
  const int64_t rows = CountRows(x.dimensions());
  const ffi::DataType column = columns->element_type();
  if (!IsColumn(column)) return UnsupportedType("column ids", column);
  const int64_t column_bytes = ffi::ByteWidth(column);
  return SwitchAnyFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* in = static_cast<const T*>(x.untyped_data());
    T* out_values = static_cast<T*>(values->untyped_data());
    char* out_columns = static_cast<char*>(columns->untyped_data());
    ParallelFor(pool, (rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
      Scratch& scratch = Scratch::Get(dim);
      int32_t* rank = scratch.ranks.data();
      float* bounded = scratch.bounded.data();
      uint64_t* flags = scratch.flags.data();
      WithAvx2([&]() JAXGNN_INLINE {
        const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
        for (int64_t row = task * kRowsPerTask; row < end; ++row) {
          MaxkRow(in + row * dim, dim, k, by_magnitude, early_stop, rank, bounded, flags,
                  out_values + row * k, out_columns + row * k * column_bytes, column_bytes);
        }
      });
    });
    return ffi::Error::Success();
  });
}

ffi::Error Todense(ffi::ThreadPool pool, ffi::AnyBuffer values, ffi::AnyBuffer columns,
                   ffi::Result<ffi::AnyBuffer> dense) {
  const Batch batch(dense->dimensions(), 1);
  const int64_t dim = dense->dimensions().back(), k = values.dimensions().back();
  return SwitchFloatBits(values.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      ForRows(pool, batch.size(), [&](int64_t row) JAXGNN_INLINE {
        const T* value = batch.Item<const T>(values, row);
        const Column* column = batch.Item<const Column>(columns, row);
        T* out = static_cast<T*>(dense->untyped_data()) + row * dim;
        for (int64_t i = 0; i < dim; ++i) out[i] = T{};
        for (int64_t i = 0; i < k; ++i) {
          if (column[i] < dim) out[column[i]] = value[i];
        }
      });
      return ffi::Error::Success();
    });
  });
}

ffi::Error GatherColumns(ffi::ThreadPool pool, ffi::AnyBuffer dense, ffi::AnyBuffer columns,
                         ffi::Result<ffi::AnyBuffer> values) {
  const Batch batch(values->dimensions(), 1);
  const int64_t k = values->dimensions().back(), dim = dense.dimensions().back();
  return SwitchFloatBits(values->element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      ForRows(pool, batch.size(), [&](int64_t row) JAXGNN_INLINE {
        const T* in = batch.Item<const T>(dense, row);
        const Column* column = batch.Item<const Column>(columns, row);
        T* out = static_cast<T*>(values->untyped_data()) + row * k;
        for (int64_t i = 0; i < k; ++i) out[i] = column[i] < dim ? in[column[i]] : T{};
      });
      return ffi::Error::Success();
    });
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk, jaxgnn::Maxk,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Attr<bool>("by_magnitude")
                                  .Attr<int64_t>("early_stop")   // steps, negative for exact
                                  .Ret<xla::ffi::AnyBuffer>()    // values
                                  .Ret<xla::ffi::AnyBuffer>());  // columns

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_todense, jaxgnn::Todense,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // values
                                  .Arg<xla::ffi::AnyBuffer>()  // columns
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_gather_columns, jaxgnn::GatherColumns,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // dense rows
                                  .Arg<xla::ffi::AnyBuffer>()  // columns
                                  .Ret<xla::ffi::AnyBuffer>());

#pragma GCC visibility pop
