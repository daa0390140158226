// The k largest entries of each row on the GPU, and moves between dense and compressed rows; see
// jaxgnn/ops/reference/maxk.py.
#include "jaxgnn_ffi/row_map.h"
#include "jaxgnn_ffi/warp.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

constexpr int kWarpsPerBlock = 8;

// A warp a row, for kernels that keep nothing from row to row.
struct RowLaunch {
  static constexpr int64_t kMaxBlocks = 1 << 20;
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

// -- maxk ------------------------------------------------------------------------------------

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
template <typename T, int kOwn, bool kWide>
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
  __device__ __forceinline__ bool Load(const T* row, bool by_magnitude) {
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
      ranks[i] = (by_magnitude ? fabsf(x) : x) + 0.0f;
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
    *least = __reduce_min_sync(kAllLanes, Key(low));
    *most = __reduce_max_sync(kAllLanes, Key(high));
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
    return static_cast<int>(__reduce_add_sync(kAllLanes, (counts & 0xffffu) + (counts >> 16)));
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
      count = __reduce_add_sync(kAllLanes, count);
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
template <typename T, typename Column, int kOwn, bool kWide>
__global__ void __launch_bounds__(256) MaxkKernel(const T* x, int64_t rows, int dim, int k,
                                                  bool by_magnitude, T* values, Column* columns) {
  extern __shared__ uint32_t shared[];
  Column* kept = reinterpret_cast<Column*>(shared) + threadIdx.y * k;
  MaxkRow<T, kOwn, kWide> in;
  in.lane = threadIdx.x;
  in.dim = dim;
  Levels levels;
  for (int64_t row = FirstRow(); row < rows; row += RowStride()) {
    const bool finite = in.Load(x + row * dim, by_magnitude);
    const uint32_t mask = in.Keep(k, finite, &levels);
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

template <typename T, typename Column, int kOwn, bool kWide>
void LaunchMaxk(cudaStream_t stream, const ffi::AnyBuffer& x, int64_t k, bool by_magnitude,
                void* values, void* columns) {
  const int64_t dim = x.dimensions().back(), rows = x.element_count() / dim;
  const int bytes = static_cast<int>(k * sizeof(Column) * kWarpsPerBlock + 3) / 4 * 4;
  MaxkKernel<T, Column, kOwn, kWide>
      <<<StridingBlocks(rows, kWarpsPerBlock), dim3(kWarp, kWarpsPerBlock), bytes, stream>>>(
          static_cast<const T*>(x.untyped_data()), rows, static_cast<int>(dim), static_cast<int>(k),
          by_magnitude, static_cast<T*>(values), static_cast<Column*>(columns));
}

// A warp holds up to 32 columns a lane; wide loads where no lane's columns are cut.
template <typename T, typename Column, int kOwn = 4>
bool SwitchRow(int64_t dim, cudaStream_t stream, const ffi::AnyBuffer& x, int64_t k,
               bool by_magnitude, void* values, void* columns) {
  if constexpr (kOwn > 32) {
    return false;
  } else {
    if (dim > kOwn * kWarp) {
      return SwitchRow<T, Column, 2 * kOwn>(dim, stream, x, k, by_magnitude, values, columns);
    }
    const auto launch =
        dim % kOwn == 0 ? LaunchMaxk<T, Column, kOwn, true> : LaunchMaxk<T, Column, kOwn, false>;
    launch(stream, x, k, by_magnitude, values, columns);
    return true;
  }
}

ffi::Error Maxk(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> values,
                ffi::Result<ffi::AnyBuffer> columns, bool by_magnitude) {
  const int64_t dim = x.dimensions().back(), k = values->dimensions().back();
  if (x.element_count() == 0) return ffi::Error::Success();
  return SwitchAnyFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const auto launch =
        columns->element_type() == ffi::U8 ? SwitchRow<T, uint8_t> : SwitchRow<T, uint16_t>;
    if (!launch(dim, stream, x, k, by_magnitude, values->untyped_data(), columns->untyped_data())) {
      return ffi::Error::InvalidArgument("jaxgnn: maxk: at most 1024 columns");
    }
    return LastError();
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

// Why this library has nothing that runs on the current device, or null: it was compiled for other
// architectures, or with a toolkit that the driver does not know.
extern "C" const char* jaxgnn_cuda_problem() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, jaxgnn::TodenseKernel<uint32_t, uint8_t>);
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // or a later launch would report it
  return cudaGetErrorString(error);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk, jaxgnn::Maxk,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Ret<xla::ffi::AnyBuffer>()  // values
                                  .Ret<xla::ffi::AnyBuffer>()  // columns
                                  .Attr<bool>("by_magnitude"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

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
