// Sums over neighbours of tensor products with spherical harmonics, and their gradients; see
// jaxgnn/ops/_equivariant/reference/tensor_product_sum.py for the maths.
//
// Loops run over channels, in whole vectors, so rows of nodes are first copied (components.h).
// Edges of a row are processed in tiles. For each path a tile first contracts the sparse table with
// the harmonics of all its edges, to a small matrix for each edge.
#include "jaxgnn_ffi/couplings.h"
#include "jaxgnn_ffi/graph_args.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;
using ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;

// Edges whose matrices are made together, and edges that are moved together.
constexpr int kTile = 8;
constexpr int kEdges = 4;
// Components of the largest degree that is coupled, 6.
constexpr int kMostComponents = 13;
// Units of a task: rows are long and few.
constexpr int64_t kUnitsOfTask = 16;

// A vector of channels for each of `kEdges` edges.
template <typename Number>
using Vectors = Vector<Number>[kEdges];

template <typename Number>
JAXGNN_INLINE inline void Clear(Vectors<Number>& vectors) {
  for (int e = 0; e < kEdges; ++e) vectors[e] = Vector<Number>{};
}

// The operands of a batch member.
template <typename T>
struct Member {
  const int32_t* indices;
  const int32_t* slots;  // of rows of edges; null if each edge reads its own
  const NumberOf<T>* x;  // padded
  const T* harmonics;
  const T* weights;
};

// Some edges of one receiver. Behind the last edge are rows of zeros.
template <typename T>
struct Tile {
  using Number = NumberOf<T>;
  int count;
  int64_t slots[kTile];
  const Number* x[kTile];
  const T* weights[kTile];
  Number* harmonics;  // [components, kTile]
  Number* matrix;     // [pairs of a path, kTile]
};

// Zeros of this thread, of which nothing else has the number `kUse`.
template <typename Number, int kUse>
JAXGNN_INLINE inline const Number* Zeros(int64_t size) {
  Number* zeros = Scratch<Number, kUse>(size);
  std::memset(static_cast<void*>(zeros), 0, size * sizeof(Number));
  return zeros;
}

// What all kernels read, for the edges of any receiver.
template <typename T>
struct EdgeTiles {
  using Number = NumberOf<T>;
  const Couplings<Number>& couplings;
  const Member<T> member;

  // Calls `body(tile)` for the edges from `begin` to `end`. Memory of the thread with numbers 1 to
  // 4 is used.
  template <typename Body>
  JAXGNN_INLINE inline void For(int64_t begin, int64_t end, const Body& body) const {
    const int64_t width = couplings.in.width(), weights = couplings.weights;
    Tile<T> tile;
    tile.harmonics = Scratch<Number, 1>(std::max<int64_t>(couplings.harmonics, 1) * kTile);
    tile.matrix = Scratch<Number, 2>(couplings.most_pairs * kTile);
    const Number* no_x = Zeros<Number, 3>(width);
    const T* no_weights = Zeros<T, 4>(weights);
    for (int64_t edge = begin; edge < end; edge += kTile) {
      tile.count = static_cast<int>(std::min<int64_t>(kTile, end - edge));
      for (int e = 0; e < kTile; ++e) {
        const bool real = e < tile.count;
        tile.slots[e] = real ? Slot(edge + e) : 0;
        tile.x[e] = real ? member.x + member.indices[edge + e] * width : no_x;
        tile.weights[e] =
            real && member.weights ? member.weights + tile.slots[e] * weights : no_weights;
      }
      if (member.harmonics) LoadHarmonics(tile);
      Prefetch(edge + kTile, std::min(edge + 2 * kTile, end));
      body(tile);
    }
  }

 private:
  JAXGNN_INLINE inline int64_t Slot(int64_t edge) const {
    return member.slots ? member.slots[edge] : edge;
  }

  JAXGNN_INLINE inline void LoadHarmonics(const Tile<T>& tile) const {
    const int64_t count = couplings.harmonics;
    for (int e = 0; e < kTile; ++e) {
      const T* own = member.harmonics + tile.slots[e] * count;
      for (int64_t b = 0; b < count; ++b) {
        tile.harmonics[b * kTile + e] = e < tile.count ? ToNumber(own[b]) : Number{0};
      }
    }
  }

  // Rows that are read one after the other are found by the processor itself.
  JAXGNN_INLINE inline void Prefetch(int64_t begin, int64_t end) const {
    const int64_t width = couplings.in.width(), weights = couplings.weights;
    for (int64_t edge = begin; edge < end; ++edge) {
      PrefetchBytes(member.x + member.indices[edge] * width, width * sizeof(Number));
      if (!member.slots || !member.weights) continue;
      PrefetchBytes(member.weights + member.slots[edge] * weights, weights * sizeof(T));
    }
  }
};

// matrix[pair] = Σ_b C[pair, b] harmonics[b], for all edges of the tile.
template <typename T>
JAXGNN_INLINE inline void MakeMatrix(const CoupledPath<NumberOf<T>>& path, const Tile<T>& tile) {
  using Number = NumberOf<T>;
  const SparseTable<Number>& table = path.by_out;
  const Number* harmonics = tile.harmonics + path.numbers.sh_start * kTile;
  for (int32_t pair = 0; pair < table.pairs(); ++pair) {
    Number sums[kTile] = {};
    for (int32_t i = table.pair_first[pair]; i < table.pair_first[pair + 1]; ++i) {
      const Number* own = harmonics + table.third[i] * kTile;
      for (int e = 0; e < kTile; ++e) sums[e] += table.coefficients[i] * own[e];
    }
    std::memcpy(tile.matrix + pair * kTile, sums, sizeof(sums));
  }
}

// moved[e] = Σ_a matrix[a, c] x[e, a] for a vector of channels of `kEdges` edges.
template <typename T>
JAXGNN_INLINE inline void Move(const CoupledPath<NumberOf<T>>& path, const Tile<T>& tile, int from,
                               int64_t channel, int32_t component, Vectors<NumberOf<T>>& moved) {
  using Number = NumberOf<T>;
  const SparseTable<Number>& table = path.by_out;
  Clear<Number>(moved);
  for (int32_t p = table.outer_first[component]; p < table.outer_first[component + 1]; ++p) {
    const int64_t place = path.in_start + table.inner[p] * path.padded + channel;
    const Number* numbers = tile.matrix + p * kTile + from;
    for (int e = 0; e < kEdges; ++e) {
      Vector<Number> x;
      LoadVector(tile.x[from + e] + place, x);
      moved[e] += numbers[e] * x;
    }
  }
}

// The weights of a vector of channels of `kEdges` edges.
template <typename T>
JAXGNN_INLINE inline void LoadWeights(const CoupledPath<NumberOf<T>>& path, const Tile<T>& tile,
                                      int from, int64_t channel, Vectors<NumberOf<T>>& weights) {
  for (int e = 0; e < kEdges; ++e) {
    const T* own = tile.weights[from + e] + path.numbers.weight_start + channel;
    LoadSome(own, path.numbers.channels - channel, weights[e]);
  }
}

// Calls `block(from, channel)` for all vectors of channels of a path, `kEdges` edges at a time.
template <typename T, typename Block>
JAXGNN_INLINE inline void ForBlocks(const CoupledPath<NumberOf<T>>& path, const Tile<T>& tile,
                                    const Block& block) {
  for (int from = 0; from < tile.count; from += kEdges) {
    for (int64_t channel = 0; channel < path.padded; channel += kWidth<NumberOf<T>>) {
      block(from, channel);
    }
  }
}

template <typename T>
struct SumKernel : RowSums {
  using Number = NumberOf<T>;
  const Batch& batch;
  const GraphArgs& graph;
  const Couplings<Number>& couplings;
  const PaddedRows<T>& x;
  const AnyBuffer &slots, &harmonics, &weights;
  Result y;

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, Number* sums) const {
    const int64_t member = piece.member;
    const EdgeTiles<T> tiles{
        couplings,
        {graph.Indices(member), batch.Item<const int32_t>(slots, member), x.Item(member),
         batch.Item<const T>(harmonics, member), batch.Item<const T>(weights, member)}};
    tiles.For(piece.begin, piece.end, [&](const Tile<T>& tile) JAXGNN_INLINE {
      for (const CoupledPath<Number>& path : couplings.paths) {
        MakeMatrix(path, tile);
        ForBlocks(path, tile, [&](int from, int64_t channel) JAXGNN_INLINE {
          Add(path, tile, from, channel, sums + path.out_start + channel);
        });
      }
    });
  }

  JAXGNN_INLINE inline void Add(const CoupledPath<Number>& path, const Tile<T>& tile, int from,
                                int64_t channel, Number* sums) const {
    Vectors<Number> own, moved;
    LoadWeights(path, tile, from, channel, own);
    for (int32_t c = 0; c < path.numbers.out_dim; ++c) {
      Move(path, tile, from, channel, c, moved);
      Vector<Number> total;
      LoadVector(sums + c * path.padded, total);
      for (int e = 0; e < kEdges; ++e) total += own[e] * moved[e];
      std::memcpy(sums + c * path.padded, &total, sizeof(total));
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const Number* sums) const {
    const Components& out = couplings.out;
    out.Write(sums, batch.Item<T>(*y, member) + row * out.stored());
  }
};

// Calls `body(Type<T>{})` with the C++ type of a dtype that these kernels have.
template <typename Body>
ffi::Error SwitchStorage(ffi::DataType type, const Body& body) {
  return type == ffi::F64 ? body(Type<double>{}) : SwitchFloat(type, body);
}

ffi::Error TensorProductSum(ffi::ThreadPool pool, AnyBuffer unit_rows, AnyBuffer unit_offsets,
                            AnyBuffer indices, AnyBuffer slots, AnyBuffer x, AnyBuffer harmonics,
                            AnyBuffer weights, AnyBuffer paths, AnyBuffer entries,
                            AnyBuffer coefficients, Result y) {
  const Batch batch(y->dimensions(), 2);
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, y->dimensions()[batch.rank()], unit_rows, unit_offsets, indices);
  return SwitchStorage(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Couplings<NumberOf<T>> couplings(paths, entries, coefficients, x.dimensions().back(),
                                           y->dimensions().back(), harmonics.dimensions().back(),
                                           weights.dimensions().back());
    const PaddedRows<T> padded(pool, batch, x, couplings.in);
    const SumKernel<T> kernel{
        {couplings.out.width()}, batch, graph, couplings, padded, slots, harmonics, weights, y};
    AccumulateRows<NumberOf<T>>(
        pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, kernel,
        kUnitsOfTask);
    return ffi::Error::Success();
  });
}

// The operands of kernels whose result has a row for each edge.
struct EdgeOperands {
  AnyBuffer unit_rows, unit_offsets, indices, x, dy, paths, entries, coefficients;
};

// Computes the rows of edges of a result, by `kernel.Multiply(tile, dy, out)`.
template <typename Kernel, typename T>
void MultiplyEdges(ffi::ThreadPool pool, const Batch& batch, const EdgeOperands& operands,
                   const AnyBuffer* harmonics, const AnyBuffer* weights,
                   const Couplings<NumberOf<T>>& couplings, const Result& result) {
  const int64_t width = result->dimensions().back();
  const GraphArgs graph(batch, operands.dy.dimensions()[batch.rank()], operands.unit_rows,
                        operands.unit_offsets, operands.indices);
  const PaddedRows<T> x(pool, batch, operands.x, couplings.in);
  const PaddedRows<T> dy(pool, batch, operands.dy, couplings.out);
  const auto multiply = [&](int64_t member, int64_t begin, int64_t end) {
    const Kernel kernel{couplings};
    T* out = batch.Item<T>(*result, member);
    const EdgeTiles<T> tiles{couplings,
                             {graph.Indices(member), nullptr, x.Item(member),
                              harmonics ? batch.Item<const T>(*harmonics, member) : nullptr,
                              weights ? batch.Item<const T>(*weights, member) : nullptr}};
    const NumberOf<T>* slopes = dy.Item(member);
    const Units units = graph.UnitsOf(member);
    WithWidestIsa([&]() JAXGNN_INLINE {
      for (int64_t unit = begin; unit < end && units.rows[unit] < units.num_rows; ++unit) {
        const NumberOf<T>* own = slopes + units.rows[unit] * couplings.out.width();
        tiles.For(units.offsets[unit], units.offsets[unit + 1],
                  [&](const Tile<T>& tile) JAXGNN_INLINE { kernel.Multiply(tile, own, out); });
      }
    });
  };
  ForUnits(pool, batch.size(), graph.UnitsOf(0).count, multiply, kUnitsOfTask);
  for (int64_t member = 0; member < batch.size(); ++member) {
    const Units units = graph.UnitsOf(member);
    T* out = batch.Item<T>(*result, member);
    std::fill(out + units.offsets[units.count] * width, out + graph.num_edges() * width,
              FromNumber<T>(NumberOf<T>{0}));
  }
}

template <typename T>
struct WeightKernel {
  using Number = NumberOf<T>;
  const Couplings<Number>& couplings;

  JAXGNN_INLINE inline void Multiply(const Tile<T>& tile, const Number* dy, T* out) const {
    for (const CoupledPath<Number>& path : couplings.paths) {
      MakeMatrix(path, tile);
      ForBlocks(path, tile, [&](int from, int64_t channel) JAXGNN_INLINE {
        MultiplyBlock(path, tile, from, channel, dy + path.out_start + channel, out);
      });
    }
  }

  JAXGNN_INLINE inline void MultiplyBlock(const CoupledPath<Number>& path, const Tile<T>& tile,
                                          int from, int64_t channel, const Number* dy,
                                          T* out) const {
    Vectors<Number> sums, moved;
    Clear<Number>(sums);
    for (int32_t c = 0; c < path.numbers.out_dim; ++c) {
      Move(path, tile, from, channel, c, moved);
      Vector<Number> slope;
      LoadVector(dy + c * path.padded, slope);
      for (int e = 0; e < kEdges; ++e) sums[e] += slope * moved[e];
    }
    for (int e = 0; e < kEdges && from + e < tile.count; ++e) {
      T* to = out + tile.slots[from + e] * couplings.weights + path.numbers.weight_start;
      StoreSome(sums[e], path.numbers.channels - channel, to + channel);
    }
  }
};

template <typename T>
struct HarmonicKernel {
  using Number = NumberOf<T>;
  const Couplings<Number>& couplings;

  JAXGNN_INLINE inline void Multiply(const Tile<T>& tile, const Number* dy, T* out) const {
    constexpr int kLanesOfTile = kTile * kWidth<Number>;
    const int64_t count = couplings.harmonics;
    Number* sums = Scratch<Number, 5>(count * kLanesOfTile);  // [components, kTile, lanes]
    std::memset(sums, 0, count * kLanesOfTile * sizeof(Number));
    for (const CoupledPath<Number>& path : couplings.paths) {
      Number* own = sums + path.numbers.sh_start * kLanesOfTile;
      ForBlocks(path, tile, [&](int from, int64_t channel) JAXGNN_INLINE {
        AddBlock(path, tile, from, channel, dy + path.out_start + channel,
                 own + from * kWidth<Number>);
      });
    }
    for (int e = 0; e < tile.count; ++e) {
      for (int64_t b = 0; b < count; ++b) {
        Vector<Number> lanes;
        LoadVector(sums + (b * kTile + e) * kWidth<Number>, lanes);
        out[tile.slots[e] * count + b] = FromNumber<T>(SumOfVector<Number>(lanes));
      }
    }
  }

  JAXGNN_INLINE inline void AddBlock(const CoupledPath<Number>& path, const Tile<T>& tile, int from,
                                     int64_t channel, const Number* dy, Number* sums) const {
    const SparseTable<Number>& table = path.by_harmonic;
    Vectors<Number> own, totals, slopes[kMostComponents];
    LoadWeights(path, tile, from, channel, own);
    for (int32_t c = 0; c < path.numbers.out_dim; ++c) {
      Vector<Number> slope;
      LoadVector(dy + c * path.padded, slope);
      for (int e = 0; e < kEdges; ++e) slopes[c][e] = slope * own[e];
    }
    for (int32_t b = 0; b < path.numbers.sh_dim; ++b) {
      Number* to = sums + b * kTile * kWidth<Number>;
      std::memcpy(totals, to, sizeof(totals));
      for (int32_t p = table.outer_first[b]; p < table.outer_first[b + 1]; ++p) {
        AddPair(path, tile, from, channel, p, slopes[table.inner[p]], totals);
      }
      std::memcpy(to, totals, sizeof(totals));
    }
  }

  // totals += slopes Σ_a C[a] x[a] for a component of the harmonics and one of the result.
  JAXGNN_INLINE inline void AddPair(const CoupledPath<Number>& path, const Tile<T>& tile, int from,
                                    int64_t channel, int32_t pair, const Vectors<Number>& slopes,
                                    Vectors<Number>& totals) const {
    const SparseTable<Number>& table = path.by_harmonic;
    Vectors<Number> moved;
    Clear<Number>(moved);
    for (int32_t i = table.pair_first[pair]; i < table.pair_first[pair + 1]; ++i) {
      const int64_t place = path.in_start + table.third[i] * path.padded + channel;
      for (int e = 0; e < kEdges; ++e) {
        Vector<Number> x;
        LoadVector(tile.x[from + e] + place, x);
        moved[e] += table.coefficients[i] * x;
      }
    }
    for (int e = 0; e < kEdges; ++e) totals[e] += slopes[e] * moved[e];
  }
};

ffi::Error WeightProducts(ffi::ThreadPool pool, AnyBuffer unit_rows, AnyBuffer unit_offsets,
                          AnyBuffer indices, AnyBuffer x, AnyBuffer dy, AnyBuffer harmonics,
                          AnyBuffer paths, AnyBuffer entries, AnyBuffer coefficients,
                          Result weights) {
  const Batch batch(weights->dimensions(), 2);
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const EdgeOperands operands{unit_rows, unit_offsets, indices, x,
                              dy,        paths,        entries, coefficients};
  return SwitchStorage(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Couplings<NumberOf<T>> couplings(paths, entries, coefficients, x.dimensions().back(),
                                           dy.dimensions().back(), harmonics.dimensions().back(),
                                           weights->dimensions().back());
    MultiplyEdges<WeightKernel<T>, T>(pool, batch, operands, &harmonics, nullptr, couplings,
                                      weights);
    return ffi::Error::Success();
  });
}

ffi::Error HarmonicProducts(ffi::ThreadPool pool, AnyBuffer unit_rows, AnyBuffer unit_offsets,
                            AnyBuffer indices, AnyBuffer x, AnyBuffer dy, AnyBuffer weights,
                            AnyBuffer paths, AnyBuffer entries, AnyBuffer coefficients,
                            Result harmonics) {
  const Batch batch(harmonics->dimensions(), 2);
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const EdgeOperands operands{unit_rows, unit_offsets, indices, x,
                              dy,        paths,        entries, coefficients};
  return SwitchStorage(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Couplings<NumberOf<T>> couplings(paths, entries, coefficients, x.dimensions().back(),
                                           dy.dimensions().back(), harmonics->dimensions().back(),
                                           weights.dimensions().back());
    MultiplyEdges<HarmonicKernel<T>, T>(pool, batch, operands, nullptr, &weights, couplings,
                                        harmonics);
    return ffi::Error::Success();
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_tensor_product_sum, jaxgnn::TensorProductSum,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // slots, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // harmonics
                                  .Arg<xla::ffi::AnyBuffer>()  // weights
                                  .Arg<xla::ffi::AnyBuffer>()  // paths
                                  .Arg<xla::ffi::AnyBuffer>()  // entries
                                  .Arg<xla::ffi::AnyBuffer>()  // coefficients
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_tensor_weight_products, jaxgnn::WeightProducts,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // harmonics
                                  .Arg<xla::ffi::AnyBuffer>()  // paths
                                  .Arg<xla::ffi::AnyBuffer>()  // entries
                                  .Arg<xla::ffi::AnyBuffer>()  // coefficients
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_tensor_harmonic_products, jaxgnn::HarmonicProducts,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // weights
                                  .Arg<xla::ffi::AnyBuffer>()  // paths
                                  .Arg<xla::ffi::AnyBuffer>()  // entries
                                  .Arg<xla::ffi::AnyBuffer>()  // coefficients
                                  .Ret<xla::ffi::AnyBuffer>());

#pragma GCC visibility pop
