// spmm with dense features; see jaxgnn/ops/_graph/reference/spmm.py for the maths. `T` is the type
// of features.
#include "add_pieces.h"

// Stores `kBytes` bytes.
template <int kBytes>
__device__ __forceinline__ void StoreWords(void* to, const uint32_t* words) {
  if constexpr (kBytes == 16) {
    *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (kBytes == 4) {
    *static_cast<uint32_t*>(to) = words[0];
  } else {
    static_assert(kBytes == 2);
    *static_cast<uint16_t*>(to) = static_cast<uint16_t>(words[0]);
  }
}

template <typename T, int kEntries>
__device__ __forceinline__ void StoreFloats(T* to, const float* values, float scale) {
  constexpr int kBytes = kEntries * sizeof(T);
  uint32_t words[(kBytes + 3) / 4];
  if constexpr (kSame<T, float>) {
#pragma unroll
    for (int i = 0; i < kEntries; ++i) words[i] = __float_as_uint(scale * values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
      const uint32_t bits = FromFloat<T>(scale * values[i]).bits;
      words[i / 2] = i % 2 ? words[i / 2] | bits << 16 : bits;
    }
  }
  StoreWords<kBytes>(to, words);
}

// y_i = r_i Σ_j w_ij c_j x_j for a slice of the columns: kLanes lanes read one neighbour, kEntries
// columns each, and the groups of a warp take turns at the edges of its piece. Slices come one
// after another (blockIdx.y), so that a narrow slice of x stays in the second-level cache.
struct SpmmWarp {
  static constexpr int kGroups = kWarp / kLanes, kAhead = 4, kBytes = kEntries * sizeof(T);

  const PieceGraph& graph;
  const T* x;  // from the lane's columns on
  int64_t dim;

  // Adds kAhead edges from `first` on, kGroups apart; if `kCut`, those before `end`.
  template <bool kCut>
  __device__ __forceinline__ void Add(int64_t first, int64_t end, float* sum) const {
    uint32_t words[kAhead][(kBytes + 3) / 4] = {};
    float factor[kAhead];
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const int64_t edge = first + s * kGroups;
      factor[s] = 0.0f;
      if (kCut && edge >= end) continue;
      const int64_t node = graph.indices[edge];
      LoadWords<kBytes>(words[s], x + node * dim);
      factor[s] = kFactors ? graph.Weight(edge) * graph.ColScale(node) : 1.0f;
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
#pragma unroll
      for (int i = 0; i < kEntries; ++i) sum[i] += factor[s] * FloatAt<T>(words[s], i);
    }
  }
};

extern "C" __global__ void __launch_bounds__(256) spmm(PARAMETERS) {
  const PieceGraph graph = GRAPH_OF_PARAMETERS;
  constexpr int kGroups = SpmmWarp::kGroups, kStep = SpmmWarp::kAhead * kGroups;
  const int group = threadIdx.x / kLanes;
  const int64_t column = (int64_t{blockIdx.y} * kLanes + threadIdx.x % kLanes) * kEntries;
  const bool inside = column < dim;
  // Lanes behind the last column read the first ones, and store nothing.
  const SpmmWarp warp{graph, x + (inside ? column : 0), dim};
  const int64_t num_pieces = graph.NumPieces();
  for (int64_t number = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; number < num_pieces;
       number += int64_t{gridDim.x} * blockDim.y) {
    const Piece piece = graph.Get(number);
    float sum[kEntries] = {};
    int64_t first = piece.begin;
    for (; first + kStep <= piece.end; first += kStep) {
      warp.Add<false>(first + group, piece.end, sum);
    }
    if (first < piece.end) warp.Add<true>(first + group, piece.end, sum);
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
#pragma unroll
      for (int step = kLanes; step < kWarp; step *= 2) {
        sum[i] += __shfl_xor_sync(kAllLanes, sum[i], step);
      }
    }
    if (group != 0 || !inside) continue;
    if (piece.slot < 0) {
      StoreFloats<T, kEntries>(y + piece.row * dim + column, sum, graph.RowScale(piece.row));
    } else {
#pragma unroll
      for (int i = 0; i < kEntries; ++i) partial[piece.slot * dim + column + i] = sum[i];
    }
  }
}
