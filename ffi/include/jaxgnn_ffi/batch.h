// Operands with leading batch dimensions, as vmap_method="expand_dims" passes them: each operand
// has the same number of them, and size one where it is shared by the batch.
#pragma once

#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jaxgnn {

using Dimensions = xla::ffi::Span<const int64_t>;

class Batch {
 public:
  // `rank` is that of one item of the result, the rest of `result` are batch dimensions.
  Batch(Dimensions result, size_t rank)
      : sizes_(result.begin(), result.begin() + (result.size() - rank)) {}

  int64_t size() const {
    int64_t product = 1;
    for (int64_t size : sizes_) product *= size;
    return product;
  }

  size_t rank() const { return sizes_.size(); }

  // Elements between the start of an operand and its item for batch member `member`.
  int64_t Offset(Dimensions operand, int64_t member) const {
    int64_t item = 1;
    for (size_t i = rank(); i < operand.size(); ++i) item *= operand[i];
    int64_t offset = 0;
    for (size_t i = rank(); i-- > 0;) {
      if (operand[i] != 1) {
        offset += (member % sizes_[i]) * item;
        item *= operand[i];
      }
      member /= sizes_[i];
    }
    return offset;
  }

  // The item for `member` of a buffer of any type.
  template <typename Buffer>
  const void* Bytes(const Buffer& buffer, int64_t member) const {
    return static_cast<const char*>(buffer.untyped_data()) +
           Offset(buffer.dimensions(), member) * xla::ffi::ByteWidth(buffer.element_type());
  }

  // The item for `member` of a buffer of T; null if items are empty, which stands for None.
  template <typename T, typename Buffer>
  T* Item(Buffer&& buffer, int64_t member) const {
    if (buffer.element_count() == 0) return nullptr;
    return static_cast<T*>(buffer.untyped_data()) + Offset(buffer.dimensions(), member);
  }

 private:
  std::vector<int64_t> sizes_;
};

}  // namespace jaxgnn
