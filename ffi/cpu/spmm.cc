// spmm and sddmm with dense features; see jaxgnn/ops/_graph/reference/spmm.py for the maths.
//
// Features are [nodes, dim], and beside weights [edges, heads] they are [nodes, heads, dim].
#include "jaxgnn_ffi/graph_args.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// sums += a * x over one row of features.
template <typename T>
JAXGNN_INLINE inline void AddRow(float a, const T* x, int64_t dim, float* sums) {
  for (int64_t i = 0; i < dim; ++i) sums[i] += a * ToFloat(x[i]);
}

// The same for four rows, which reads and writes the sums once.
template <typename T>
JAXGNN_INLINE inline void AddRows4(const float* a, const T* const* x, int64_t dim, float* sums) {
  const T *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
  const float a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
  for (int64_t i = 0; i < dim; ++i) {
    sums[i] +=
        (a0 * ToFloat(x0[i]) + a1 * ToFloat(x1[i])) + (a2 * ToFloat(x2[i]) + a3 * ToFloat(x3[i]));
  }
}

// The number of axes of one member of the batch: `indices` has one beside the batch axes.
inline size_t ItemRank(const Dimensions& operand, const ffi::AnyBuffer& indices) {
  return operand.size() - (indices.dimensions().size() - 1);
}

// The number of heads of features [..., nodes, dim] or [..., nodes, heads, dim].
inline int64_t Heads(const Dimensions& features, const ffi::AnyBuffer& indices) {
  return ItemRank(features, indices) == 3 ? features[features.size() - 2] : 1;
}

template <typename T>
struct SpmmKernel : RowSums {
  int64_t heads;
  const Batch& batch;
  const GraphArgs& graph;
  const ffi::AnyBuffer &weights, &row_scale, &col_scale, &x;
  ffi::Result<ffi::AnyBuffer> y;

  JAXGNN_INLINE inline Coefficients Coefficient(int64_t member) const {
    return {batch.Item<const float>(weights, member), batch.Item<const float>(row_scale, member),
            batch.Item<const float>(col_scale, member)};
  }

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* __restrict sums) const {
    if (heads == 1) {
      AccumulateOneHead(piece, sums);
    } else {
      AccumulateHeads(piece, sums);
    }
  }

  JAXGNN_INLINE inline void AccumulateOneHead(const Piece& piece, float* __restrict sums) const {
    const int64_t member = piece.member, end = piece.end, dim = width;
    const Coefficients coefficients = Coefficient(member);
    const int32_t* indices = graph.Indices(member);
    const T* features = batch.Item<const T>(x, member);
    int64_t edge = piece.begin;
    for (; edge + 4 <= end; edge += 4) {
      const T* rows[4];
      float factors[4];
      for (int i = 0; i < 4; ++i) {
        const int32_t column = indices[edge + i];
        rows[i] = features + static_cast<int64_t>(column) * dim;
        factors[i] = coefficients.Edge(edge + i, column);
        const int64_t ahead = std::min<int64_t>(edge + i + kPrefetchEdges, end - 1);
        PrefetchBytes(features + static_cast<int64_t>(indices[ahead]) * dim, dim * sizeof(T));
      }
      AddRows4(factors, rows, dim, sums);
    }
    for (; edge < end; ++edge) {
      const int32_t column = indices[edge];
      AddRow(coefficients.Edge(edge, column), features + static_cast<int64_t>(column) * dim, dim,
             sums);
    }
  }

  JAXGNN_INLINE inline void AccumulateHeads(const Piece& piece, float* __restrict sums) const {
    const int64_t member = piece.member, end = piece.end, dim = width / heads;
    const float* weight_of_edges = batch.Item<const float>(weights, member);
    const float* scale_of_columns = batch.Item<const float>(col_scale, member);
    const int32_t* indices = graph.Indices(member);
    const T* features = batch.Item<const T>(x, member);
    int64_t edge = piece.begin;
    for (; edge + 4 <= end; edge += 4) {
      const T* rows[4];
      float scales[4];
      for (int i = 0; i < 4; ++i) {
        const int32_t column = indices[edge + i];
        rows[i] = features + static_cast<int64_t>(column) * width;
        scales[i] = scale_of_columns ? scale_of_columns[column] : 1.0f;
        const int64_t ahead = std::min<int64_t>(edge + i + kPrefetchEdges, end - 1);
        PrefetchBytes(features + static_cast<int64_t>(indices[ahead]) * width, width * sizeof(T));
      }
      const float* own = weight_of_edges + edge * heads;
      for (int64_t head = 0; head < heads; ++head) {
        const T* of_head[4];
        float factors[4];
        for (int i = 0; i < 4; ++i) {
          of_head[i] = rows[i] + head * dim;
          factors[i] = own[i * heads + head] * scales[i];
        }
        AddRows4(factors, of_head, dim, sums + head * dim);
      }
    }
    for (; edge < end; ++edge) {
      const int32_t column = indices[edge];
      const float scale = scale_of_columns ? scale_of_columns[column] : 1.0f;
      for (int64_t head = 0; head < heads; ++head) {
        AddRow(weight_of_edges[edge * heads + head] * scale,
               features + static_cast<int64_t>(column) * width + head * dim, dim,
               sums + head * dim);
      }
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* sums) const {
    const float scale = Coefficient(member).Row(row);
    T* out = batch.Item<T>(*y, member) + row * width;
    for (int64_t i = 0; i < width; ++i) out[i] = FromFloat<T>(scale * sums[i]);
  }
};

ffi::Error Spmm(ffi::ThreadPool pool, ffi::AnyBuffer unit_rows, ffi::AnyBuffer unit_offsets,
                ffi::AnyBuffer indices, ffi::AnyBuffer weights, ffi::AnyBuffer row_scale,
                ffi::AnyBuffer col_scale, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  const Batch batch(y->dimensions(), ItemRank(y->dimensions(), indices));
  const int64_t num_rows = y->dimensions()[batch.rank()];
  const int64_t heads = Heads(y->dimensions(), indices), width = heads * y->dimensions().back();
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const SpmmKernel<T> kernel{{width}, heads, batch, graph, weights, row_scale, col_scale, x, y};
    AccumulateRows(
        pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, kernel);
    return ffi::Error::Success();
  });
}

// Sums in fixed lanes, so that the loop vectorises without reordering at the compiler's whim.
template <typename T>
JAXGNN_INLINE inline float Dot(const T* a, const T* b, int64_t dim) {
  constexpr int kLanes = 32;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += ToFloat(a[i + lane]) * ToFloat(b[i + lane]);
    }
  }
  for (int lane = 0; i < dim; ++i, ++lane) lanes[lane] += ToFloat(a[i]) * ToFloat(b[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

ffi::Error Sddmm(ffi::ThreadPool pool, ffi::AnyBuffer unit_rows, ffi::AnyBuffer unit_offsets,
                 ffi::AnyBuffer indices, ffi::AnyBuffer row_scale, ffi::AnyBuffer col_scale,
                 ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> edges) {
  const Batch batch(edges->dimensions(), ItemRank(edges->dimensions(), indices));
  const int64_t num_rows = a.dimensions()[batch.rank()], dim = a.dimensions().back();
  const int64_t heads = Heads(a.dimensions(), indices), width = heads * dim;
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(a.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    ForUnits(pool, batch.size(), graph.UnitsOf(0).count,
             [&](int64_t member, int64_t begin, int64_t end) {
               const Units units = graph.UnitsOf(member);
               const int32_t* columns = graph.Indices(member);
               const Coefficients coefficients{nullptr, batch.Item<const float>(row_scale, member),
                                               batch.Item<const float>(col_scale, member)};
               const T* left = batch.Item<const T>(a, member);
               const T* right = batch.Item<const T>(b, member);
               float* out = batch.Item<float>(*edges, member);
               WithWidestIsa([&]() JAXGNN_INLINE {
                 for (int64_t unit = begin; unit < end; ++unit) {
                   const int64_t row = units.rows[unit];
                   if (row >= num_rows) break;
                   const int64_t last = units.offsets[unit + 1];
                   for (int64_t edge = units.offsets[unit]; edge < last; ++edge) {
                     const int32_t column = columns[edge];
                     const int64_t ahead = std::min<int64_t>(edge + kPrefetchEdges, last - 1);
                     PrefetchBytes(right + static_cast<int64_t>(columns[ahead]) * width,
                                   width * sizeof(T));
                     const T *from = left + row * width,
                             *to = right + static_cast<int64_t>(column) * width;
                     const float scale = coefficients.Row(row) * coefficients.Edge(edge, column);
                     for (int64_t head = 0; head < heads; ++head) {
                       const float product = Dot(from + head * dim, to + head * dim, dim);
                       out[edge * heads + head] = scale * product;
                     }
                   }
                 }
               });
             });
    for (int64_t member = 0; member < batch.size(); ++member) {
      ZeroPaddingEdges(graph.UnitsOf(member), batch.Item<float>(*edges, member), graph.num_edges(),
                       heads);
    }
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_spmm, jaxgnn::Spmm,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // weights or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // row scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // column scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_sddmm, jaxgnn::Sddmm,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // row scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // column scale or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // a
                                  .Arg<xla::ffi::AnyBuffer>()  // b
                                  .Ret<xla::ffi::AnyBuffer>());

#pragma GCC visibility pop
