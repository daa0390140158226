// Sums of neighbours that are filtered channel by channel; see
// jaxgnn/ops/_filters/reference/filtered_sum.py for the maths.
//
// Filters are given, [edges, width], or made: basis [edges, features] times kernel
// [features, columns]. Slots are the rows of filters or of the basis that edges read.
#include "jaxgnn_ffi/graph_args.h"
#include "jaxgnn_ffi/lanes.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;
using Buffer = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;

// Edges that are processed together, so that sums and kernels are read once for all of them.
constexpr int kTogether = 4;
// Columns whose filters are in registers at the same time, for all edges that are processed
// together.
constexpr int64_t kBlock = 2 * kLanes;

// The edges from `begin` on, at most `kTogether`, with the rows that they read.
template <typename T>
struct Edges {
  int count = 0;
  int64_t slots[kTogether];
  const T* rows[kTogether];
};

// Rows of edges, of which each edge reads the one in its slot; its own if `slots` is null.
template <typename T>
struct RowsOfEdges {
  const int32_t* slots;
  const T* rows;
  int64_t width;

  JAXGNN_INLINE inline int64_t Slot(int64_t edge) const { return slots ? slots[edge] : edge; }
  // Rows that are read one after the other are found by the processor itself.
  JAXGNN_INLINE inline void Prefetch(int64_t edge) const {
    if (slots && rows) PrefetchBytes(rows + slots[edge] * width, width * sizeof(T));
  }
};

// Calls `body(edges)` for the edges of a piece, some at a time; `x` has `columns` columns.
template <typename T, typename U, typename Body>
JAXGNN_INLINE inline void ForEdges(const int32_t* indices, const RowsOfEdges<U>& of_edges,
                                   const T* x, int64_t columns, int64_t begin, int64_t end,
                                   const Body& body) {
  for (int64_t edge = begin; edge < end; edge += kTogether) {
    Edges<T> edges;
    edges.count = static_cast<int>(std::min<int64_t>(kTogether, end - edge));
    for (int i = 0; i < edges.count; ++i) {
      edges.slots[i] = of_edges.Slot(edge + i);
      edges.rows[i] = x + static_cast<int64_t>(indices[edge + i]) * columns;
      const int64_t ahead = std::min<int64_t>(edge + i + kPrefetchEdges, end - 1);
      PrefetchBytes(x + static_cast<int64_t>(indices[ahead]) * columns, columns * sizeof(T));
      of_edges.Prefetch(ahead);
    }
    body(edges);
  }
}

template <typename T>
struct GivenKernel : RowSums {
  int64_t filter_width;
  const Batch& batch;
  const GraphArgs& graph;
  const Buffer &slots, &x, &filters;
  Result y;

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* __restrict sums) const {
    const int64_t member = piece.member, columns = width, period = filter_width;
    const T* weights = batch.Item<const T>(filters, member);
    const RowsOfEdges<T> of_edges{batch.Item<const int32_t>(slots, member), weights, period};
    ForEdges(graph.Indices(member), of_edges, batch.Item<const T>(x, member), columns, piece.begin,
             piece.end, [&](const Edges<T>& edges) JAXGNN_INLINE {
               for (int64_t first = 0; first < columns; first += period) {
                 Add(edges, weights, first, sums + first);
               }
             });
  }

  // Adds the columns of one repetition of the filters.
  JAXGNN_INLINE inline void Add(const Edges<T>& edges, const T* weights, int64_t first,
                                float* __restrict sums) const {
    const int64_t period = filter_width;
    if (edges.count == kTogether) {
      const T *x0 = edges.rows[0] + first, *x1 = edges.rows[1] + first;
      const T *x2 = edges.rows[2] + first, *x3 = edges.rows[3] + first;
      const T *w0 = weights + edges.slots[0] * period, *w1 = weights + edges.slots[1] * period;
      const T *w2 = weights + edges.slots[2] * period, *w3 = weights + edges.slots[3] * period;
      for (int64_t i = 0; i < period; ++i) {
        sums[i] += (ToFloat(x0[i]) * ToFloat(w0[i]) + ToFloat(x1[i]) * ToFloat(w1[i])) +
                   (ToFloat(x2[i]) * ToFloat(w2[i]) + ToFloat(x3[i]) * ToFloat(w3[i]));
      }
      return;
    }
    for (int e = 0; e < edges.count; ++e) {
      const T *row = edges.rows[e] + first, *own = weights + edges.slots[e] * period;
      for (int64_t i = 0; i < period; ++i) sums[i] += ToFloat(row[i]) * ToFloat(own[i]);
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* sums) const {
    T* out = batch.Item<T>(*y, member) + row * width;
    for (int64_t i = 0; i < width; ++i) out[i] = FromFloat<T>(sums[i]);
  }
};

ffi::Error FilteredSum(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets, Buffer indices,
                       Buffer slots, Buffer x, Buffer filters, Result y) {
  const Batch batch(y->dimensions(), 2);
  const int64_t num_rows = y->dimensions()[batch.rank()], columns = y->dimensions().back();
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const GivenKernel<T> kernel{
        {columns}, filters.dimensions().back(), batch, graph, slots, x, filters, y};
    AccumulateRows(
        pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, kernel);
    return ffi::Error::Success();
  });
}

// Calls `body(row, begin, end)` for the units of some rows, in order, compiled for wide vectors.
template <typename Body>
void ForUnitsOf(const Units& units, int64_t first, int64_t last, const Body& body) {
  WithWidestIsa([&]() JAXGNN_INLINE {
    for (int64_t unit = first; unit < last && units.rows[unit] < units.num_rows; ++unit) {
      body(units.rows[unit], units.offsets[unit], units.offsets[unit + 1]);
    }
  });
}

// Sets the rows of padding slots to zero.
template <typename T>
void ZeroPadding(const GraphArgs& graph, int64_t member, const int32_t* slots, T* out,
                 int64_t width) {
  const Units units = graph.UnitsOf(member);
  for (int64_t edge = units.offsets[units.count]; edge < graph.num_edges(); ++edge) {
    T* row = out + (slots ? slots[edge] : edge) * width;
    std::fill(row, row + width, FromFloat<T>(0.0f));
  }
}

// The products of two rows, summed over the repetitions of a filter.
template <typename T>
JAXGNN_INLINE inline void SumRepetitions(const T* a, const T* b, int64_t width, int64_t columns,
                                         T* __restrict to) {
  for (int64_t i = 0; i < width; ++i) {
    float sum = 0.0f;
    for (int64_t j = i; j < columns; j += width) sum += ToFloat(a[j]) * ToFloat(b[j]);
    to[i] = FromFloat<T>(sum);
  }
}

ffi::Error FilterProducts(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets,
                          Buffer indices, Buffer slots, Buffer x, Buffer dy, Result filters) {
  const Batch batch(filters->dimensions(), 2);
  const int64_t num_rows = dy.dimensions()[batch.rank()], columns = dy.dimensions().back();
  const int64_t width = filters->dimensions().back();
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const auto multiply = [&](int64_t member, int64_t begin, int64_t end) {
      const T *values = batch.Item<const T>(x, member), *slopes = batch.Item<const T>(dy, member);
      const int32_t* places = batch.Item<const int32_t>(slots, member);
      T* out = batch.Item<T>(*filters, member);
      const auto take = [&](int64_t row, int64_t first, int64_t last) JAXGNN_INLINE {
        const T* own = slopes + row * columns;
        ForEdges(graph.Indices(member), RowsOfEdges<T>{places, nullptr, 0}, values, columns, first,
                 last, [&](const Edges<T>& edges) JAXGNN_INLINE {
                   for (int e = 0; e < edges.count; ++e) {
                     const T* x_row = edges.rows[e];
                     T* __restrict to = out + edges.slots[e] * width;
                     if (width == columns) {
                       for (int64_t i = 0; i < width; ++i) {
                         to[i] = FromFloat<T>(ToFloat(x_row[i]) * ToFloat(own[i]));
                       }
                     } else {
                       SumRepetitions(x_row, own, width, columns, to);
                     }
                   }
                 });
      };
      ForUnitsOf(graph.UnitsOf(member), begin, end, take);
    };
    ForUnits(pool, batch.size(), graph.UnitsOf(0).count, multiply);
    for (int64_t member = 0; member < batch.size(); ++member) {
      ZeroPadding(graph, member, batch.Item<const int32_t>(slots, member),
                  batch.Item<T>(*filters, member), width);
    }
    return ffi::Error::Success();
  });
}

// Zeros of this thread, of which nothing else has the number `kUse`.
template <typename Number, int kUse>
inline const Number* ZeroScratch(int64_t size) {
  Number* zeros = Scratch<Number, kUse>(size);
  std::memset(static_cast<void*>(zeros), 0, size * sizeof(Number));
  return zeros;
}

// The inner products of the left rows of four edges, of `count` numbers, with `kBlock` columns of a
// matrix, from `matrix` on. The accumulators stay in registers.
JAXGNN_INLINE inline void MultiplyBlock(const float* const* left, const float* matrix,
                                        int64_t count, int64_t stride,
                                        Lanes (&products)[kTogether][2]) {
  Lanes own[2];
  for (int64_t i = 0; i < count; ++i) {
    LoadLanes(matrix + i * stride, own[0]);
    LoadLanes(matrix + i * stride + kLanes, own[1]);
    for (int e = 0; e < kTogether; ++e) {
      products[e][0] += left[e][i] * own[0];
      products[e][1] += left[e][i] * own[1];
    }
  }
}

// sums += Σ_e x_e * (basis_e · kernel) for `kBlock` columns of four edges.
template <typename T>
JAXGNN_INLINE inline void AddMadeBlock(const T* const* rows, const float* const* basis,
                                       const float* kernel, int64_t features, int64_t columns,
                                       int64_t first, float* sums) {
  Lanes made[kTogether][2] = {}, row[2], total[2];
  MultiplyBlock(basis, kernel + first, features, columns, made);
  std::memcpy(total, sums + first, sizeof(total));
  for (int e = 0; e < kTogether; ++e) {
    LoadLanes(rows[e] + first, row[0]);
    LoadLanes(rows[e] + first + kLanes, row[1]);
    total[0] += row[0] * made[e][0];
    total[1] += row[1] * made[e][1];
  }
  std::memcpy(sums + first, total, sizeof(total));
}

template <typename T>
struct MadeKernel : RowSums {
  int64_t features;
  const Batch& batch;
  const GraphArgs& graph;
  const Buffer &slots, &x, &basis, &kernel;
  Result y;

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* __restrict sums) const {
    const int64_t member = piece.member, columns = width;
    const float* shared = batch.Item<const float>(kernel, member);
    // What stands in for edges behind the last one.
    const T* no_row = ZeroScratch<T, 2>(columns);
    const float* zeros = ZeroScratch<float, 3>(features);
    const RowsOfEdges<float> of_edges{batch.Item<const int32_t>(slots, member),
                                      batch.Item<const float>(basis, member), features};
    ForEdges(graph.Indices(member), of_edges, batch.Item<const T>(x, member), columns, piece.begin,
             piece.end, [&](const Edges<T>& edges) JAXGNN_INLINE {
               const float* own[kTogether];
               const T* rows[kTogether];
               for (int e = 0; e < kTogether; ++e) {
                 const bool real = e < edges.count;
                 own[e] = real ? of_edges.rows + edges.slots[e] * features : zeros;
                 rows[e] = real ? edges.rows[e] : no_row;
               }
               int64_t first = 0;
               for (; first + kBlock <= columns; first += kBlock) {
                 AddMadeBlock(rows, own, shared, features, columns, first, sums);
               }
               if (first < columns) AddRest(edges, own, shared, first, sums);
             });
  }

  JAXGNN_INLINE inline void AddRest(const Edges<T>& edges, const float* const* own,
                                    const float* shared, int64_t first,
                                    float* __restrict sums) const {
    const int64_t columns = width;
    float* __restrict made = Scratch<float, 1>(columns);
    for (int e = 0; e < edges.count; ++e) {
      for (int64_t i = first; i < columns; ++i) made[i] = 0.0f;
      for (int64_t b = 0; b < features; ++b) {
        const float factor = own[e][b];
        const float* row = shared + b * columns;
        for (int64_t i = first; i < columns; ++i) made[i] += factor * row[i];
      }
      const T* row = edges.rows[e];
      for (int64_t i = first; i < columns; ++i) sums[i] += ToFloat(row[i]) * made[i];
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* sums) const {
    T* out = batch.Item<T>(*y, member) + row * width;
    for (int64_t i = 0; i < width; ++i) out[i] = FromFloat<T>(sums[i]);
  }
};

ffi::Error MadeFilteredSum(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets,
                           Buffer indices, Buffer slots, Buffer x, Buffer basis, Buffer kernel,
                           Result y) {
  const Batch batch(y->dimensions(), 2);
  const int64_t num_rows = y->dimensions()[batch.rank()], columns = y->dimensions().back();
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const MadeKernel<T> made{
        {columns}, basis.dimensions().back(), batch, graph, slots, x, basis, kernel, y};
    AccumulateRows(pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, made);
    return ffi::Error::Success();
  });
}

// The products of a sender's and a receiver's row, in float32.
template <typename T>
JAXGNN_INLINE inline void Multiply(const T* a, const T* b, int64_t columns,
                                   float* __restrict products) {
  for (int64_t i = 0; i < columns; ++i) products[i] = ToFloat(a[i]) * ToFloat(b[i]);
}

// A kernel [features, columns] as [columns, features], with columns of zeros up to whole blocks.
inline std::vector<float> Transposed(const float* kernel, int64_t features, int64_t columns,
                                     int64_t padded) {
  std::vector<float> made(columns * padded);
  for (int64_t b = 0; b < features; ++b) {
    for (int64_t i = 0; i < columns; ++i) made[i * padded + b] = kernel[b * columns + i];
  }
  return made;
}

ffi::Error BasisProducts(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets,
                         Buffer indices, Buffer slots, Buffer x, Buffer dy, Buffer kernel,
                         Result basis) {
  const Batch batch(basis->dimensions(), 2);
  const int64_t num_rows = dy.dimensions()[batch.rank()], columns = dy.dimensions().back();
  const int64_t features = basis->dimensions().back();
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t padded = (features + kBlock - 1) / kBlock * kBlock;
    std::vector<std::vector<float>> transposed;
    for (int64_t member = 0; member < batch.size(); ++member) {
      const float* own = batch.Item<const float>(kernel, member);
      transposed.push_back(Transposed(own, features, columns, padded));
    }
    const auto multiply = [&](int64_t member, int64_t begin, int64_t end) {
      const T *values = batch.Item<const T>(x, member), *slopes = batch.Item<const T>(dy, member);
      const int32_t* places = batch.Item<const int32_t>(slots, member);
      const float* shared = transposed[member].data();
      float* out = batch.Item<float>(*basis, member);
      float* products = Scratch<float>(kTogether * columns);
      std::fill(products, products + kTogether * columns, 0.0f);
      const auto take = [&](int64_t row, int64_t first, int64_t last) JAXGNN_INLINE {
        ForEdges(
            graph.Indices(member), RowsOfEdges<T>{places, nullptr, 0}, values, columns, first, last,
            [&](const Edges<T>& edges) JAXGNN_INLINE {
              const float* own[kTogether];
              for (int e = 0; e < kTogether; ++e) own[e] = products + e * columns;
              for (int e = 0; e < edges.count; ++e) {
                Multiply(edges.rows[e], slopes + row * columns, columns, products + e * columns);
              }
              for (int64_t b = 0; b < features; b += kBlock) {
                Lanes sums[kTogether][2] = {};
                MultiplyBlock(own, shared + b, columns, padded, sums);
                const int64_t count = std::min(kBlock, features - b);
                for (int e = 0; e < edges.count; ++e) {
                  std::memcpy(out + edges.slots[e] * features + b, sums[e], count * sizeof(float));
                }
              }
            });
      };
      ForUnitsOf(graph.UnitsOf(member), begin, end, take);
    };
    ForUnits(pool, batch.size(), graph.UnitsOf(0).count, multiply);
    for (int64_t member = 0; member < batch.size(); ++member) {
      ZeroPadding(graph, member, batch.Item<const int32_t>(slots, member),
                  batch.Item<float>(*basis, member), features);
    }
    return ffi::Error::Success();
  });
}

// Adds the outer products of the bases of four edges and of their products to `sums`.
JAXGNN_INLINE inline void AddOuter(const float* const* basis, const float* products,
                                   int64_t features, int64_t columns, float* __restrict sums) {
  const float *p0 = products, *p1 = p0 + columns, *p2 = p1 + columns, *p3 = p2 + columns;
  int64_t first = 0;
  for (; first + kBlock <= columns; first += kBlock) {
    Lanes own[kTogether][2], total[2];
    for (int e = 0; e < kTogether; ++e) {
      LoadLanes(products + e * columns + first, own[e][0]);
      LoadLanes(products + e * columns + first + kLanes, own[e][1]);
    }
    for (int64_t b = 0; b < features; ++b) {
      float* to = sums + b * columns + first;
      std::memcpy(total, to, sizeof(total));
      for (int e = 0; e < kTogether; ++e) {
        total[0] += basis[e][b] * own[e][0];
        total[1] += basis[e][b] * own[e][1];
      }
      std::memcpy(to, total, sizeof(total));
    }
  }
  for (int64_t b = 0; first < columns && b < features; ++b) {
    const float b0 = basis[0][b], b1 = basis[1][b], b2 = basis[2][b], b3 = basis[3][b];
    float* to = sums + b * columns;
    for (int64_t i = first; i < columns; ++i) {
      to[i] += (b0 * p0[i] + b1 * p1[i]) + (b2 * p2[i] + b3 * p3[i]);
    }
  }
}

// Most parts of the edges whose sums are made at the same time. Fixed, so that the order of
// summation does not depend on the machine.
constexpr int64_t kParts = 64;

ffi::Error KernelProducts(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets,
                          Buffer indices, Buffer slots, Buffer x, Buffer dy, Buffer basis,
                          Result kernel) {
  const Batch batch(kernel->dimensions(), 2);
  const int64_t num_rows = dy.dimensions()[batch.rank()], columns = dy.dimensions().back();
  const int64_t features = basis.dimensions().back(), size = features * columns;
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t units_each = graph.UnitsOf(0).count;
    const int64_t of_part = std::max(kUnitsPerTask, (units_each + kParts - 1) / kParts);
    const int64_t parts = std::max<int64_t>(1, (units_each + of_part - 1) / of_part);
    std::vector<float> partial(batch.size() * parts * size);
    ParallelFor(pool, batch.size() * parts, [&](int64_t task) {
      const int64_t member = task / parts, begin = task % parts * of_part;
      const T *values = batch.Item<const T>(x, member), *slopes = batch.Item<const T>(dy, member);
      const int32_t* places = batch.Item<const int32_t>(slots, member);
      const float* of_edges = batch.Item<const float>(basis, member);
      float *sums = partial.data() + task * size, *products = Scratch<float>(kTogether * columns);
      const float* zeros = ZeroScratch<float, 3>(features);  // of edges behind the last one
      const auto take = [&](int64_t row, int64_t first, int64_t last) JAXGNN_INLINE {
        ForEdges(graph.Indices(member), RowsOfEdges<T>{places, nullptr, 0}, values, columns, first,
                 last, [&](const Edges<T>& edges) JAXGNN_INLINE {
                   const float* own[kTogether];
                   for (int e = 0; e < kTogether; ++e) {
                     float* own_products = products + e * columns;
                     if (e < edges.count) {
                       own[e] = of_edges + edges.slots[e] * features;
                       Multiply(edges.rows[e], slopes + row * columns, columns, own_products);
                     } else {
                       own[e] = zeros;
                       std::fill(own_products, own_products + columns, 0.0f);
                     }
                   }
                   AddOuter(own, products, features, columns, sums);
                 });
      };
      ForUnitsOf(graph.UnitsOf(member), begin, std::min(begin + of_part, units_each), take);
    });
    for (int64_t member = 0; member < batch.size(); ++member) {
      float* out = batch.Item<float>(*kernel, member);
      std::fill(out, out + size, 0.0f);
      for (int64_t part = 0; part < parts; ++part) {
        const float* more = partial.data() + (member * parts + part) * size;
        for (int64_t i = 0; i < size; ++i) out[i] += more[i];
      }
    }
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_filtered_sum, jaxgnn::FilteredSum,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // slots, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // filters
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_filter_products, jaxgnn::FilterProducts,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // slots, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_made_filtered_sum, jaxgnn::MadeFilteredSum,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // slots, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // basis
                                  .Arg<xla::ffi::AnyBuffer>()  // kernel
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_basis_products, jaxgnn::BasisProducts,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // slots, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // kernel
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_kernel_products, jaxgnn::KernelProducts,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // slots, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // basis
                                  .Ret<xla::ffi::AnyBuffer>());

#pragma GCC visibility pop
