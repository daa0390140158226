// The edges of a graph grouped by tile of their sender, for kernels that sum over receivers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/parallel.h"
#include "jaxgnn_ffi/rows.h"

namespace jaxgnn {

// One edge, with the product of all its coefficients.
struct TiledEdge {
  int32_t row;
  int32_t node;
  float factor;
};

// Tile t owns the nodes [t << shift, (t + 1) << shift), and lists its edges in the order of the
// graph's rows. Neither tiles nor lists depend on the number of threads.
class EdgeTiles {
 public:
  // `width` floats are summed for each node. Two passes over the edges: count, then place.
  template <typename Pool>
  EdgeTiles(Pool pool, const Units& units, const int32_t* indices, const Coefficients& coefficients,
            int64_t num_nodes, int64_t width)
      : num_nodes_(num_nodes), shift_(Shift(num_nodes, width)), begin_(size() + 1) {
    const int64_t tiles = size();
    const int64_t ranges = (units.count + kUnitsPerRange - 1) / kUnitsPerRange;
    std::vector<int64_t> places(ranges * tiles);
    ParallelFor(pool, ranges, [&](int64_t range) {
      int64_t* counts = places.data() + range * tiles;
      ForEdges(units, range, [&](int64_t, int64_t edge) { ++counts[indices[edge] >> shift_]; });
    });
    int64_t edges = 0;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      begin_[tile] = edges;
      for (int64_t range = 0; range < ranges; ++range) {
        edges += std::exchange(places[range * tiles + tile], edges);
      }
    }
    begin_[tiles] = edges;
    edges_.reset(new TiledEdge[edges]);
    ParallelFor(pool, ranges, [&](int64_t range) {
      int64_t* next = places.data() + range * tiles;
      ForEdges(units, range, [&](int64_t row, int64_t edge) {
        const int32_t node = indices[edge];
        edges_[next[node >> shift_]++] = {static_cast<int32_t>(row), node,
                                          coefficients.Row(row) * coefficients.Edge(edge, node)};
      });
    });
  }

  int64_t size() const { return ((num_nodes_ - 1) >> shift_) + 1; }
  int64_t FirstNode(int64_t tile) const { return std::min(tile << shift_, num_nodes_); }
  const TiledEdge* edges() const { return edges_.get(); }
  int64_t FirstEdge(int64_t tile) const { return begin_[tile]; }

 private:
  static constexpr int64_t kUnitsPerRange = 512;
  // As many sums as stay in a second-level cache; fewer tiles where that makes very many, because
  // each tile reads the receivers' rows anew; at least a few, to be worked on at the same time.
  static constexpr int64_t kFloatsPerTile = 1 << 17, kMinTiles = 4, kMaxTiles = 16;

  static int Shift(int64_t num_nodes, int64_t width) {
    const int64_t tiles = std::clamp(num_nodes * width / kFloatsPerTile, kMinTiles, kMaxTiles);
    int shift = 0;
    while ((num_nodes - 1) >> shift >= tiles) ++shift;
    return shift;
  }

  template <typename Body>
  static void ForEdges(const Units& units, int64_t range, const Body& body) {
    const int64_t last = std::min((range + 1) * kUnitsPerRange, units.count);
    for (int64_t unit = range * kUnitsPerRange; unit < last; ++unit) {
      if (units.rows[unit] >= units.num_rows) break;
      for (int64_t edge = units.offsets[unit]; edge < units.offsets[unit + 1]; ++edge) {
        body(units.rows[unit], edge);
      }
    }
  }

  int64_t num_nodes_;
  int shift_;
  std::vector<int64_t> begin_;
  std::unique_ptr<TiledEdge[]> edges_;
};

}  // namespace jaxgnn
