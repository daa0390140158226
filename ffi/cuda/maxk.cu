// Moves between dense and compressed rows on the GPU; see jaxgnn/ops/reference/maxk.py.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "jaxgnn_ffi/number.h"
#include "jaxgnn_ffi/row_map.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

constexpr int kWarp = 32;
constexpr int kWarpsPerBlock = 8;
constexpr int64_t kMaxBlocks = 1 << 20;

// A warp a row, blocks striding over the rows.
struct RowLaunch {
  dim3 grid, block{kWarp, kWarpsPerBlock};

  explicit RowLaunch(int64_t rows)
      : grid(static_cast<unsigned>(
            std::min<int64_t>((rows + kWarpsPerBlock - 1) / kWarpsPerBlock, kMaxBlocks))) {}
};

__device__ int64_t FirstRow() { return int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.y; }
__device__ int64_t RowStride() { return int64_t{gridDim.x} * kWarpsPerBlock; }

// The bits of T are moved, never looked at, so an integer of its size stands for it.
template <typename T, typename Column>
__global__ void TodenseKernel(const T* values, RowMap value_rows, const Column* columns,
                              RowMap column_rows, T* dense, int64_t rows, int64_t dim, int64_t k) {
  for (int64_t row = FirstRow(); row < rows; row += RowStride()) {
    T* out = dense + row * dim;
    for (int64_t i = threadIdx.x; i < dim; i += kWarp) out[i] = T{0};
    // Orders the zeros before the values that other lanes write over them.
    __syncwarp();
    const T* value = values + value_rows.Row(row) * k;
    const Column* column = columns + column_rows.Row(row) * k;
    for (int64_t i = threadIdx.x; i < k; i += kWarp) out[column[i]] = value[i];
  }
}

template <typename T, typename Column>
__global__ void GatherColumnsKernel(const T* dense, RowMap dense_rows, const Column* columns,
                                    RowMap column_rows, T* values, int64_t rows, int64_t dim,
                                    int64_t k) {
  for (int64_t row = FirstRow(); row < rows; row += RowStride()) {
    const T* in = dense + dense_rows.Row(row) * dim;
    const Column* column = columns + column_rows.Row(row) * k;
    for (int64_t i = threadIdx.x; i < k; i += kWarp) values[row * k + i] = in[column[i]];
  }
}

template <typename Body>
ffi::Error SwitchBits(ffi::DataType type, const Body& body) {
  switch (type) {
    case ffi::F32:
      return body(Type<uint32_t>{});
    case ffi::BF16:
    case ffi::F16:
      return body(Type<uint16_t>{});
    default:
      return UnsupportedType("features", type);
  }
}

ffi::Error LastError() {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jaxgnn: ") + cudaGetErrorString(error));
}

// Reads `from` [.., width] and `columns` [.., k], writes `to`, by `launch` with the types, the maps
// of their rows, and the number of rows.
template <typename Launch>
ffi::Error ForRows(const ffi::AnyBuffer& from, const ffi::AnyBuffer& columns,
                   const ffi::AnyBuffer& to, const Launch& launch) {
  RowMap from_rows, column_rows;
  if (!RowMap::Make(to.dimensions(), from.dimensions(), &from_rows) ||
      !RowMap::Make(to.dimensions(), columns.dimensions(), &column_rows)) {
    return ffi::Error::InvalidArgument("jaxgnn: todense: at most 8 leading dimensions");
  }
  if (to.element_count() == 0) return ffi::Error::Success();
  const int64_t rows = to.element_count() / to.dimensions().back();
  return SwitchBits(from.element_type(), [&](auto type) {
    return SwitchColumn(columns.element_type(), [&](auto column_type) {
      launch(type, column_type, from_rows, column_rows, rows);
      return LastError();
    });
  });
}

ffi::Error Todense(cudaStream_t stream, ffi::AnyBuffer values, ffi::AnyBuffer columns,
                   ffi::Result<ffi::AnyBuffer> dense) {
  const int64_t dim = dense->dimensions().back(), k = values.dimensions().back();
  return ForRows(
      values, columns, *dense,
      [&](auto type, auto column_type, RowMap value_rows, RowMap column_rows, int64_t rows) {
        using T = typename decltype(type)::type;
        using Column = typename decltype(column_type)::type;
        const RowLaunch launch(rows);
        TodenseKernel<T, Column><<<launch.grid, launch.block, 0, stream>>>(
            static_cast<const T*>(values.untyped_data()), value_rows,
            static_cast<const Column*>(columns.untyped_data()), column_rows,
            static_cast<T*>(dense->untyped_data()), rows, dim, k);
      });
}

ffi::Error GatherColumns(cudaStream_t stream, ffi::AnyBuffer dense, ffi::AnyBuffer columns,
                         ffi::Result<ffi::AnyBuffer> values) {
  const int64_t dim = dense.dimensions().back(), k = values->dimensions().back();
  return ForRows(
      dense, columns, *values,
      [&](auto type, auto column_type, RowMap dense_rows, RowMap column_rows, int64_t rows) {
        using T = typename decltype(type)::type;
        using Column = typename decltype(column_type)::type;
        const RowLaunch launch(rows);
        GatherColumnsKernel<T, Column><<<launch.grid, launch.block, 0, stream>>>(
            static_cast<const T*>(dense.untyped_data()), dense_rows,
            static_cast<const Column*>(columns.untyped_data()), column_rows,
            static_cast<T*>(values->untyped_data()), rows, dim, k);
      });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_todense, jaxgnn::Todense,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::AnyBuffer>()  // values
                                  .Arg<xla::ffi::AnyBuffer>()  // columns
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_gather_columns, jaxgnn::GatherColumns,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::AnyBuffer>()  // dense rows
                                  .Arg<xla::ffi::AnyBuffer>()  // columns
                                  .Ret<xla::ffi::AnyBuffer>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});

#pragma GCC visibility pop
