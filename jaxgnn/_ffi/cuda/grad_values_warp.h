// The work of one warp of the row-by-row backward to kept values (grad_values.cu), for graphs whose
// edges are not in blocks.
#include "four_entries.h"
#include "pieces.h"

// Edges of a piece whose sender lies in the tile at hand: a short list in shared memory.
struct EdgeList {
  static constexpr int kSize = 4 * kWarp;
  int32_t node[kSize];
  int32_t edge[kSize];  // from the piece's first
};

// sums_jt += Σ_i w_ij r_i dy_i[column_jt] for the senders of one tile: a warp a piece, whose row
// dy_i it holds in shared memory; `kLanes` lanes a neighbour, four entries each. Tiles come one
// after another (blockIdx.y), so that the sums of a tile stay in the second-level cache.
struct GradValuesWarp {
  using Four = FourEntries;
  static constexpr int kAhead = 4;

  const PieceGraph& graph;
  const Column* columns;
  const T* dy;
  int k, dim;
  float* sums;
  float* row;
  EdgeList* list;
  int lane;

  __device__ __forceinline__ void Run(const Piece& piece, int32_t first_node, int32_t last_node) {
    const unsigned before = (1u << lane) - 1;
    bool has_row = false;
    int listed = 0;
    for (int64_t begin = piece.begin; begin < piece.end; begin += kWarp) {
      const int64_t edge = begin + lane;
      const int32_t node = edge < piece.end ? __ldcs(graph.indices + edge) : -1;
      const bool mine = node >= first_node && node < last_node;
      const unsigned found = __ballot_sync(kAllLanes, mine);
      if (mine) {
        const int at = listed + __popc(found & before);
        list->node[at] = node;
        list->edge[at] = static_cast<int32_t>(edge - piece.begin);
      }
      listed += __popc(found);
      const bool is_last = begin + kWarp >= piece.end;
      if (listed == 0 || (listed <= EdgeList::kSize - kWarp && !is_last)) continue;
      if (!has_row) LoadRow(piece.row);
      has_row = true;
      __syncwarp();
      AddListed(piece, listed);
      __syncwarp();
      listed = 0;
    }
  }

  __device__ __forceinline__ void LoadRow(int64_t number) const {
    const float scale = graph.RowScale(number);
    const T* from = dy + number * dim;
    for (int i = lane; i < dim; i += kWarp) row[i] = scale * ToFloat(from[i]);
  }

  __device__ __forceinline__ void AddListed(const Piece& piece, int listed) const {
    const int neighbours = kWarp / kLanes, which = lane / kLanes, four = lane % kLanes * 4;
    const float* weights = graph.weights ? graph.weights + piece.begin : nullptr;
    for (int first = which; first < listed; first += kAhead * neighbours) {
      int32_t node[kAhead];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        const int at = first + s * neighbours;
        node[s] = at < listed ? list->node[at] : -1;
      }
      for (int at = four; at < k; at += 4 * kLanes) {
        Four column[kAhead] = {};
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
          if (node[s] >= 0) {
            column[s].Load(columns + int64_t{node[s]} * k, at, k);
          }
        }
#pragma unroll
        for (int s = 0; s < kAhead; ++s) {
          if (node[s] < 0) continue;
          const float weight = weights ? weights[list->edge[first + s * neighbours]] : 1.0f;
          AddEntries(sums + int64_t{node[s]} * k, at, column[s], weight);
        }
      }
    }
  }

  __device__ __forceinline__ void AddEntries(float* to, int at, const Four& column,
                                             float weight) const {
    float value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = weight * row[column[i]];
    Four::Add(to, at, k, value);
  }
};
