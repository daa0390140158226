// Where a CUDA kernel finds the row of an operand, when operands carry batch dimensions of
// vmap_method="expand_dims": a plain struct that goes to the device by value.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace jaxgnn {

struct RowMap {
  static constexpr int kMaxRank = 8;
  int rank = 0;
  bool identity = true;            // rows of the operand are rows of the result
  int64_t sizes[kMaxRank] = {};    // of the result
  int64_t strides[kMaxRank] = {};  // of the operand, in rows; zero where it is shared

  // For an operand whose dimensions but the last match those of the result or are one.
  static bool Make(xla::ffi::Span<const int64_t> result, xla::ffi::Span<const int64_t> operand,
                   RowMap* map) {
    map->rank = static_cast<int>(result.size()) - 1;
    if (map->rank > kMaxRank || operand.size() != result.size()) return false;
    int64_t stride = 1;
    for (int i = map->rank - 1; i >= 0; --i) {
      map->sizes[i] = result[i];
      map->strides[i] = operand[i] == 1 ? 0 : stride;
      map->identity = map->identity && operand[i] == result[i];
      stride *= operand[i];
    }
    return true;
  }

#ifdef __CUDACC__
  __device__ int64_t Row(int64_t row) const {
    if (identity) return row;
    int64_t found = 0;
    for (int i = rank - 1; i >= 0; --i) {
      found += row % sizes[i] * strides[i];
      row /= sizes[i];
    }
    return found;
  }
#endif
};

}  // namespace jaxgnn
