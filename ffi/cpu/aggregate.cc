// Reductions over the edges of each row, several in one pass, and their gradients; see
// jaxgnn/ops/_aggregate/reference/aggregate.py for the maths.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "jaxgnn_ffi/exp.h"
#include "jaxgnn_ffi/graph_args.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;
using Buffer = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The results, by their place among the reductions; -1 where one is not wanted.
struct Places {
  int sum = -1, mean = -1, var = -1, std = -1, max = -1, min = -1, softmax = -1, logsumexp = -1;
  int count = 0;

  static bool Read(std::string_view names, Places* places) {
    while (!names.empty()) {
      const size_t comma = std::min(names.find(','), names.size());
      int* place = places->Of(names.substr(0, comma));
      if (place == nullptr) return false;
      *place = places->count++;
      names.remove_prefix(std::min(comma + 1, names.size()));
    }
    return true;
  }

  int* Of(std::string_view name) {
    if (name == "sum") return &sum;
    if (name == "mean") return &mean;
    if (name == "var") return &var;
    if (name == "std") return &std;
    if (name == "max") return &max;
    if (name == "min") return &min;
    if (name == "softmax") return &softmax;
    if (name == "logsumexp") return &logsumexp;
    return nullptr;
  }

  bool HasMoments() const { return var >= 0 || std >= 0; }
  bool HasSum() const { return !HasMoments() && (sum >= 0 || mean >= 0); }
  bool HasExponentials() const { return softmax >= 0 || logsumexp >= 0; }
};

// Of an extreme: nothing more, how many edges have it, the slot of the first that has it, or its
// holder: the sender of the only edge that has it, or ~count if so many others have it.
enum class Ties { kIgnored, kCounted, kFirst, kHolder };

JAXGNN_INLINE inline int32_t CountOf(int32_t holder) { return holder < 0 ? ~holder : 1; }

// The holder when one edge more has the extreme.
JAXGNN_INLINE inline int32_t WithOneMore(int32_t holder) { return holder < 0 ? holder - 1 : ~2; }

// Where the parts of a row's state lie, each `dim` floats; -1 for those that there are not. The
// first part has the number of edges in its first entry.
struct Layout {
  int64_t sum = -1, shift = -1, first = -1, second = -1;  // Σ x; x_0, Σ (x - x_0), Σ (x - x_0)²
  int64_t highest = -1, highest_ties = -1, lowest = -1, lowest_ties = -1;
  int64_t peak = -1, total = -1, weighted = -1;  // max x, Σ exp(x - peak), Σ exp(x - peak) x
  int64_t width;

  Layout(const Places& places, Ties ties, int64_t dim) : width(dim) {
    const auto take = [&](int64_t& part) { part = width, width += dim; };
    if (places.HasSum()) take(sum);
    if (places.HasMoments()) take(shift), take(first), take(second);
    if (places.max >= 0) take(highest);
    if (places.min >= 0) take(lowest);
    if (places.max >= 0 && ties != Ties::kIgnored) take(highest_ties);
    if (places.min >= 0 && ties != Ties::kIgnored) take(lowest_ties);
    if (places.HasExponentials()) take(peak), take(total);
    if (places.softmax >= 0) take(weighted);
  }
};

// The larger of two numbers, or the smaller; NaN if one of them is. Selections like these become
// vector instructions, where logical operations on comparisons may not.
template <bool kMin>
JAXGNN_INLINE inline float Better(float x, float best) {
  const float number = kMin ? (x < best ? x : best) : (x > best ? x : best);
  return x != x ? x : number;
}

template <bool kMin, typename Number>
JAXGNN_INLINE inline Number IfBeats(float x, float best, Number yes, Number no) {
  return kMin ? (x < best ? yes : no) : (x > best ? yes : no);
}

// The functions below take `kRows` rows of numbers at once, to read and write the state once.

template <int kRows, typename T>
JAXGNN_INLINE inline void AddSum(const T* const* x, int64_t dim, float* __restrict sum) {
  for (int64_t i = 0; i < dim; ++i) {
    float more = ToFloat(x[0][i]);
    for (int r = 1; r < kRows; ++r) more += ToFloat(x[r][i]);
    sum[i] += more;
  }
}

template <int kRows, typename T>
JAXGNN_INLINE inline void AddMoments(const T* const* x, int64_t dim, const float* __restrict shift,
                                     float* __restrict first, float* __restrict second) {
  for (int64_t i = 0; i < dim; ++i) {
    float more = 0.0f, squares = 0.0f;
    for (int r = 0; r < kRows; ++r) {
      const float d = ToFloat(x[r][i]) - shift[i];
      more += d, squares += d * d;
    }
    first[i] += more, second[i] += squares;
  }
}

template <bool kMin, int kRows, typename T>
JAXGNN_INLINE inline void AddExtreme(const T* const* x, int64_t dim, float* __restrict best) {
  for (int64_t i = 0; i < dim; ++i) {
    float found = best[i];
    for (int r = 0; r < kRows; ++r) found = Better<kMin>(ToFloat(x[r][i]), found);
    best[i] = found;
  }
}

template <bool kMin, int kRows, typename T>
JAXGNN_INLINE inline void CountExtreme(const T* const* x, int64_t dim, float* __restrict best,
                                       float* __restrict count) {
  for (int64_t i = 0; i < dim; ++i) {
    float found = best[i], number = count[i];
    for (int r = 0; r < kRows; ++r) {
      const float value = ToFloat(x[r][i]);
      const float more = number + (value == found ? 1.0f : 0.0f);
      number = IfBeats<kMin>(value, found, 1.0f, more);
      found = Better<kMin>(value, found);
    }
    best[i] = found, count[i] = number;
  }
}

// Finds the name of the first edge that has the extreme, or with `kCounts` its holder. These are
// int32 in the place of floats.
template <bool kMin, bool kCounts, int kRows, typename T>
JAXGNN_INLINE inline void FindExtreme(const T* const* x, const int32_t* names, int64_t dim,
                                      float* __restrict best, float* __restrict holders) {
  for (int64_t i = 0; i < dim; ++i) {
    float found = best[i];
    int32_t at = BitCast<int32_t>(holders[i]);
    for (int r = 0; r < kRows; ++r) {
      const float value = ToFloat(x[r][i]);
      if constexpr (kCounts) at = value == found ? WithOneMore(at) : at;
      at = IfBeats<kMin>(value, found, names[r], at);
      found = Better<kMin>(value, found);
    }
    best[i] = found, holders[i] = BitCast<float>(at);
  }
}

// The shift of exponentials: a row of only -inf would give inf - inf.
JAXGNN_INLINE inline float ShiftOf(float peak) { return peak == -kInfinity ? 0.0f : peak; }

template <int kRows, bool kWeighted, typename T>
JAXGNN_INLINE inline void AddExponentials(const T* const* x, int64_t dim, float* __restrict peak,
                                          float* __restrict total, float* __restrict weighted) {
  for (int64_t i = 0; i < dim; ++i) {
    float highest = peak[i];
    for (int r = 0; r < kRows; ++r) highest = Better<false>(ToFloat(x[r][i]), highest);
    const float shift = ShiftOf(highest);
    const float factor = ExpOfNegative(peak[i] - shift);
    float more = 0.0f, products = 0.0f;
    for (int r = 0; r < kRows; ++r) {
      const float value = ToFloat(x[r][i]), exponential = ExpOfNegative(value - shift);
      more += exponential;
      if constexpr (kWeighted) products += exponential * value;
    }
    peak[i] = highest;
    total[i] = total[i] * factor + more;
    if constexpr (kWeighted) weighted[i] = weighted[i] * factor + products;
  }
}

template <typename T>
struct ForwardKernel {
  int64_t width, dim;
  Layout layout;
  Places places;
  Ties ties;
  const Batch& batch;
  const GraphArgs& graph;
  const Buffer& x;
  Result y, mean, mean_rest, variance, highest, lowest, peak, total, soft;

  JAXGNN_INLINE inline void Start(float* state) const { state[0] = 0.0f; }

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* state) const {
    if (piece.begin == piece.end) return;
    const int32_t* indices = graph.Indices(piece.member);
    const T* numbers = batch.Item<const T>(x, piece.member);
    const auto row_of = [&](int64_t edge) JAXGNN_INLINE {
      return numbers + (indices ? static_cast<int64_t>(indices[edge]) : edge) * dim;
    };
    Begin(row_of(piece.begin), piece, state);
    int64_t edge = piece.begin;
    for (; edge + 4 <= piece.end; edge += 4) {
      const T* rows[4];
      for (int r = 0; r < 4; ++r) {
        rows[r] = row_of(edge + r);
        const int64_t ahead = std::min<int64_t>(edge + r + kPrefetchEdges, piece.end - 1);
        PrefetchBytes(row_of(ahead), dim * sizeof(T));
      }
      Add<4>(rows, indices, edge, state);
    }
    for (; edge < piece.end; ++edge) {
      const T* row = row_of(edge);
      Add<1>(&row, indices, edge, state);
    }
  }

  // The state before the first edge, of which the shift and the extremes are known.
  JAXGNN_INLINE inline void Begin(const T* row, const Piece& piece, float* state) const {
    state[0] = static_cast<float>(piece.end - piece.begin);
    const auto fill = [&](int64_t part, float value) JAXGNN_INLINE {
      if (part < 0) return;
      for (int64_t i = 0; i < dim; ++i) state[part + i] = value;
    };
    const auto copy = [&](int64_t part) JAXGNN_INLINE {
      if (part < 0) return;
      for (int64_t i = 0; i < dim; ++i) state[part + i] = ToFloat(row[i]);
    };
    for (int64_t part : {layout.sum, layout.first, layout.second, layout.total, layout.weighted}) {
      fill(part, 0.0f);
    }
    fill(layout.peak, -kInfinity);
    copy(layout.shift);
    if (ties == Ties::kHolder) {  // the first edge becomes the holder when it is added
      fill(layout.highest, -kInfinity), fill(layout.lowest, kInfinity);
    } else {
      copy(layout.highest), copy(layout.lowest);
    }
    float nobody = 0.0f;
    if (ties == Ties::kFirst) nobody = BitCast<float>(static_cast<int32_t>(piece.begin));
    if (ties == Ties::kHolder) nobody = BitCast<float>(~0);
    fill(layout.highest_ties, nobody), fill(layout.lowest_ties, nobody);
  }

  template <int kRows>
  JAXGNN_INLINE inline void Add(const T* const* rows, const int32_t* indices, int64_t edge,
                                float* state) const {
    const auto part = [&](int64_t at) JAXGNN_INLINE { return state + at; };
    if (layout.sum >= 0) AddSum<kRows>(rows, dim, part(layout.sum));
    if (layout.shift >= 0) {
      AddMoments<kRows>(rows, dim, part(layout.shift), part(layout.first), part(layout.second));
    }
    if (layout.highest >= 0) {
      AddOneExtreme<false, kRows>(rows, indices, edge, part(layout.highest),
                                  part(layout.highest_ties));
    }
    if (layout.lowest >= 0) {
      AddOneExtreme<true, kRows>(rows, indices, edge, part(layout.lowest),
                                 part(layout.lowest_ties));
    }
    if (layout.weighted >= 0) {
      AddExponentials<kRows, true>(rows, dim, part(layout.peak), part(layout.total),
                                   part(layout.weighted));
    } else if (layout.peak >= 0) {
      AddExponentials<kRows, false>(rows, dim, part(layout.peak), part(layout.total), nullptr);
    }
  }

  template <bool kMin, int kRows>
  JAXGNN_INLINE inline void AddOneExtreme(const T* const* rows, const int32_t* indices,
                                          int64_t edge, float* best, float* tied) const {
    if (ties == Ties::kIgnored) {
      AddExtreme<kMin, kRows>(rows, dim, best);
    } else if (ties == Ties::kCounted) {
      CountExtreme<kMin, kRows>(rows, dim, best, tied);
    } else if (ties == Ties::kHolder) {
      FindExtreme<kMin, true, kRows>(rows, indices + edge, dim, best, tied);
    } else {
      int32_t slots[kRows];
      for (int r = 0; r < kRows; ++r) slots[r] = static_cast<int32_t>(edge) + r;
      FindExtreme<kMin, false, kRows>(rows, slots, dim, best, tied);
    }
  }

  JAXGNN_INLINE inline void Merge(float* state, const float* more) const {
    const float edges = more[0];
    if (edges == 0.0f) return;
    state[0] += edges;
    for (int64_t i = 0; i < dim; ++i) {
      if (layout.sum >= 0) state[layout.sum + i] += more[layout.sum + i];
      if (layout.shift >= 0) {
        const float d = more[layout.shift + i] - state[layout.shift + i];
        const float first = more[layout.first + i];
        state[layout.first + i] += first + edges * d;
        state[layout.second + i] += more[layout.second + i] + d * (2.0f * first + edges * d);
      }
      if (layout.highest >= 0)
        MergeExtreme<false>(layout.highest, layout.highest_ties, i, state, more);
      if (layout.lowest >= 0) MergeExtreme<true>(layout.lowest, layout.lowest_ties, i, state, more);
      if (layout.peak >= 0) {
        float& peak = state[layout.peak + i];
        const float highest = Better<false>(more[layout.peak + i], peak), shift = ShiftOf(highest);
        const float ours = ExpOfNegative(peak - shift);
        const float theirs = ExpOfNegative(more[layout.peak + i] - shift);
        for (int64_t part : {layout.total, layout.weighted}) {
          if (part >= 0) state[part + i] = state[part + i] * ours + more[part + i] * theirs;
        }
        peak = highest;
      }
    }
  }

  template <bool kMin>
  JAXGNN_INLINE inline void MergeExtreme(int64_t best, int64_t tied, int64_t i, float* state,
                                         const float* more) const {
    const float value = more[best + i], found = state[best + i];
    state[best + i] = Better<kMin>(value, found);
    if (ties == Ties::kCounted && value == found) state[tied + i] += more[tied + i];
    if (ties == Ties::kHolder && value == found) {
      const int32_t both =
          CountOf(BitCast<int32_t>(state[tied + i])) + CountOf(BitCast<int32_t>(more[tied + i]));
      state[tied + i] = BitCast<float>(~both);
    }
    if (ties != Ties::kIgnored && IfBeats<kMin>(value, found, true, false)) {
      state[tied + i] = more[tied + i];
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* state) const {
    const float edges = state[0], nobody = BitCast<float>(~0);
    T* out = batch.Item<T>(*y, member) + row * places.count * dim;
    const auto kept = [&](const Result& array) JAXGNN_INLINE {
      float* item = batch.Item<float>(*array, member);
      return item ? item + row * dim : nullptr;
    };
    float *const highest_kept = kept(highest), *const lowest_kept = kept(lowest);
    float* const arrays[] = {kept(mean),  kept(mean_rest), kept(variance), highest_kept,
                             lowest_kept, kept(peak),      kept(total),    kept(soft)};
    if (edges == 0.0f) {
      for (int64_t i = 0; i < places.count * dim; ++i) out[i] = FromFloat<T>(0.0f);
      for (float* array : arrays) {
        const bool is_holder =
            ties == Ties::kHolder && (array == highest_kept || array == lowest_kept);
        for (int64_t i = 0; array && i < dim; ++i) array[i] = is_holder ? nobody : 0.0f;
      }
      return;
    }
    const auto write = [&](int place, float* also, const auto& value) JAXGNN_INLINE {
      if (place >= 0) {
        for (int64_t i = 0; i < dim; ++i) out[place * dim + i] = FromFloat<T>(value(i));
      }
      if (also) {
        for (int64_t i = 0; i < dim; ++i) also[i] = value(i);
      }
    };
    const auto part = [&](int64_t at) JAXGNN_INLINE {
      return [state, at](int64_t i) JAXGNN_INLINE { return state[at + i]; };
    };
    if (layout.sum >= 0) {
      const float* sum = state + layout.sum;
      write(places.sum, nullptr, [=](int64_t i) JAXGNN_INLINE { return sum[i]; });
      write(places.mean, nullptr, [=](int64_t i) JAXGNN_INLINE { return sum[i] / edges; });
    }
    if (layout.shift >= 0) {
      const float *shift = state + layout.shift, *first = state + layout.first,
                  *second = state + layout.second;
      const auto spread = [=](int64_t i) JAXGNN_INLINE {
        const float squares = (second[i] - first[i] * first[i] / edges) / edges;
        return squares < 0.0f ? 0.0f : squares;
      };
      write(places.sum, nullptr,
            [=](int64_t i) JAXGNN_INLINE { return shift[i] * edges + first[i]; });
      const auto average = [=](int64_t i) JAXGNN_INLINE { return shift[i] + first[i] / edges; };
      write(places.mean, kept(mean), average);
      write(-1, kept(mean_rest),
            [=](int64_t i) JAXGNN_INLINE { return (shift[i] - average(i)) + first[i] / edges; });
      write(places.var, kept(variance), spread);
      write(places.std, nullptr, [=](int64_t i) JAXGNN_INLINE { return std::sqrt(spread(i)); });
    }
    if (layout.highest >= 0) write(places.max, nullptr, part(layout.highest));
    if (layout.lowest >= 0) write(places.min, nullptr, part(layout.lowest));
    const auto held = [&](int64_t best, int64_t ties_at) JAXGNN_INLINE {
      const bool is_holder = ties == Ties::kHolder;  // nobody has a NaN
      return [=](int64_t i) JAXGNN_INLINE {
        const bool is_nan = state[best + i] != state[best + i];
        return is_holder && is_nan ? nobody : state[ties_at + i];
      };
    };
    if (highest_kept) write(-1, highest_kept, held(layout.highest, layout.highest_ties));
    if (lowest_kept) write(-1, lowest_kept, held(layout.lowest, layout.lowest_ties));
    if (layout.peak >= 0) {
      const float *highest = state + layout.peak, *exponentials = state + layout.total,
                  *weighted = state + layout.weighted;
      write(places.logsumexp, nullptr, [=](int64_t i) JAXGNN_INLINE {
        return ShiftOf(highest[i]) + std::log(exponentials[i]);
      });
      write(-1, kept(peak), [=](int64_t i) JAXGNN_INLINE { return ShiftOf(highest[i]); });
      write(-1, kept(total), part(layout.total));
      write(places.softmax, kept(soft),
            [=](int64_t i) JAXGNN_INLINE { return weighted[i] / exponentials[i]; });
    }
  }
};

ffi::Error Aggregate(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets, Buffer indices,
                     Buffer x, Result y, Result mean, Result mean_rest, Result variance,
                     Result highest, Result lowest, Result peak, Result total, Result soft,
                     std::string_view reductions, std::string_view ties_kept) {
  const Batch batch(y->dimensions(), 2);
  const int64_t num_rows = y->dimensions()[batch.rank()], dim = x.dimensions().back();
  Places places;
  if (!Places::Read(reductions, &places)) {
    return ffi::Error::InvalidArgument("jaxgnn_aggregate: unknown reduction");
  }
  Ties ties = Ties::kIgnored;
  if (highest->element_count() > 0 || lowest->element_count() > 0) {
    ties = ties_kept == "slot" ? Ties::kFirst
                               : (ties_kept == "holder" ? Ties::kHolder : Ties::kCounted);
  }
  const Layout layout(places, ties, dim);
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const ForwardKernel<T> kernel{layout.width, dim,    layout, places, ties,      batch,
                                  graph,        x,      y,      mean,   mean_rest, variance,
                                  highest,      lowest, peak,   total,  soft};
    AccumulateRows(
        pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, kernel);
    return ffi::Error::Success();
  });
}

// The terms of a gradient; see pallas_kernels/arguments/aggregate.py. Null where there is none.
struct TermBuffers {
  const Buffer *constant, *linear, *centre, *top, *top_gradient, *bottom, *bottom_gradient, *peak,
      *soft, *exp_constant, *exp_linear;
};

template <typename T>
struct Terms {
  const float *constant, *linear, *centre;
  const void *top, *bottom;  // of T, or slots
  const float *top_gradient, *bottom_gradient, *peak, *soft, *exp_constant, *exp_linear;
  bool by_slot;

  Terms(const Batch& batch, const TermBuffers& from, int64_t member)
      : constant(Item<float>(batch, from.constant, member)),
        linear(Item<float>(batch, from.linear, member)),
        centre(Item<float>(batch, from.centre, member)),
        top(Extreme(batch, from.top, member)),
        bottom(Extreme(batch, from.bottom, member)),
        top_gradient(Item<float>(batch, from.top_gradient, member)),
        bottom_gradient(Item<float>(batch, from.bottom_gradient, member)),
        peak(Item<float>(batch, from.peak, member)),
        soft(Item<float>(batch, from.soft, member)),
        exp_constant(Item<float>(batch, from.exp_constant, member)),
        exp_linear(Item<float>(batch, from.exp_linear, member)),
        by_slot(IsSlots(from.top) || IsSlots(from.bottom)) {}

  template <typename Number>
  static const Number* Item(const Batch& batch, const Buffer* buffer, int64_t member) {
    return buffer ? batch.Item<const Number>(*buffer, member) : nullptr;
  }

  // `Item` counts in entries of its type.
  static const void* Extreme(const Batch& batch, const Buffer* buffer, int64_t member) {
    if (IsSlots(buffer)) return Item<int32_t>(batch, buffer, member);
    return Item<T>(batch, buffer, member);
  }

  static bool IsSlots(const Buffer* buffer) {
    return buffer && buffer->element_count() > 0 && buffer->element_type() == ffi::S32;
  }

  // Adds the gradient of edges to one number, whose other ends are `kRows` rows.
  template <int kRows>
  JAXGNN_INLINE inline void Add(const int64_t* rows, const int64_t* slots, const T* x, int64_t dim,
                                float* __restrict sums) const {
    const auto at = [&](const float* array, int r) JAXGNN_INLINE { return array + rows[r] * dim; };
    if (constant && linear) {
      const float *a[kRows], *b[kRows], *c[kRows];
      for (int r = 0; r < kRows; ++r) {
        a[r] = at(constant, r), b[r] = at(linear, r), c[r] = at(centre, r);
      }
      for (int64_t i = 0; i < dim; ++i) {
        const float value = ToFloat(x[i]);
        float more = 0.0f;
        for (int r = 0; r < kRows; ++r) more += a[r][i] + b[r][i] * (value - c[r][i]);
        sums[i] += more;
      }
    } else if (constant) {
      const float* a[kRows];
      for (int r = 0; r < kRows; ++r) a[r] = at(constant, r);
      for (int64_t i = 0; i < dim; ++i) {
        float more = a[0][i];
        for (int r = 1; r < kRows; ++r) more += a[r][i];
        sums[i] += more;
      }
    }
    AddExtreme<kRows>(rows, slots, x, dim, top, top_gradient, sums);
    AddExtreme<kRows>(rows, slots, x, dim, bottom, bottom_gradient, sums);
    if (!peak) return;
    for (int r = 0; r < kRows; ++r) {
      const float* highest = at(peak, r);
      const float* a = exp_constant ? at(exp_constant, r) : nullptr;
      const float *b = exp_linear ? at(exp_linear, r) : nullptr, *c = b ? at(soft, r) : nullptr;
      for (int64_t i = 0; i < dim; ++i) {
        const float value = ToFloat(x[i]), constants = a ? a[i] : 0.0f;
        const float factor = b ? constants + b[i] * (1.0f + (value - c[i])) : constants;
        sums[i] += ExpOfNegative(value - highest[i]) * factor;
      }
    }
  }

  template <int kRows>
  JAXGNN_INLINE inline void AddExtreme(const int64_t* rows, const int64_t* slots, const T* x,
                                       int64_t dim, const void* extreme, const float* gradient,
                                       float* __restrict sums) const {
    if (!extreme) return;
    if (by_slot) {
      for (int r = 0; r < kRows; ++r) {
        const int32_t* found = static_cast<const int32_t*>(extreme) + rows[r] * dim;
        const float* slope = gradient + rows[r] * dim;
        const int32_t slot = static_cast<int32_t>(slots[r]);
        for (int64_t i = 0; i < dim; ++i) sums[i] += found[i] == slot ? slope[i] : 0.0f;
      }
      return;
    }
    const T* found[kRows];
    const float* slope[kRows];
    for (int r = 0; r < kRows; ++r) {
      found[r] = static_cast<const T*>(extreme) + rows[r] * dim;
      slope[r] = gradient + rows[r] * dim;
    }
    for (int64_t i = 0; i < dim; ++i) {
      const float value = ToFloat(x[i]);
      float more = 0.0f;
      for (int r = 0; r < kRows; ++r) {
        more += ToFloat(found[r][i]) == value ? slope[r][i] : 0.0f;
      }
      sums[i] += more;
    }
  }

  // Asks for what lies at a row.
  JAXGNN_INLINE inline void Prefetch(int64_t row, int64_t dim) const {
    for (const float* array : {constant, linear, centre, top_gradient, bottom_gradient, peak, soft,
                               exp_constant, exp_linear}) {
      if (array) PrefetchBytes(array + row * dim, dim * sizeof(float));
    }
    const int64_t size = by_slot ? sizeof(int32_t) : sizeof(T);
    for (const void* array : {top, bottom}) {
      if (array) PrefetchBytes(static_cast<const char*>(array) + row * dim * size, dim * size);
    }
  }
};

// Sums of each sender over its edges: the rows are those of the transposed graph.
template <typename T>
struct ColumnsKernel : RowSums {
  const Batch& batch;
  const GraphArgs& graph;
  const Buffer& x;
  const TermBuffers& terms;
  Result dx;

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* sums) const {
    const int64_t dim = width;
    const int32_t* receivers = graph.Indices(piece.member);
    const T* own = batch.Item<const T>(x, piece.member) + piece.row * dim;
    const Terms<T> found(batch, terms, piece.member);
    int64_t edge = piece.begin;
    for (; edge + 4 <= piece.end; edge += 4) {
      int64_t rows[4];
      for (int r = 0; r < 4; ++r) {
        rows[r] = receivers[edge + r];
        found.Prefetch(receivers[std::min<int64_t>(edge + r + kPrefetchEdges, piece.end - 1)], dim);
      }
      found.template Add<4>(rows, nullptr, own, dim, sums);
    }
    for (; edge < piece.end; ++edge) {
      const int64_t row = receivers[edge];
      found.template Add<1>(&row, nullptr, own, dim, sums);
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* sums) const {
    float* out = batch.Item<float>(*dx, member) + row * width;
    for (int64_t i = 0; i < width; ++i) out[i] = sums[i];
  }
};

// The rows that have edges, and their edges: `body(row, begin, end)` for each.
template <typename Body>
JAXGNN_INLINE inline void ForRows(const Units& units, const Body& body) {
  for (int64_t unit = 0; unit < units.count && units.rows[unit] < units.num_rows;) {
    const int64_t row = units.rows[unit], begin = units.offsets[unit];
    do ++unit;
    while (units.Continues(unit));
    if (begin < units.offsets[unit]) body(row, begin, units.offsets[unit]);
  }
}

// An extreme with its gradient. Without `best` an extreme that no edge has alone has no gradient.
struct ExtremeBuffers {
  const Buffer &best, &gradient, &holder;

  bool IsThere() const { return holder.element_count() > 0; }
};

// Columns of a task: some cache lines of floats.
constexpr int64_t kColumnsPerTask = 64;
// How many rows ahead of the additions their gradients are asked for.
constexpr int64_t kRowsAhead = 6;
// Looking for an extreme in an edge's number by itself takes as long as in so many together.
constexpr int64_t kTogether = 8;

// Adds the gradients of extremes to the numbers of the senders that have them. A task does all rows
// of its columns, one after the other, so nothing is atomic and the order is fixed.
template <typename T>
struct ExtremesKernel {
  const Batch& batch;
  const GraphArgs& graph;
  const Buffer& x;
  int64_t dim;
  Result dx;

  // Whether so many edges share an extreme that all edges are better compared with it.
  bool AreMostShared(ffi::ThreadPool pool, const ExtremeBuffers& extreme, int64_t edges) const {
    if (!extreme.IsThere() || extreme.best.element_count() == 0) return false;
    std::vector<int64_t> shared(batch.size(), 0);
    ParallelFor(pool, batch.size(), [&](int64_t member) {
      const int32_t* holders = batch.Item<const int32_t>(extreme.holder, member);
      int64_t found = 0;
      ForRows(graph.UnitsOf(member), [&](int64_t row, int64_t begin, int64_t end) {
        int64_t columns = 0;
        for (int64_t i = 0; i < dim; ++i) columns += holders[row * dim + i] < ~0;
        found += columns * (end - begin);
      });
      shared[member] = found;
    });
    int64_t all = 0;
    for (int64_t found : shared) all += found;
    return all * kTogether > batch.size() * edges * dim;
  }

  void Add(ffi::ThreadPool pool, const ExtremeBuffers& extreme) const {
    if (!extreme.IsThere()) return;
    const int64_t tasks_each = (dim + kColumnsPerTask - 1) / kColumnsPerTask;
    ParallelFor(pool, batch.size() * tasks_each, [&](int64_t task) {
      const int64_t member = task / tasks_each, first = task % tasks_each * kColumnsPerTask;
      const Columns columns{graph.Indices(member),
                            batch.Item<const T>(x, member),
                            batch.Item<const T>(extreme.best, member),
                            batch.Item<const float>(extreme.gradient, member),
                            batch.Item<const int32_t>(extreme.holder, member),
                            batch.Item<float>(*dx, member),
                            dim,
                            first,
                            std::min(first + kColumnsPerTask, dim)};
      WithWidestIsa([&]() JAXGNN_INLINE {
        ForRows(graph.UnitsOf(member), [&](int64_t row, int64_t begin, int64_t end) JAXGNN_INLINE {
          columns.PrefetchRow(std::min(row + kRowsAhead, graph.num_rows() - 1));
          columns.PrefetchHolders(std::min(row + 1, graph.num_rows() - 1));
          columns.AddRow(row, begin, end);
        });
      });
    });
  }

  // Columns [first, last) of one member.
  struct Columns {
    const int32_t* indices;
    const T *x, *best;
    const float* gradient;
    const int32_t* holder;
    float* dx;
    int64_t dim, first, last;

    JAXGNN_INLINE inline void PrefetchRow(int64_t row) const {
      PrefetchBytes(holder + row * dim + first, (last - first) * sizeof(int32_t));
      PrefetchBytes(gradient + row * dim + first, (last - first) * sizeof(float));
    }

    JAXGNN_INLINE inline void PrefetchHolders(int64_t row) const {
      for (int64_t i = first; i < last; ++i) {
        const int64_t sender = holder[row * dim + i];
        __builtin_prefetch(dx + std::max<int64_t>(sender, 0) * dim + i, 1);
      }
    }

    JAXGNN_INLINE inline void AddRow(int64_t row, int64_t begin, int64_t end) const {
      const int64_t at = row * dim;
      for (int64_t i = first; i < last; ++i) {
        const int64_t sender = holder[at + i];
        if (sender >= 0) {
          dx[sender * dim + i] += gradient[at + i];
        } else if (sender < ~0 && best) {
          Share(begin, end, i, ToFloat(best[at + i]), gradient[at + i]);
        }
      }
    }

    JAXGNN_INLINE inline void Share(int64_t begin, int64_t end, int64_t i, float extreme,
                                    float slope) const {
      for (int64_t edge = begin; edge < end; ++edge) {
        const int64_t at = indices[edge] * dim + i;
        if (ToFloat(x[at]) == extreme) dx[at] += slope;
      }
    }
  };
};

ffi::Error AggregateGradColumns(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets,
                                Buffer indices, Buffer transposed_rows, Buffer transposed_offsets,
                                Buffer transposed_indices, Buffer x, Buffer constant, Buffer linear,
                                Buffer centre, Buffer top, Buffer top_gradient, Buffer top_holder,
                                Buffer bottom, Buffer bottom_gradient, Buffer bottom_holder,
                                Buffer peak, Buffer soft, Buffer exp_constant, Buffer exp_linear,
                                int64_t num_rows, Result dx) {
  const Batch batch(dx->dimensions(), 2);
  const int64_t num_cols = dx->dimensions()[batch.rank()], dim = dx->dimensions().back();
  const ExtremeBuffers highest{top, top_gradient, top_holder};
  const ExtremeBuffers lowest{bottom, bottom_gradient, bottom_holder};
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  const GraphArgs graph(batch, num_rows, unit_rows, unit_offsets, indices);
  const GraphArgs transposed(batch, num_cols, transposed_rows, transposed_offsets,
                             transposed_indices);
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const ExtremesKernel<T> extremes{batch, graph, x, dim, dx};
    const int64_t edges = graph.num_edges();
    const bool compare_top = extremes.AreMostShared(pool, highest, edges);
    const bool compare_bottom = extremes.AreMostShared(pool, lowest, edges);
    TermBuffers terms{&constant, &linear, &centre, nullptr,       nullptr,    nullptr,
                      nullptr,   &peak,   &soft,   &exp_constant, &exp_linear};
    if (compare_top) terms.top = &top, terms.top_gradient = &top_gradient;
    if (compare_bottom) terms.bottom = &bottom, terms.bottom_gradient = &bottom_gradient;
    const ColumnsKernel<T> sums{{dim}, batch, transposed, x, terms, dx};
    AccumulateRows(
        pool, batch.size(), [&](int64_t member) { return transposed.UnitsOf(member); }, sums);
    if (!compare_top) extremes.Add(pool, highest);
    if (!compare_bottom) extremes.Add(pool, lowest);
    return ffi::Error::Success();
  });
}

ffi::Error AggregateGradEdges(ffi::ThreadPool pool, Buffer unit_rows, Buffer unit_offsets, Buffer x,
                              Buffer constant, Buffer linear, Buffer centre, Buffer top,
                              Buffer top_gradient, Buffer bottom, Buffer bottom_gradient,
                              Buffer peak, Buffer soft, Buffer exp_constant, Buffer exp_linear,
                              Result dx) {
  const Batch batch(dx->dimensions(), 2);
  const int64_t num_edges = dx->dimensions()[batch.rank()], dim = dx->dimensions().back();
  const TermBuffers buffers{&constant,     &linear,       &centre,          &top,
                            &top_gradient, &bottom,       &bottom_gradient, &peak,
                            &soft,         &exp_constant, &exp_linear};
  if (!AreOffsets(unit_offsets.element_type()))
    return UnsupportedType("edge offsets", unit_offsets.element_type());
  return SwitchFloat(x.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t units_each = unit_rows.dimensions().back();
    ForUnits(pool, batch.size(), units_each, [&](int64_t member, int64_t begin, int64_t end) {
      const int32_t* rows = batch.Item<const int32_t>(unit_rows, member);
      const Offsets offsets = Offsets::Of(batch, unit_offsets, member);
      const T* numbers = batch.Item<const T>(x, member);
      T* out = batch.Item<T>(*dx, member);
      const Terms<T> terms(batch, buffers, member);
      float* sums = Scratch<float>(dim);
      WithWidestIsa([&]() JAXGNN_INLINE {
        for (int64_t unit = begin; unit < end; ++unit) {
          const int64_t row = rows[unit];
          for (int64_t edge = offsets[unit]; edge < offsets[unit + 1]; ++edge) {
            for (int64_t i = 0; i < dim; ++i) sums[i] = 0.0f;
            terms.template Add<1>(&row, &edge, numbers + edge * dim, dim, sums);
            for (int64_t i = 0; i < dim; ++i) out[edge * dim + i] = FromFloat<T>(sums[i]);
          }
        }
      });
    });
    for (int64_t member = 0; member < batch.size(); ++member) {
      T* out = batch.Item<T>(*dx, member);
      const int64_t last = Offsets::Of(batch, unit_offsets, member)[units_each];
      for (int64_t i = last * dim; i < num_edges * dim; ++i) out[i] = FromFloat<T>(0.0f);
    }
    return ffi::Error::Success();
  });
}

// A stable counting sort: the numbers of segments in order, those out of range behind the others.
ffi::Error SegmentOrder(Buffer ids, Result indptr, Result order) {
  const Batch batch(order->dimensions(), 1);
  const int64_t count = order->dimensions().back(), segments = indptr->dimensions().back() - 1;
  if (ids.element_type() != ffi::S32) return UnsupportedType("segment ids", ids.element_type());
  std::vector<int32_t> next(segments + 2);
  for (int64_t member = 0; member < batch.size(); ++member) {
    const int32_t* own = batch.Item<const int32_t>(ids, member);
    int32_t* offsets = batch.Item<int32_t>(*indptr, member);
    int32_t* sorted = batch.Item<int32_t>(*order, member);
    const auto bin_of = [&](int64_t i) {
      return own[i] >= 0 && own[i] < segments ? static_cast<int64_t>(own[i]) : segments;
    };
    std::fill(next.begin(), next.end(), 0);
    for (int64_t i = 0; i < count; ++i) ++next[bin_of(i) + 1];
    for (int64_t bin = 0; bin <= segments; ++bin) next[bin + 1] += next[bin];
    std::copy(next.begin(), next.begin() + segments + 1, offsets);
    for (int64_t i = 0; i < count; ++i) sorted[next[bin_of(i)]++] = static_cast<int32_t>(i);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_aggregate, jaxgnn::Aggregate,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices, or empty: by edge
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Ret<xla::ffi::AnyBuffer>()  // mean, or empty, as all below
                                  .Ret<xla::ffi::AnyBuffer>()  // the rest of the mean
                                  .Ret<xla::ffi::AnyBuffer>()  // variance
                                  .Ret<xla::ffi::AnyBuffer>()  // highest
                                  .Ret<xla::ffi::AnyBuffer>()  // lowest
                                  .Ret<xla::ffi::AnyBuffer>()  // peak
                                  .Ret<xla::ffi::AnyBuffer>()  // sum of exponentials
                                  .Ret<xla::ffi::AnyBuffer>()  // soft
                                  .Attr<std::string_view>("reductions")
                                  .Attr<std::string_view>("ties"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_aggregate_grad_columns, jaxgnn::AggregateGradColumns,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // indices
                                  .Arg<xla::ffi::AnyBuffer>()  // transposed unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // transposed unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // transposed indices
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // constant, or empty, as all below
                                  .Arg<xla::ffi::AnyBuffer>()  // linear
                                  .Arg<xla::ffi::AnyBuffer>()  // its centre
                                  .Arg<xla::ffi::AnyBuffer>()  // top, empty also for slots
                                  .Arg<xla::ffi::AnyBuffer>()  // its gradient
                                  .Arg<xla::ffi::AnyBuffer>()  // its holder
                                  .Arg<xla::ffi::AnyBuffer>()  // bottom, empty also for slots
                                  .Arg<xla::ffi::AnyBuffer>()  // its gradient
                                  .Arg<xla::ffi::AnyBuffer>()  // its holder
                                  .Arg<xla::ffi::AnyBuffer>()  // peak
                                  .Arg<xla::ffi::AnyBuffer>()  // soft
                                  .Arg<xla::ffi::AnyBuffer>()  // factor of exponentials
                                  .Arg<xla::ffi::AnyBuffer>()  // that of distances from soft
                                  .Attr<int64_t>("num_rows")
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_aggregate_grad_edges, jaxgnn::AggregateGradEdges,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // unit rows
                                  .Arg<xla::ffi::AnyBuffer>()  // unit offsets
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // constant, or empty, as all below
                                  .Arg<xla::ffi::AnyBuffer>()  // linear
                                  .Arg<xla::ffi::AnyBuffer>()  // its centre
                                  .Arg<xla::ffi::AnyBuffer>()  // top
                                  .Arg<xla::ffi::AnyBuffer>()  // its gradient
                                  .Arg<xla::ffi::AnyBuffer>()  // bottom
                                  .Arg<xla::ffi::AnyBuffer>()  // its gradient
                                  .Arg<xla::ffi::AnyBuffer>()  // peak
                                  .Arg<xla::ffi::AnyBuffer>()  // soft
                                  .Arg<xla::ffi::AnyBuffer>()  // factor of exponentials
                                  .Arg<xla::ffi::AnyBuffer>()  // that of distances from soft
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_segment_order, jaxgnn::SegmentOrder,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()    // ids
                                  .Ret<xla::ffi::AnyBuffer>()    // offsets
                                  .Ret<xla::ffi::AnyBuffer>());  // order

#pragma GCC visibility pop
