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

// Calls `body(row)` for all rows in parallel, compiled for the widest vectors.
template <typename Body>
void ForRows(ffi::ThreadPool pool, int64_t rows, const Body& body) {
  ParallelFor(pool, (rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    WithWidestIsa([&]() JAXGNN_INLINE {
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

// Bisects over the integers for the k-th largest rank.
JAXGNN_INLINE inline Cut ExactCut(const int32_t* rank, int64_t dim, int64_t k) {
  int32_t smallest = rank[0], largest = rank[0];
  for (int64_t i = 1; i < dim; ++i) {
    smallest = std::min(smallest, rank[i]);
    largest = std::max(largest, rank[i]);
  }
  // At least k entries reach `low`; fewer than k reach `high`.
  int64_t low = smallest, high = static_cast<int64_t>(largest) + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
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

// Writes the kept entries in column order. The buffers have a spare entry, so that each column is
// written without asking, and only a kept one moves on.
template <typename T, typename Column, typename Keep>
JAXGNN_INLINE inline void Compact(const T* x, int64_t dim, int64_t k, const Keep& keep,
                                  T* kept_values, Column* kept_columns, T* values,
                                  Column* columns) {
  int64_t kept = 0;
  for (int64_t i = 0; i < dim && kept < k; ++i) {
    kept_values[kept] = x[i];
    kept_columns[kept] = static_cast<Column>(i);
    kept += keep(i);
  }
  for (int64_t i = 0; i < k; ++i) {
    values[i] = kept_values[i];
    columns[i] = kept_columns[i];
  }
}

template <typename T, typename Column>
struct Scratch {
  std::vector<int32_t> ranks;
  std::vector<float> bounded;
  std::vector<T> values;
  std::vector<Column> columns;

  static Scratch& Get(int64_t dim, int64_t k) {
    static thread_local Scratch scratch;
    scratch.ranks.resize(dim);
    scratch.bounded.resize(dim);
    scratch.values.resize(k + 1);
    scratch.columns.resize(k + 1);
    return scratch;
  }
};

template <typename T, typename Column>
JAXGNN_INLINE inline void MaxkRow(const T* x, int64_t dim, int64_t k, bool by_magnitude,
                                  int64_t early_stop, int32_t* rank, float* bounded,
                                  T* kept_values, Column* kept_columns, T* values,
                                  Column* columns) {
  if (early_stop >= 0) {
    const float threshold = EarlyThreshold(x, dim, k, by_magnitude, early_stop, bounded);
    const auto keep = [&](int64_t i) JAXGNN_INLINE { return bounded[i] >= threshold; };
    Compact(x, dim, k, keep, kept_values, kept_columns, values, columns);
    return;
  }
  for (int64_t i = 0; i < dim; ++i) rank[i] = Rank(x[i], by_magnitude);
  Cut cut = ExactCut(rank, dim, k);
  if (cut.ties == 0) {
    const auto keep = [&](int64_t i) JAXGNN_INLINE { return rank[i] > cut.threshold; };
    Compact(x, dim, k, keep, kept_values, kept_columns, values, columns);
  } else {
    const auto keep = [&](int64_t i) JAXGNN_INLINE {
      return rank[i] > cut.threshold || (rank[i] == cut.threshold && cut.ties-- > 0);
    };
    Compact(x, dim, k, keep, kept_values, kept_columns, values, columns);
  }
}

ffi::Error Maxk(ffi::ThreadPool pool, ffi::AnyBuffer x, bool by_magnitude, int64_t early_stop,
                ffi::Result<ffi::AnyBuffer> values, ffi::Result<ffi::AnyBuffer> columns) {
  const int64_t dim = x.dimensions().back(), k = values->dimensions().back();
  const int64_t rows = CountRows(x.dimensions());
  return SwitchAnyFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    return SwitchColumn(columns->element_type(), [&](auto column) {
      using Column = typename decltype(column)::type;
      const T* in = static_cast<const T*>(x.untyped_data());
      T* out_values = static_cast<T*>(values->untyped_data());
      Column* out_columns = static_cast<Column*>(columns->untyped_data());
      ParallelFor(pool, (rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
        auto& scratch = Scratch<T, Column>::Get(dim, k);
        int32_t* rank = scratch.ranks.data();
        float* bounded = scratch.bounded.data();
        T* kept_values = scratch.values.data();
        Column* kept_columns = scratch.columns.data();
        WithWidestIsa([&]() JAXGNN_INLINE {
          const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
          for (int64_t row = task * kRowsPerTask; row < end; ++row) {
            MaxkRow(in + row * dim, dim, k, by_magnitude, early_stop, rank, bounded, kept_values,
                    kept_columns, out_values + row * k, out_columns + row * k);
          }
        });
      });
      return ffi::Error::Success();
    });
  });
}

ffi::Error Todense(ffi::ThreadPool pool, ffi::AnyBuffer values, ffi::AnyBuffer columns,
                   ffi::Result<ffi::AnyBuffer> dense) {
  const Batch batch(dense->dimensions(), 1);
  const int64_t dim = dense->dimensions().back(), k = values.dimensions().back();
  return SwitchAnyFloat(values.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      ForRows(pool, batch.size(), [&](int64_t row) JAXGNN_INLINE {
        const T* value = batch.Item<const T>(values, row);
        const Column* column = batch.Item<const Column>(columns, row);
        T* out = static_cast<T*>(dense->untyped_data()) + row * dim;
        for (int64_t i = 0; i < dim; ++i) out[i] = T{};
        for (int64_t i = 0; i < k; ++i) out[column[i]] = value[i];
      });
      return ffi::Error::Success();
    });
  });
}

ffi::Error GatherColumns(ffi::ThreadPool pool, ffi::AnyBuffer dense, ffi::AnyBuffer columns,
                         ffi::Result<ffi::AnyBuffer> values) {
  const Batch batch(values->dimensions(), 1);
  const int64_t k = values->dimensions().back();
  return SwitchAnyFloat(values->element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      using Column = typename decltype(column_type)::type;
      ForRows(pool, batch.size(), [&](int64_t row) JAXGNN_INLINE {
        const T* in = batch.Item<const T>(dense, row);
        const Column* column = batch.Item<const Column>(columns, row);
        T* out = static_cast<T*>(values->untyped_data()) + row * k;
        for (int64_t i = 0; i < k; ++i) out[i] = in[column[i]];
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
                                  .Attr<int64_t>("early_stop")  // steps, negative for exact
                                  .Ret<xla::ffi::AnyBuffer>()   // values
                                  .Ret<xla::ffi::AnyBuffer>()); // columns

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
