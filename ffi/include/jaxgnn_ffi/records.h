// Compressed rows as the k-sparse CUDA kernel reads them.
#pragma once

#include "jaxgnn_ffi/warp.h"

namespace jaxgnn {

// How the forward kernel wants a compressed row. `lanes` lanes share it; each owns `blocks` blocks
// of chunks * entries entries. Which entry goes to which lane is free, and chosen so that the lanes
// meet different banks of shared memory: those of lane l should have columns that are l modulo
// `lanes`. All but `blocks` are powers of two.
struct RecordShape {
  int lanes, chunks, entries, blocks, k, dim;

  JAXGNN_INLINE int PerBlock() const { return chunks * entries; }
  JAXGNN_INLINE int PerLane() const { return blocks * PerBlock(); }
  JAXGNN_INLINE int Size() const { return PerLane() * lanes; }
  // Slots of a lane that hold real entries; those behind them are padding.
  JAXGNN_INLINE int Capacity(int lane) const {
    const int padding = Size() - k;
    return PerLane() - padding / lanes - (lane < padding % lanes);
  }
};

template <int kLanes, int kChunks, int kEntries>
struct Shape {
  static constexpr int lanes = kLanes, chunks = kChunks, entries = kEntries;
};

// Where a slot of a lane lies in a record: values of a chunk together for all lanes, ids of a block
// for each lane.
template <typename S>
struct RecordPlace {
  static __device__ __forceinline__ int Value(int lane, int slot) {
    return (slot / S::entries * S::lanes + lane) * S::entries + slot % S::entries;
  }
  static __device__ __forceinline__ int Id(int lane, int slot) {
    constexpr int kPerBlock = S::chunks * S::entries;
    return (slot / kPerBlock * S::lanes + lane) * kPerBlock + slot % kPerBlock;
  }
};

// A warp a row: places the entries, first those that find room in the lane of their column, then
// the others in the room that is left. Padding has value zero and a column of its lane's own,
// behind the real ones. `scale` multiplies float values; narrower ones would be rounded twice.
template <typename S, typename T, typename Column, typename Id>
__global__ void __launch_bounds__(256)
    MakeRecords(RecordShape shape, const T* values, const Column* columns, const float* scale,
                int64_t rows, T* record_values, Id* record_ids) {
  // With as many lanes as banks there is nothing to choose.
  constexpr int kClasses = S::lanes == kWarp ? 1 : S::lanes;
  const int lane = threadIdx.x;
  const unsigned before = (1u << lane) - 1;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows;
       row += int64_t{gridDim.x} * blockDim.y) {
    const T* value = values + row * shape.k;
    const Column* column = columns + row * shape.k;
    const float factor = scale ? scale[row] : 1.0f;
    T* out_values = record_values + row * shape.Size();
    Id* out_ids = record_ids + row * shape.Size();

    // Entries are dealt with in batches of a warp's width; most rows are one, read once.
    const int first_column = lane < shape.k ? column[lane] : 0;
    const T first_value = lane < shape.k ? value[lane] : T{0};
    // Which lanes hold an entry of each class.
    unsigned members[kClasses];
    auto vote = [&](int i) {
      const int own = i < shape.k ? (i < kWarp ? first_column : column[i]) % kClasses : -1;
#pragma unroll
      for (int c = 0; c < kClasses; ++c) members[c] = __ballot_sync(kAllLanes, own == c);
      return own;
    };
    int wanted[kClasses] = {}, room[kClasses];
    int to = -1;
    for (int i = lane; i - lane < shape.k; i += kWarp) {
      to = vote(i);
#pragma unroll
      for (int c = 0; c < kClasses; ++c) wanted[c] += __popc(members[c]);
    }
#pragma unroll
    for (int c = 0; c < kClasses; ++c) room[c] = max(shape.Capacity(c) - wanted[c], 0);

    int seen[kClasses] = {}, homeless = 0;
    for (int i = lane; i - lane < shape.k; i += kWarp) {
      const bool real = i < shape.k;
      if (shape.k > kWarp) to = vote(i);
      unsigned mine = 0;
      int first = 0, capacity = 0;
#pragma unroll
      for (int c = 0; c < kClasses; ++c) {
        if (to != c) continue;
        mine = members[c];
        first = seen[c];
        capacity = kClasses == 1 ? shape.k : shape.Capacity(c);
      }
      int slot = first + __popc(mine & before);
      const bool fits = slot < capacity;
      if (shape.k > kWarp) {
#pragma unroll
        for (int c = 0; c < kClasses; ++c) seen[c] += __popc(members[c]);
      }
      const unsigned waiting = __ballot_sync(kAllLanes, real && !fits);
      int rank = homeless + __popc(waiting & before);
      homeless += __popc(waiting);
#pragma unroll
      for (int c = 0; c < kClasses; ++c) {
        if (!fits && rank >= 0 && rank < room[c]) {
          to = c;
          slot = shape.Capacity(c) - room[c] + rank;
        }
        rank -= room[c];
      }
      if (kClasses == 1) {
        to = i % S::lanes;
        slot = i / S::lanes;
      }
      if (real) {
        T entry = i < kWarp ? first_value : value[i];
        if constexpr (std::is_same_v<T, float>) entry *= factor;
        out_values[RecordPlace<S>::Value(to, slot)] = entry;
        out_ids[RecordPlace<S>::Id(to, slot)] =
            static_cast<Id>(i < kWarp ? first_column : column[i]);
      }
    }
    for (int i = lane; i < shape.Size() - shape.k; i += kWarp) {
      // Behind the real entries, each lane's or where lanes have no say, the record's.
      const int to = kClasses == 1 ? (shape.k + i) % S::lanes : i % S::lanes;
      const int slot =
          kClasses == 1 ? (shape.k + i) / S::lanes : shape.PerLane() - 1 - i / S::lanes;
      out_values[RecordPlace<S>::Value(to, slot)] = T{0};
      out_ids[RecordPlace<S>::Id(to, slot)] = static_cast<Id>(shape.dim + to);
    }
  }
}

template <typename S, typename T, typename Id>
void LaunchRecords(cudaStream_t stream, const RecordShape& shape, const T* values,
                   const void* columns, xla::ffi::DataType column, const float* scale, int64_t rows,
                   T* record_values, Id* record_ids) {
  constexpr int kWarps = 8;
  const unsigned blocks = StridingBlocks(rows, kWarps);
  const dim3 block(kWarp, kWarps);
  if (column == xla::ffi::U8) {
    MakeRecords<S><<<blocks, block, 0, stream>>>(shape, values,
                                                 static_cast<const uint8_t*>(columns), scale, rows,
                                                 record_values, record_ids);
  } else {
    MakeRecords<S><<<blocks, block, 0, stream>>>(shape, values,
                                                 static_cast<const uint16_t*>(columns), scale, rows,
                                                 record_values, record_ids);
  }
}

}  // namespace jaxgnn
