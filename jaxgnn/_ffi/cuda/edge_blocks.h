// Edges grouped by block of rows (jaxgnn/graph/plan/edge_blocks.py), and the work on one of them.
// The type `Offset` is that of positions of edges.
#include "four_entries.h"

// Entries begin .. end of the block of `rows` rows, which have the places from first_row on; their
// senders count from first_sender on.
struct BlockTask {
  int64_t begin, end;
  int first_row, first_sender, rows;
};

struct EdgeBlocks {
  static constexpr int kRowBits = 9;

  const int32_t* row_order;  // or null: rows by their numbers
  const uint32_t* entries;
  const Edge* edges;  // or null: there are no weights
  const int32_t* blocks;
  const Offset *begins, *ends;
  const float *weights, *row_scale;
  int rows_per_block, senders_per_span, senders_per_tile, num_rows;

  // A task is short, so its 32-bit divisions count.
  __device__ BlockTask Task(int64_t number) const {
    const unsigned row_blocks = (num_rows - 1u) / rows_per_block + 1u, block = blocks[number];
    const unsigned span = block / row_blocks;
    const int first_row = static_cast<int>(block - span * row_blocks) * rows_per_block;
    return {begins[number], ends[number], first_row, static_cast<int>(span) * senders_per_span,
            min(rows_per_block, num_rows - first_row)};
  }

  // Number of the row at a place.
  __device__ __forceinline__ int RowAt(int place) const {
    return row_order ? row_order[place] : place;
  }

  static __device__ int RowOf(uint32_t entry) { return entry & ((1u << kRowBits) - 1); }
  static __device__ int SenderOf(uint32_t entry) { return entry >> kRowBits; }
};

// Rows of dy in shared memory. Scales are multiplied into floats; narrower types would be rounded
// twice, so theirs lie behind the rows.
struct HeldRows {
  static constexpr bool kScalesApart = !kSame<T, float>;

  T* rows;
  int dim;
  float* scales;
  bool scaled;

  // Bytes of `count` rows.
  static __device__ int64_t Bytes(int64_t count, int64_t dim) {
    return (count * dim * sizeof(T) + 15) / 16 * 16 + (kScalesApart ? count * sizeof(float) : 0);
  }

  __device__ HeldRows(void* shared, int most, int dim, bool scaled)
      : rows(static_cast<T*>(shared)),
        dim(dim),
        scales(reinterpret_cast<float*>(static_cast<char*>(shared) + Bytes(most, dim)) -
               (kScalesApart ? most : 0)),
        scaled(scaled) {}

  // The rows of `count` places. By all threads of a block, between barriers.
  __device__ __forceinline__ void Load(const EdgeBlocks& graph, const T* dy, int first_place,
                                       int count) const {
    if (dim % (16 / sizeof(T)) == 0) {
      LoadWords(graph, reinterpret_cast<const uint4*>(dy), first_place, count);
    } else {
      LoadWords(graph, dy, first_place, count);
    }
    if constexpr (kScalesApart) {
      for (int i = threadIdx.x; scaled && i < count; i += blockDim.x) {
        scales[i] = graph.row_scale[graph.RowAt(first_place + i)];
      }
    }
  }

  // Several loads in flight before the first store.
  template <typename Word>
  __device__ __forceinline__ void LoadWords(const EdgeBlocks& graph, const Word* dy,
                                            int first_place, int count) const {
    constexpr int kAhead = 4, kEntries = sizeof(Word) / sizeof(T);
    Word* to = reinterpret_cast<Word*>(rows);
    const unsigned of_row = dim / kEntries, words = count * of_row;
    for (unsigned first = threadIdx.x; first < words; first += kAhead * blockDim.x) {
      Word word[kAhead];
      float scale[kAhead];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        // Behind the end the last is read again and not stored.
        const unsigned i = min(first + s * blockDim.x, words - 1), row = i / of_row;
        const int64_t number = graph.RowAt(first_place + row);
        word[s] = LoadOnce(dy + number * of_row + (i - row * of_row));
        scale[s] = !kScalesApart && scaled ? graph.row_scale[number] : 1.0f;
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const unsigned i = first + s * blockDim.x;
        if (i >= words) continue;
        if constexpr (!kScalesApart) {
          float* entries = reinterpret_cast<float*>(&word[s]);
#pragma unroll
          for (int e = 0; e < kEntries; ++e) entries[e] *= scale[s];
        }
        to[i] = word[s];
      }
    }
  }

  static __device__ __forceinline__ uint4 LoadOnce(const uint4* from) { return __ldcs(from); }
  static __device__ __forceinline__ T LoadOnce(const T* from) { return *from; }

  __device__ __forceinline__ const T* Row(int row) const { return rows + row * dim; }
  __device__ __forceinline__ float Scale(int row) const {
    return kScalesApart && scaled ? scales[row] : 1.0f;
  }
};

// A group of kLanes lanes takes runs of a task's entries. Neighbouring entries that share their
// sender are added up before they go to its sums.
struct BlockRuns {
  using Four = FourEntries;
  static constexpr int kBatch = 4, kLongestRun = 128;

  const EdgeBlocks& graph;
  const BlockTask& task;
  const HeldRows& held;
  const Column* columns;  // of the span's first sender
  float* sums;
  int k;
  int first_held, num_held;  // rows of the block
  bool prefetches;           // sums, a batch ahead; in blocks of few rows

  // The entries `at` .. at + 3 of every sender.
  __device__ __forceinline__ void Run(int at) const {
    const int groups = blockDim.x / kLanes, group = threadIdx.x / kLanes;
    const int64_t aligned = task.begin / kBatch * kBatch;
    const int begin = static_cast<int>(task.begin - aligned);
    const int end = static_cast<int>(task.end - aligned);
    // Runs of equal length, so that no group is idle while others take the last ones.
    const int share = (end + groups - 1) / groups, rounds = (share + kLongestRun - 1) / kLongestRun;
    const int length = ((share + rounds - 1) / rounds + kBatch - 1) / kBatch * kBatch;
    for (int first = group * length; first < end; first += groups * length) {
      AddRun(aligned, max(first, begin), first, min(first + length, end), at);
    }
  }

  // Entries begin .. end, `first` being the multiple of kBatch before `begin`.
  __device__ __forceinline__ void AddRun(int64_t aligned, int begin, int first, int end,
                                         int at) const {
    const uint32_t* entries = graph.entries + aligned;
    float sum[4];
    int sender = -1;
    uint4 next = Load(entries + first), after;
    if constexpr (!kManyRows) {
      after = first + kBatch < end ? Load(entries + first + kBatch) : next;
      if (prefetches) Prefetch(next, first, begin, end, at);
    }
    for (int batch = first; batch < end; batch += kBatch) {
      const uint32_t entry[kBatch] = {next.x, next.y, next.z, next.w};
      if constexpr (kManyRows) {
        if (batch + kBatch < end) next = Load(entries + batch + kBatch);
      } else {
        next = after;
        if (batch + 2 * kBatch < end) after = Load(entries + batch + 2 * kBatch);
        if (prefetches) Prefetch(next, batch + kBatch, begin, end, at);
      }
      Four column[kBatch] = {};
      float factor[kBatch];
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (batch + s < begin || batch + s >= end) continue;
        const int64_t of = EdgeBlocks::SenderOf(entry[s]);
        column[s].Load(columns + of * k, at, k);
        if (kWeights) factor[s] = graph.weights[graph.edges[aligned + batch + s]];
      }
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        const int row = EdgeBlocks::RowOf(entry[s]) - first_held;
        if (batch + s < begin || batch + s >= end || row < 0 || row >= num_held) continue;
        const int of = EdgeBlocks::SenderOf(entry[s]);
        if (of != sender) {
          if (sender >= 0) Four::Add(sums + int64_t{sender} * k, at, k, sum);
          sender = of;
          sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
        }
        const T* dy = held.Row(row);
        const float scale = kWeights ? factor[s] * held.Scale(row) : held.Scale(row);
        constexpr bool kScaled = kWeights || HeldRows::kScalesApart;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = ToFloat(dy[column[s][i]]);
          sum[i] = kScaled ? sum[i] + scale * x : sum[i] + x;
        }
      }
    }
    if (sender >= 0) Four::Add(sums + int64_t{sender} * k, at, k, sum);
  }

  static __device__ __forceinline__ uint4 Load(const uint32_t* batch) {
    return __ldcs(reinterpret_cast<const uint4*>(batch));
  }

  // Begins to fetch the sums of a batch, those of entries begin .. end.
  __device__ __forceinline__ void Prefetch(const uint4& words, int batch, int begin, int end,
                                           int at) const {
    const uint32_t entry[kBatch] = {words.x, words.y, words.z, words.w};
    int before = -1;
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      if (batch + s < begin || batch + s >= end) continue;
      const int of = EdgeBlocks::SenderOf(entry[s]);
      if (of != before) Four::Prefetch(sums + int64_t{of} * k, at);
      before = of;
    }
  }
};
