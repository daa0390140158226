// The work of one warp of the k-sparse forward kernel (maxk_spmm.cu).
#include "pieces.h"

// y_i = r_i Σ_j w_ij c_j x_j. The lanes of a group add one neighbour's entries to sums in shared
// memory, where the sums of a warp's groups lie side by side: [column][group]. A long piece is
// walked by all groups of a warp, short ones by a group each. Adding needs no atomics: the lanes of
// a group hold different columns, and a warp's accesses are in order.
struct ForwardWarp {
  static constexpr int kGroups = kWarp / kLanes;
  static constexpr int kOwn = kChunks * kEntries;  // entries of a lane in one block
  static constexpr int kAhead = kOwn >= 16 ? 2 : 4;
  static constexpr int kChunkWords = (kEntries * sizeof(T) + 3) / 4;
  static constexpr int kIdWords = (kOwn * sizeof(Id) + 3) / 4;

  const PieceGraph& graph;
  const T* values;
  const Id* ids;
  int blocks, dim;
  float* sums;
  int lane;

  __device__ __forceinline__ int Group() const { return lane / kLanes; }

  __device__ __forceinline__ void Clear() const {
    for (int i = lane; i < dim * kGroups; i += kWarp) sums[i] = 0.0f;
    __syncwarp();
  }

  // This lane's group adds the edges first, first + stride, ... `count` of them; the warp goes
  // on for `most`, the largest count of its groups.
  __device__ __forceinline__ void Add(int64_t first, int stride, int count, int most) const {
    const int32_t* index = graph.indices + first;
    const float* weight = graph.weights ? graph.weights + first : nullptr;
    for (int block = 0; block < blocks; ++block)
      AddBlock(block, index, weight, stride, count, most);
  }

  // Some neighbours of a group in flight: their numbers, then their entries.
  struct Ahead {
    int32_t node[kAhead];
    uint32_t value[kAhead][kChunks * kChunkWords], id[kAhead][kIdWords];
    float factor[kAhead];
  };

  // Two sets of neighbours take turns: one is loaded while the other is added.
  __device__ __forceinline__ void AddBlock(int block, const int32_t* index, const float* weight,
                                           int stride, int count, int most) const {
    const T* from_values = values + block * kLanes * kOwn + lane % kLanes * kEntries;
    const Id* from_ids = ids + block * kLanes * kOwn + lane % kLanes * kOwn;
    Ahead even, odd;
    auto number = [&](Ahead& ahead, int t) {
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        ahead.node[s] = t + s < count ? __ldg(index + (t + s) * stride) : 0;
      }
    };
    auto load = [&](Ahead& ahead, int t) {
      LoadAhead(ahead, from_values, from_ids, weight, stride, t, count);
      number(ahead, t + 2 * kAhead);
    };
    auto add = [&](const Ahead& ahead, int t) {
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (t + s < count) AddNeighbour(ahead.value[s], ahead.id[s], ahead.factor[s]);
        __syncwarp();
      }
    };
    number(even, 0);
    number(odd, kAhead);
    load(even, 0);
    for (int t = 0; t < most; t += 2 * kAhead) {
      load(odd, t + kAhead);
      add(even, t);
      load(even, t + 2 * kAhead);
      add(odd, t + kAhead);
    }
  }

  __device__ __forceinline__ void LoadAhead(Ahead& ahead, const T* from_values, const Id* from_ids,
                                            const float* weight, int stride, int t,
                                            int count) const {
    const int record = blocks * kLanes * kOwn;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      if (t + s >= count) continue;
      const int64_t at = int64_t{ahead.node[s]} * record;
#pragma unroll
      for (int m = 0; m < kChunks; ++m) {
        LoadWords<kEntries * sizeof(T)>(ahead.value[s] + m * kChunkWords,
                                        from_values + at + m * kLanes * kEntries);
      }
      LoadWords<kOwn * sizeof(Id)>(ahead.id[s], from_ids + at);
      ahead.factor[s] = 1.0f;
      if (kFactors) {
        if (weight) ahead.factor[s] = __ldg(weight + (t + s) * stride);
        ahead.factor[s] *= graph.ColScale(ahead.node[s]);
      }
    }
  }

  __device__ __forceinline__ void AddNeighbour(const uint32_t* value, const uint32_t* id,
                                               float factor) const {
    float sum[kOwn];
    uint32_t at[kOwn];
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      at[e] = IdAt<Id>(id, e) * kGroups + Group();
      sum[e] = sums[at[e]];
    }
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      const float x = FloatAt<T>(value + e / kEntries * kChunkWords, e % kEntries);
      sum[e] = kFactors ? sum[e] + factor * x : sum[e] + x;
    }
#pragma unroll
    for (int e = 0; e < kOwn; ++e) sums[at[e]] = sum[e];
  }

  // The sum over groups, for a long piece.
  template <typename Out>
  __device__ __forceinline__ void StoreSum(Out* out, float scale) const {
    __syncwarp();
    for (int column = lane; column < dim; column += kWarp) {
      float sum = 0.0f;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) sum += sums[column * kGroups + g];
      out[column] = FromFloat<Out>(scale * sum);
    }
    __syncwarp();
  }

  // Unscaled sums of this lane's group.
  __device__ __forceinline__ void StorePartial(float* out) const {
    for (int column = lane % kLanes; column < dim; column += kLanes) {
      out[column] = sums[column * kGroups + Group()];
    }
  }

  // Each group's own row; `out` and `scale` are those of this lane's group, null for none.
  __device__ __forceinline__ void StoreRows(T* out, float scale) const {
    __syncwarp();
    constexpr int kColumns = 32 / sizeof(T);  // a sector of global memory
    constexpr int kRows = kWarp / kColumns;
#pragma unroll
    for (int g0 = 0; g0 < kGroups; g0 += kRows) {
      const int g = g0 + lane / kColumns;
      const uint64_t address =
          __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(out), g % kGroups * kLanes);
      const float s = __shfl_sync(kAllLanes, scale, g % kGroups * kLanes);
      T* row = reinterpret_cast<T*>(address);
      if (row == nullptr || g >= kGroups) continue;
      for (int column = lane % kColumns; column < dim; column += kColumns) {
        row[column] = FromFloat<T>(s * sums[column * kGroups + g]);
      }
    }
    __syncwarp();
  }
};
