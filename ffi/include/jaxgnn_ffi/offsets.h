// Positions of edges as int32 or int64, told apart where they are read. A template argument would
// double what is compiled, and a row reads one or two of them.
#pragma once

#include <cstdint>

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/number.h"

namespace jaxgnn {

struct Offsets {
  const void* data = nullptr;
  bool wide = false;

  // Those of a batch member; null if the buffer is empty.
  static Offsets Of(const Batch& batch, const xla::ffi::AnyBuffer& buffer, int64_t member) {
    const bool wide = buffer.element_type() == xla::ffi::S64;
    if (wide) return {batch.Item<const int64_t>(buffer, member), true};
    return {batch.Item<const int32_t>(buffer, member), false};
  }

  JAXGNN_INLINE inline int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }

  JAXGNN_INLINE inline explicit operator bool() const { return data != nullptr; }
};

inline bool AreOffsets(xla::ffi::DataType type) {
  return type == xla::ffi::S32 || type == xla::ffi::S64;
}

}  // namespace jaxgnn
