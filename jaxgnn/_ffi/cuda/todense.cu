// Spreads kept values out over rows of zeros; `T` is their type, `Column` that of their columns.
#include "rows.h"

extern "C" __global__ void todense(PARAMETERS) {
  for (int64_t row = FirstRow(); row < rows; row += RowStride()) {
    T* out = dense + row * dim;
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) out[i] = T{0};
    // Orders the zeros before the values that other lanes write over them.
    __syncwarp();
    const T* value = values + row * k;
    const Column* column = columns + row * k;
    for (int64_t i = threadIdx.x; i < k; i += kWarp) out[column[i]] = value[i];
  }
}
