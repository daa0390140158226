// Rows of irreps with the channels of each component side by side.
//
// An entry of irreps is stored as [channels, components]. Kernels whose loops run over channels
// read a copy that is [components, padded channels]: whole vectors, with zeros behind the last
// channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/buffer.h"
#include "jaxgnn_ffi/lanes.h"
#include "jaxgnn_ffi/parallel.h"

namespace jaxgnn {

// Numbers side by side: 64 bytes, in which sums have a fixed order (see lanes.h).
template <typename Number>
struct VectorOf {
  static constexpr int kWidth = 64 / sizeof(Number);
  typedef Number type __attribute__((vector_size(64)));
};
template <typename Number>
using Vector = typename VectorOf<Number>::type;
template <typename Number>
constexpr int kWidth = VectorOf<Number>::kWidth;

// The number that arithmetic uses for a storage type: double for double, else float.
template <typename T>
using NumberOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
JAXGNN_INLINE inline NumberOf<T> ToNumber(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return ToFloat(value);
  }
}

template <typename T>
JAXGNN_INLINE inline T FromNumber(NumberOf<T> value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return FromFloat<T>(value);
  }
}

template <typename T>
JAXGNN_INLINE inline void LoadVector(const T* from, Vector<NumberOf<T>>& to) {
  if constexpr (std::is_same_v<T, double>) {
    std::memcpy(&to, from, sizeof(to));
  } else {
    LoadLanes(from, to);
  }
}

// The first `count` numbers, at most a vector of them, and zeros.
template <typename T>
JAXGNN_INLINE inline void LoadSome(const T* from, int64_t count, Vector<NumberOf<T>>& to) {
  if (count >= kWidth<NumberOf<T>>) {
    LoadVector(from, to);
    return;
  }
  NumberOf<T> numbers[kWidth<NumberOf<T>>] = {};
  for (int64_t i = 0; i < count; ++i) numbers[i] = ToNumber(from[i]);
  std::memcpy(&to, numbers, sizeof(to));
}

// Stores the first `count` numbers, at most a vector of them.
template <typename T>
JAXGNN_INLINE inline void StoreSome(const Vector<NumberOf<T>>& from, int64_t count, T* to) {
  constexpr int64_t kAll = kWidth<NumberOf<T>>;
  if (std::is_same_v<T, NumberOf<T>> && count >= kAll) {
    std::memcpy(static_cast<void*>(to), &from, sizeof(from));
    return;
  }
  NumberOf<T> numbers[kAll];
  std::memcpy(numbers, &from, sizeof(from));
  for (int64_t i = 0; i < std::min(count, kAll); ++i) to[i] = FromNumber<T>(numbers[i]);
}

template <typename Number>
JAXGNN_INLINE inline Number SumOfVector(const Vector<Number>& vector) {
  Number sums[kWidth<Number>];
  std::memcpy(sums, &vector, sizeof(vector));
  for (int half = kWidth<Number> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Where the entries of a row are, in storage and in the padded copy.
class Components {
 public:
  // `lanes` is the width of a vector, `stored` that of a row in storage.
  Components(int64_t lanes, int64_t stored) : lanes_(lanes), stored_(stored) {}

  // Adds an entry, unless it is there, and returns where it starts in the copy.
  int64_t Add(int64_t start, int64_t channels, int64_t dim) {
    for (const Part& part : parts_) {
      if (part.start == start) return part.padded_start;
    }
    parts_.push_back({start, channels, dim, width_, Padded(channels)});
    width_ += dim * Padded(channels);
    covered_ += dim * channels;
    return parts_.back().padded_start;
  }

  int64_t Padded(int64_t channels) const { return (channels + lanes_ - 1) / lanes_ * lanes_; }
  int64_t width() const { return width_; }
  int64_t stored() const { return stored_; }

  template <typename T>
  void Read(const T* row, NumberOf<T>* padded) const {
    std::fill(padded, padded + width_, NumberOf<T>{0});
    for (const Part& part : parts_) {
      for (int64_t u = 0; u < part.channels; ++u) {
        const T* from = row + part.start + u * part.dim;
        NumberOf<T>* to = padded + part.padded_start + u;
        for (int64_t c = 0; c < part.dim; ++c) to[c * part.padded] = ToNumber(from[c]);
      }
    }
  }

  // Entries that were not added are stored as zeros.
  template <typename T>
  void Write(const NumberOf<T>* padded, T* row) const {
    if (covered_ < stored_) std::fill(row, row + stored_, FromNumber<T>(NumberOf<T>{0}));
    for (const Part& part : parts_) {
      for (int64_t u = 0; u < part.channels; ++u) {
        T* to = row + part.start + u * part.dim;
        const NumberOf<T>* from = padded + part.padded_start + u;
        for (int64_t c = 0; c < part.dim; ++c) to[c] = FromNumber<T>(from[c * part.padded]);
      }
    }
  }

 private:
  struct Part {
    int64_t start, channels, dim, padded_start, padded;
  };
  int64_t lanes_, stored_, width_ = 0, covered_ = 0;
  std::vector<Part> parts_;
};

// The padded copies of all rows of an operand, of all batch members.
template <typename T>
class PaddedRows {
 public:
  PaddedRows(xla::ffi::ThreadPool pool, const Batch& batch, const xla::ffi::AnyBuffer& operand,
             const Components& components)
      : batch_(batch), operand_(operand), components_(components) {
    constexpr int64_t kRowsPerTask = 64;
    const int64_t stored = components.stored(), width = components.width();
    const int64_t rows = static_cast<int64_t>(operand.element_count()) / stored;
    const T* from = static_cast<const T*>(operand.untyped_data());
    numbers_.Resize(rows * width);
    ParallelFor(pool, (rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
      for (int64_t row = task * kRowsPerTask; row < end; ++row) {
        components.Read(from + row * stored, numbers_.data() + row * width);
      }
    });
  }

  const NumberOf<T>* Item(int64_t member) const {
    const int64_t offset = batch_.Offset(operand_.dimensions(), member);
    return numbers_.data() + offset / components_.stored() * components_.width();
  }

 private:
  const Batch& batch_;
  const xla::ffi::AnyBuffer& operand_;
  const Components& components_;
  Buffer<NumberOf<T>> numbers_;
};

}  // namespace jaxgnn
