// The k-sparse kernels; see jaxgnn/ops/reference/maxk_spmm.py for the maths.
#include <memory>
#include <vector>

#include "jaxgnn_ffi/edge_tiles.h"
#include "jaxgnn_ffi/graph_args.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// What the three kernels share: a graph, its coefficients, the compressed rows and a dense matrix.
template <typename T, typename Column>
struct Args {
  const Batch& batch;
  const GraphArgs& graph;
  const ffi::AnyBuffer &weights, &row_scale, &col_scale;
  int64_t k, dim;

  JAXGNN_INLINE inline Coefficients Coefficient(int64_t member) const {
    return {batch.Item<const float>(weights, member), batch.Item<const float>(row_scale, member),
            batch.Item<const float>(col_scale, member)};
  }
};

// y_i = r_i Σ_j w_ij c_j x_j: each neighbour adds its k values at their columns.
template <typename T, typename Column>
struct ForwardKernel : RowSums {
  Args<T, Column> args;
  const ffi::AnyBuffer &values, &columns;
  ffi::Result<ffi::AnyBuffer> y;

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* __restrict sums) const {
    const int64_t member = piece.member, end = piece.end;
    const Coefficients coefficients = args.Coefficient(member);
    const int32_t* indices = args.graph.Indices(member);
    const T* all_values = args.batch.template Item<const T>(values, member);
    const Column* all_columns = args.batch.template Item<const Column>(columns, member);
    const int64_t k = args.k;
    for (int64_t edge = piece.begin; edge < end; ++edge) {
      const int64_t ahead = indices[std::min<int64_t>(edge + kPrefetchEdges, end - 1)];
      PrefetchBytes(all_values + ahead * k, k * sizeof(T));
      PrefetchBytes(all_columns + ahead * k, k * sizeof(Column));
      const int64_t neighbour = indices[edge];
      const float factor = coefficients.Edge(edge, indices[edge]);
      const T* value = all_values + neighbour * k;
      const Column* column = all_columns + neighbour * k;
      for (int64_t i = 0; i < k; ++i) sums[column[i]] += factor * ToFloat(value[i]);
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* sums) const {
    const float scale = args.Coefficient(member).Row(row);
    T* out = args.batch.template Item<T>(*y, member) + row * args.dim;
    for (int64_t i = 0; i < args.dim; ++i) out[i] = FromFloat<T>(scale * sums[i]);
  }
};

// Calls `body` with tags for the three types that the kernels are compiled for.
template <typename Body>
ffi::Error SwitchTypes(ffi::DataType value, ffi::DataType column, ffi::DataType offset,
                       const Body& body) {
  if (!AreOffsets(offset)) return UnsupportedType("edge offsets", offset);
  return SwitchColumn(column, [&](auto column_type) {
    return SwitchFloat(value, [&](auto value_type) { return body(value_type, column_type); });
  });
}

ffi::Error Forward(ffi::ThreadPool pool, ffi::AnyBuffer unit_rows, ffi::AnyBuffer unit_offsets,
                   ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                   ffi::AnyBuffer col_scale, ffi::AnyBuffer values, ffi::AnyBuffer columns,
                   ffi::Result<ffi::AnyBuffer> y) {
  const Batch batch(y->dimensions(), 2);
  const int64_t num_rows = y->dimensions()[batch.rank()], dim = y->dimensions().back();
  return SwitchTypes(
      values.element_type(), columns.element_type(), unit_offsets.element_type(),
      [&](auto value, auto column) {
        using T = typename decltype(value)::type;
        using Column = typename decltype(column)::type;
        const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
        const ForwardKernel<T, Column> kernel{
            {dim},
            {batch, graph, weights, row_scale, col_scale, values.dimensions().back(), dim},
            values,
            columns,
            y};
        AccumulateRows(
            pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, kernel);
        return ffi::Error::Success();
      });
}

// dvalues_jt = c_j Σ_i w_ij r_i dy_i[column_jt], for one batch member.
//
// Gathering the rows dy_i of each node would read a dense row an edge. Instead the edges are
// grouped by tile of nodes: the sums of a tile stay in the second-level cache, and a row dy_i in
// the first while all its edges into the tile add to their k sums. A tile that has many edges for
// its nodes, because of a hub, is cut into pieces whose partial sums are added in order.
template <typename T, typename Column>
class GradValuesOfMember {
 public:
  GradValuesOfMember(const EdgeTiles& tiles, const Column* columns, const T* dy, int64_t k,
                     int64_t dim, T* dvalues)
      : tiles_(tiles), columns_(columns), dy_(dy), k_(k), dim_(dim), dvalues_(dvalues) {
    for (int64_t tile = 0; tile < tiles_.size(); ++tile) {
      first_piece_.push_back(pieces_.size());
      const int64_t begin = tiles_.FirstEdge(tile), edges = tiles_.FirstEdge(tile + 1) - begin;
      const int64_t wanted = edges / std::max(kEdgesPerNode * NodesOf(tile), kEdgesPerPiece);
      const int64_t cuts = std::clamp<int64_t>(wanted, 1, 1 + kMostPieces / tiles_.size());
      for (int64_t cut = 0; cut < cuts; ++cut) {
        pieces_.push_back({tile, begin + edges * cut / cuts, begin + edges * (cut + 1) / cuts,
                           cuts == 1 ? kWhole : partial_size_});
        if (cuts > 1) partial_size_ += NodesOf(tile) * k_;
      }
    }
    first_piece_.push_back(pieces_.size());
  }

  template <typename Pool>
  void Run(Pool pool) {
    partial_.reset(new float[partial_size_]);
    ParallelFor(pool, pieces_.size(), [&](int64_t piece) { Sum(pieces_[piece]); });
    if (partial_size_ == 0) return;
    ParallelFor(pool, tiles_.size(), [&](int64_t tile) { AddPieces(tile); });
  }

 private:
  // Below these a partial sum costs more than it shares out.
  static constexpr int64_t kEdgesPerNode = 16, kEdgesPerPiece = 1 << 14;
  // Each takes the memory of its tile's sums.
  static constexpr int64_t kMostPieces = 64;
  static constexpr int64_t kWhole = -1;

  struct Piece {
    int64_t tile, first_edge, last_edge;
    int64_t partial;  // where its sums begin in partial_, or kWhole if it is all of its tile
  };

  int64_t NodesOf(int64_t tile) const {
    return tiles_.FirstNode(tile + 1) - tiles_.FirstNode(tile);
  }

  void Sum(const Piece& piece) const {
    const int64_t first_node = tiles_.FirstNode(piece.tile), size = NodesOf(piece.tile) * k_;
    const bool whole = piece.partial == kWhole;
    float* scratch = Scratch<float>(whole ? size + dim_ : dim_);
    float* sums = whole ? scratch + dim_ : partial_.get() + piece.partial;
    WithWidestIsa([&]() JAXGNN_INLINE {
      for (int64_t i = 0; i < size; ++i) sums[i] = 0.0f;
      AddEdges(piece, first_node, scratch, sums);
      if (whole) Store(sums, first_node * k_, size);
    });
  }

  JAXGNN_INLINE inline void AddEdges(const Piece& piece, int64_t first_node, float* widened,
                                     float* sums) const {
    const TiledEdge* edges = tiles_.edges();
    const float* gradient = nullptr;
    for (int64_t e = piece.first_edge; e < piece.last_edge; ++e) {
      const TiledEdge& ahead = edges[std::min(e + kPrefetchEdges, piece.last_edge - 1)];
      PrefetchBytes(columns_ + ahead.node * k_, k_ * sizeof(Column));
      PrefetchBytes(sums + (ahead.node - first_node) * k_, k_ * sizeof(float));
      const TiledEdge edge = edges[e];
      if (e == piece.first_edge || edge.row != edges[e - 1].row) {
        gradient = AsFloats(dy_ + edge.row * dim_, widened);
      }
      const Column* __restrict column = columns_ + edge.node * k_;
      float* __restrict sum = sums + (edge.node - first_node) * k_;
      for (int64_t t = 0; t < k_; ++t) sum[t] += edge.factor * gradient[column[t]];
    }
  }

  // One dense row as floats, in `widened` if they are stored as something else.
  JAXGNN_INLINE inline const float* AsFloats(const T* row, float* widened) const {
    if constexpr (std::is_same_v<T, float>) {
      return row;
    } else {
      for (int64_t i = 0; i < dim_; ++i) widened[i] = ToFloat(row[i]);
      return widened;
    }
  }

  void AddPieces(int64_t tile) const {
    const int64_t first = first_piece_[tile], last = first_piece_[tile + 1];
    if (last - first == 1) return;
    const int64_t size = NodesOf(tile) * k_;
    WithWidestIsa([&]() JAXGNN_INLINE {
      float* __restrict sums = partial_.get() + pieces_[first].partial;
      for (int64_t piece = first + 1; piece < last; ++piece) {
        const float* __restrict more = partial_.get() + pieces_[piece].partial;
        for (int64_t i = 0; i < size; ++i) sums[i] += more[i];
      }
      Store(sums, tiles_.FirstNode(tile) * k_, size);
    });
  }

  JAXGNN_INLINE inline void Store(const float* sums, int64_t first, int64_t size) const {
    for (int64_t i = 0; i < size; ++i) dvalues_[first + i] = FromFloat<T>(sums[i]);
  }

  const EdgeTiles& tiles_;
  const Column* columns_;
  const T* dy_;
  const int64_t k_, dim_;
  T* dvalues_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> first_piece_;
  int64_t partial_size_ = 0;
  std::unique_ptr<float[]> partial_;
};

// Graphs below this many edges are one thread's work, so that a batch of them runs in parallel.
constexpr int64_t kEdgesToShare = 1 << 14;

ffi::Error GradValues(ffi::ThreadPool pool, ffi::AnyBuffer unit_rows, ffi::AnyBuffer unit_offsets,
                      ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                      ffi::AnyBuffer col_scale, ffi::AnyBuffer columns, ffi::AnyBuffer dy,
                      ffi::Result<ffi::AnyBuffer> dvalues) {
  const Batch batch(dvalues->dimensions(), 2);
  const int64_t num_nodes = dvalues->dimensions()[batch.rank()], k = dvalues->dimensions().back();
  const int64_t num_rows = dy.dimensions()[batch.rank()], dim = dy.dimensions().back();
  if (num_nodes == 0) return ffi::Error::Success();
  return SwitchTypes(
      dy.element_type(), columns.element_type(), unit_offsets.element_type(),
      [&](auto value, auto column) {
        using T = typename decltype(value)::type;
        using Column = typename decltype(column)::type;
        const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
        auto run_member = [&](auto threads, int64_t member) {
          const EdgeTiles tiles(threads, graph.UnitsOf(member), graph.Indices(member),
                                Coefficients{batch.Item<const float>(weights, member),
                                             batch.Item<const float>(row_scale, member),
                                             batch.Item<const float>(col_scale, member)},
                                num_nodes, k);
          GradValuesOfMember<T, Column>(tiles, batch.Item<const Column>(columns, member),
                                        batch.Item<const T>(dy, member), k, dim,
                                        batch.Item<T>(*dvalues, member))
              .Run(threads);
        };
        if (graph.num_edges() < kEdgesToShare) {
          ParallelFor(pool, batch.size(), [&](int64_t member) { run_member(OneThread{}, member); });
        } else {
          for (int64_t member = 0; member < batch.size(); ++member) run_member(pool, member);
        }
        return ffi::Error::Success();
      });
}

// dw_ij = r_i c_j Σ_t dy_i[column_jt] value_jt.
ffi::Error GradWeights(ffi::ThreadPool pool, ffi::AnyBuffer unit_rows, ffi::AnyBuffer unit_offsets,
                       ffi::AnyBuffer indices, ffi::AnyBuffer row_scale, ffi::AnyBuffer col_scale,
                       ffi::AnyBuffer values, ffi::AnyBuffer columns, ffi::AnyBuffer dy,
                       ffi::Result<ffi::AnyBuffer> dweights) {
  const Batch batch(dweights->dimensions(), 1);
  const int64_t num_rows = dy.dimensions()[batch.rank()];
  const int64_t dim = dy.dimensions().back(), k = values.dimensions().back();
  return SwitchTypes(
      values.element_type(), columns.element_type(), unit_offsets.element_type(),
      [&](auto value, auto column) {
        using T = typename decltype(value)::type;
        using Column = typename decltype(column)::type;
        const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
        ForUnits(
            pool, batch.size(), graph.UnitsOf(0).count,
            [&](int64_t member, int64_t begin, int64_t end) {
              const Units units = graph.UnitsOf(member);
              const int32_t* neighbours = graph.Indices(member);
              const Coefficients coefficients{nullptr, batch.Item<const float>(row_scale, member),
                                              batch.Item<const float>(col_scale, member)};
              const T* all_values = batch.Item<const T>(values, member);
              const Column* all_columns = batch.Item<const Column>(columns, member);
              const T* gradients = batch.Item<const T>(dy, member);
              float* out = batch.Item<float>(*dweights, member);
              WithWidestIsa([&]() JAXGNN_INLINE {
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t row = units.rows[unit];
                  if (row >= num_rows) break;
                  const T* gradient = gradients + row * dim;
                  const float scale = coefficients.Row(row);
                  for (int64_t edge = units.offsets[unit]; edge < units.offsets[unit + 1]; ++edge) {
                    const int64_t neighbour = neighbours[edge];
                    const T* value = all_values + neighbour * k;
                    const Column* column = all_columns + neighbour * k;
                    float sum = 0.0f;
                    for (int64_t i = 0; i < k; ++i) {
                      sum += ToFloat(gradient[column[i]]) * ToFloat(value[i]);
                    }
                    out[edge] = scale * coefficients.Edge(edge, neighbours[edge]) * sum;
                  }
                }
              });
            });
        for (int64_t member = 0; member < batch.size(); ++member) {
          ZeroPaddingEdges(graph.UnitsOf(member), batch.Item<float>(*dweights, member),
                           graph.num_edges());
        }
        return ffi::Error::Success();
      });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm, jaxgnn::Forward,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // weights or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // row scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // column scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // kept values
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm_grad_values, jaxgnn::GradValues,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // weights or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // row scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // column scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_maxk_spmm_grad_weights, jaxgnn::GradWeights,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // row scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // column scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // kept values
                                  .Arg<xla::ffi::AnyBuffer>()  // kept columns
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>());

#pragma GCC visibility pop
