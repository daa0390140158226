// Compressed rows as the k-sparse kernel reads them. `kLanes` lanes share a row; each owns `blocks`
// blocks of kChunks * kEntries entries. Which entry goes to which lane is free, and chosen so that
// the lanes meet different banks of shared memory: those of lane l should have columns that are l
// modulo `kLanes`. All but `blocks` are powers of two.
#include "warp.h"

struct RecordShape {
  int blocks, k, dim;

  __device__ int PerLane() const { return blocks * kChunks * kEntries; }
  __device__ int Size() const { return PerLane() * kLanes; }
  // Slots of a lane that hold real entries; those behind them are padding.
  __device__ int Capacity(int lane) const {
    const int padding = Size() - k;
    return PerLane() - padding / kLanes - (lane < padding % kLanes);
  }
};

// Where a slot of a lane lies in a record: values of a chunk together for all lanes, ids of a block
// for each lane.
struct RecordPlace {
  static __device__ __forceinline__ int Value(int lane, int slot) {
    return (slot / kEntries * kLanes + lane) * kEntries + slot % kEntries;
  }
  static __device__ __forceinline__ int Id(int lane, int slot) {
    constexpr int kPerBlock = kChunks * kEntries;
    return (slot / kPerBlock * kLanes + lane) * kPerBlock + slot % kPerBlock;
  }
};

// Narrower values would be rounded twice.
__device__ __forceinline__ void Scale(float& value, float factor) { value *= factor; }
__device__ __forceinline__ void Scale(BFloat16&, float) {}

// A warp a row: places the entries, first those that find room in the lane of their column, then
// the others in the room that is left. Padding has value zero and a column of its lane's own,
// behind the real ones. `scale` multiplies float values; narrower ones would be rounded twice.
extern "C" __global__ void __launch_bounds__(256) make_records(PARAMETERS) {
  const RecordShape shape{static_cast<int>(blocks), static_cast<int>(k), static_cast<int>(dim)};
  // With as many lanes as banks there is nothing to choose.
  constexpr int kClasses = kLanes == kWarp ? 1 : kLanes;
  const int lane = threadIdx.x;
  const unsigned before = (1u << lane) - 1;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < num_cols;
       row += int64_t{gridDim.x} * blockDim.y) {
    const T* value = values + row * shape.k;
    const Column* column = columns + row * shape.k;
    const float factor = kScaledRecords ? col_scale[row] : 1.0f;
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
        to = i % kLanes;
        slot = i / kLanes;
      }
      if (real) {
        T entry = i < kWarp ? first_value : value[i];
        Scale(entry, factor);
        out_values[RecordPlace::Value(to, slot)] = entry;
        out_ids[RecordPlace::Id(to, slot)] = static_cast<Id>(i < kWarp ? first_column : column[i]);
      }
    }
    for (int i = lane; i < shape.Size() - shape.k; i += kWarp) {
      // Behind the real entries, each lane's or where lanes have no say, the record's.
      const int to = kClasses == 1 ? (shape.k + i) % kLanes : i % kLanes;
      const int slot = kClasses == 1 ? (shape.k + i) / kLanes : shape.PerLane() - 1 - i / kLanes;
      out_values[RecordPlace::Value(to, slot)] = T{0};
      out_ids[RecordPlace::Id(to, slot)] = static_cast<Id>(shape.dim + to);
    }
  }
}
