// The k-sparse kernels; see jaxgnn/ops/reference/maxk_spmm.py for the maths.
#include <vector>

#include "jaxgnn_ffi/graph_args.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// What the three kernels share: a graph, its coefficients, the compressed rows and a dense matrix.
template <typename T, typename Column, typename Offset>
struct Args {
  const Batch& batch;
  const GraphArgs<Offset>& graph;
  const ffi::AnyBuffer &weights, &row_scale, &col_scale;
  int64_t k, dim;

  JAXGNN_INLINE inline Coefficients<Offset> Coefficient(int64_t member) const {
    return {batch.Item<const float>(weights, member), batch.Item<const float>(row_scale, member),
            batch.Item<const float>(col_scale, member)};
  }
};

// y_i = r_i Σ_j w_ij c_j x_j: each neighbour adds its k values at their columns.
template <typename T, typename Column, typename Offset>
struct ForwardKernel {
  Args<T, Column, Offset> args;
  const ffi::AnyBuffer &values, &columns;
  ffi::Result<ffi::AnyBuffer> y;

  JAXGNN_INLINE inline void Accumulate(int64_t member, int64_t, int64_t begin, int64_t end,
                                       float* __restrict sums) const {
    const Coefficients<Offset> coefficients = args.Coefficient(member);
    const int32_t* indices = args.graph.Indices(member);
    const T* all_values = args.batch.template Item<const T>(values, member);
    const Column* all_columns = args.batch.template Item<const Column>(columns, member);
    const int64_t k = args.k;
    for (int64_t edge = begin; edge < end; ++edge) {
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
  return SwitchOffset(offset, [&](auto offset_type) {
    return SwitchColumn(column, [&](auto column_type) {
      return SwitchFloat(
          value, [&](auto value_type) { return body(value_type, column_type, offset_type); });
    });
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
      [&](auto value, auto column, auto offset) {
        using T = typename decltype(value)::type;
        using Column = typename decltype(column)::type;
        using Offset = typename decltype(offset)::type;
        const GraphArgs<Offset> graph(batch, num_rows, unit_rows, unit_offsets, indices);
        const ForwardKernel<T, Column, Offset> kernel{
            {batch, graph, weights, row_scale, col_scale, values.dimensions().back(), dim},
            values,
            columns,
            y};
        AccumulateRows<Offset>(
            pool, batch.size(), dim, [&](int64_t member) { return graph.UnitsOf(member); }, kernel);
        return ffi::Error::Success();
      });
}

// dvalues_jt = c_j Σ_i w_ij r_i dy_i[column_jt], for the nodes j of one tile.
//
// Gathering the rows dy_i of each node would read a dense row an edge. Instead each task owns a
// tile of nodes and reads the whole graph by rows: a row dy_i stays in the nearest cache while all
// its edges into the tile add to their k sums. Sums are added in edge order, whatever the tiles.
template <typename T, typename Column, typename Offset>
class GradValuesTile {
 public:
  GradValuesTile(const Units<Offset>& units, const int32_t* indices,
                 const Coefficients<Offset>& coefficients, const Column* columns, const T* dy,
                 int64_t k, int64_t dim)
      : units_(units),
        indices_(indices),
        coefficients_(coefficients),
        columns_(columns),
        dy_(dy),
        k_(k),
        dim_(dim) {}

  // Writes dvalues of the nodes [begin, end).
  void Run(int64_t begin, int64_t end, T* dvalues) const {
    std::vector<float> sums((end - begin) * k_), widened(dim_);
    WithWidestIsa([&]() JAXGNN_INLINE {
      Offset selected[kEdgesPerUnit];
      for (int64_t unit = 0; unit < units_.count && units_.rows[unit] < units_.num_rows; ++unit) {
        const int64_t count = Select(unit, begin, end, selected);
        if (count == 0) continue;
        const float* gradient = AsFloats(dy_ + units_.rows[unit] * dim_, widened.data());
        Add(selected, count, coefficients_.Row(units_.rows[unit]), gradient, begin, sums.data());
      }
      for (int64_t i = 0; i < (end - begin) * k_; ++i) {
        dvalues[begin * k_ + i] = FromFloat<T>(sums[i]);
      }
    });
  }

 private:
  static constexpr int64_t kEdgesPerUnit = 256;  // MAX_EDGES_PER_UNIT of the schedule

  // One dense row as floats, in `widened` if they are stored as something else.
  JAXGNN_INLINE inline const float* AsFloats(const T* row, float* widened) const {
    if constexpr (std::is_same_v<T, float>) {
      return row;
    } else {
      for (int64_t i = 0; i < dim_; ++i) widened[i] = ToFloat(row[i]);
      return widened;
    }
  }

  // Lists the edges of a unit whose node lies in [begin, end), without a branch on where it lies.
  JAXGNN_INLINE inline int64_t Select(int64_t unit, int64_t begin, int64_t end,
                                      Offset* selected) const {
    int64_t count = 0;
    const uint32_t size = static_cast<uint32_t>(end - begin);
    for (int64_t edge = units_.offsets[unit]; edge < units_.offsets[unit + 1]; ++edge) {
      selected[count] = edge;
      count += static_cast<uint32_t>(indices_[edge] - begin) < size;
    }
    return count;
  }

  JAXGNN_INLINE inline void Add(const Offset* selected, int64_t count, float scale,
                                const float* __restrict gradient, int64_t begin,
                                float* sums) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t ahead = indices_[selected[std::min(i + kPrefetchEdges, count - 1)]];
      PrefetchBytes(columns_ + ahead * k_, k_ * sizeof(Column));
      PrefetchBytes(sums + (ahead - begin) * k_, k_ * sizeof(float));
      const int32_t node = indices_[selected[i]];
      const float factor = scale * coefficients_.Edge(selected[i], node);
      const Column* __restrict column = columns_ + node * k_;
      float* __restrict sum = sums + (node - begin) * k_;
      for (int64_t t = 0; t < k_; ++t) sum[t] += factor * gradient[column[t]];
    }
  }

  const Units<Offset> units_;
  const int32_t* indices_;
  const Coefficients<Offset> coefficients_;
  const Column* columns_;
  const T* dy_;
  const int64_t k_, dim_;
};

// First node of tile `tile` of `tiles`: an equal share of edges and nodes lies before each.
template <typename Offset>
int64_t TileBegin(const Offset* transposed_indptr, int64_t num_nodes, int64_t tile, int64_t tiles) {
  const int64_t target = (transposed_indptr[num_nodes] + num_nodes) / tiles * tile;
  if (tile == tiles) return num_nodes;
  int64_t low = 0, high = num_nodes;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    (transposed_indptr[middle] + middle < target) ? low = middle + 1 : high = middle;
  }
  return low;
}

ffi::Error GradValues(ffi::ThreadPool pool, ffi::AnyBuffer unit_rows, ffi::AnyBuffer unit_offsets,
                      ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                      ffi::AnyBuffer col_scale, ffi::AnyBuffer transposed_indptr,
                      ffi::AnyBuffer columns, ffi::AnyBuffer dy,
                      ffi::Result<ffi::AnyBuffer> dvalues) {
  const Batch batch(dvalues->dimensions(), 2);
  const int64_t num_nodes = dvalues->dimensions()[batch.rank()], k = dvalues->dimensions().back();
  const int64_t num_rows = dy.dimensions()[batch.rank()], dim = dy.dimensions().back();
  // Every tile reads all edges, so there are only as many as balance the load.
  const int64_t tiles = std::max<int64_t>(1, std::min(num_nodes, 2 * pool.num_threads()));
  return SwitchTypes(
      dy.element_type(), columns.element_type(), unit_offsets.element_type(),
      [&](auto value, auto column, auto offset) {
        using T = typename decltype(value)::type;
        using Column = typename decltype(column)::type;
        using Offset = typename decltype(offset)::type;
        const GraphArgs<Offset> graph(batch, num_rows, unit_rows, unit_offsets, indices);
        ParallelFor(pool, batch.size() * tiles, [&](int64_t task) {
          const int64_t member = task / tiles, tile = task % tiles;
          const Offset* offsets = batch.Item<const Offset>(transposed_indptr, member);
          const GradValuesTile<T, Column, Offset> kernel(
              graph.UnitsOf(member), graph.Indices(member),
              {batch.Item<const float>(weights, member), batch.Item<const float>(row_scale, member),
               batch.Item<const float>(col_scale, member)},
              batch.Item<const Column>(columns, member), batch.Item<const T>(dy, member), k, dim);
          kernel.Run(TileBegin(offsets, num_nodes, tile, tiles),
                     TileBegin(offsets, num_nodes, tile + 1, tiles),
                     batch.Item<T>(*dvalues, member));
        });
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
      [&](auto value, auto column, auto offset) {
        using T = typename decltype(value)::type;
        using Column = typename decltype(column)::type;
        using Offset = typename decltype(offset)::type;
        const GraphArgs<Offset> graph(batch, num_rows, unit_rows, unit_offsets, indices);
        ForUnits(
            pool, batch.size(), graph.UnitsOf(0).count,
            [&](int64_t member, int64_t begin, int64_t end) {
              const Units<Offset> units = graph.UnitsOf(member);
              const int32_t* neighbours = graph.Indices(member);
              const Coefficients<Offset> coefficients{nullptr,
                                                      batch.Item<const float>(row_scale, member),
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
                                  .Arg<xla::ffi::AnyBuffer>()  // indptr of the transpose
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
