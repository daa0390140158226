// Picks the entries of each row that `columns` names; `T` is their type, `Column` that of columns.
#include "rows.h"

extern "C" __global__ void gather_columns(PARAMETERS) {
  for (int64_t row = FirstRow(); row < rows; row += RowStride()) {
    const T* in = dense + row * dim;
    const Column* column = columns + row * k;
    for (int64_t i = threadIdx.x; i < k; i += kWarp) values[row * k + i] = in[column[i]];
  }
}
