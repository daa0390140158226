// Attention over neighbours on a CPU: what its ops share. jaxgnn/ops/_attention/computation.py says
// what the kernels compute, jaxgnn/_ffi/_attention.py calls them.
//
// A pass walks the edges of a row a chunk at a time. For a chunk it has tables [heads, kChunk] in
// the nearest cache: scores, probabilities, gradients of the weights. Along the rows the row's own
// end is the receiver and the other end the sender; along the columns, which are the rows of the
// transposed graph, it is the other way round. An op is a `Score`: how a score is made from what is
// found at both ends, which is symmetrical in the two, and what its gradient to the own end is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/dropout.h"
#include "jaxgnn_ffi/exp.h"
#include "jaxgnn_ffi/graph_args.h"
#include "jaxgnn_ffi/lanes.h"

namespace jaxgnn {
namespace attention {

namespace ffi = xla::ffi;
using Buffer = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;

constexpr int64_t kChunk = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Constants {
  float scale, slope, kept_scale;
  uint32_t dropped;
};

// `groups` are the heads of the senders, each of which `share` heads of the receivers share.
struct Sizes {
  int64_t heads, groups, share, dim, width, features;
};

// Calls `body(head, group)` for every head.
template <typename Body>
JAXGNN_INLINE inline void ForHeads(const Sizes& sizes, const Body& body) {
  for (int64_t group = 0; group < sizes.groups; ++group) {
    for (int64_t i = 0; i < sizes.share; ++i) body(group * sizes.share + i, group);
  }
}

// An array [nodes, heads or groups, dim].
template <typename T>
struct Ends {
  T* data;
  bool by_group;
  int64_t heads;  // those of the array
  int64_t dim;

  JAXGNN_INLINE inline T* Node(int64_t node) const { return data + node * heads * dim; }
  JAXGNN_INLINE inline int64_t At(int64_t head, int64_t group) const {
    return (by_group ? group : head) * dim;
  }
};

// Some edges of a row.
struct Chunk {
  int64_t count;
  int64_t left;           // edges of the graph from here on
  const int32_t* others;  // the other end of each
  int64_t slots[kChunk];  // where the arrays of edges have them
};

// The arrays that every pass reads, of one batch member.
template <typename T, typename Operand>
struct Arrays {
  const int32_t* others;
  Offsets slots;  // null if edges are in the order of their slots
  int64_t num_edges;
  const uint32_t* seed;
  Ends<const Operand> own, other;  // what the ends give to the scores
  Ends<const T> values;            // of senders
  const float *edge_logits, *edge_values, *edge_features, *edge_kernel, *attention;
  Ends<const T> also;  // what else a pass reads at other ends, or null

  JAXGNN_INLINE inline Chunk ChunkAt(int64_t begin, int64_t end) const {
    Chunk chunk{std::min(kChunk, end - begin), num_edges - begin, others + begin, {}};
    for (int64_t e = 0; e < chunk.count; ++e) {
      chunk.slots[e] = slots ? slots[begin + e] : begin + e;
    }
    return chunk;
  }

  // Asks for what lies at the other end of an edge that comes a little later.
  JAXGNN_INLINE inline void Prefetch(const Chunk& chunk, int64_t edge) const {
    if (edge + kPrefetchEdges >= chunk.left) return;
    const int32_t node = chunk.others[edge + kPrefetchEdges];
    PrefetchBytes(other.Node(node), other.heads * other.dim * sizeof(Operand));
    if (also.data) PrefetchBytes(also.Node(node), also.heads * also.dim * sizeof(T));
  }
};

// sums += factor * x
template <typename T>
JAXGNN_INLINE inline void AddScaled(float factor, const T* x, int64_t dim, float* sums) {
  for (int64_t i = 0; i < dim; ++i) sums[i] += factor * ToFloat(x[i]);
}

// For every head: sums += Σ_e table[head, e] * x_e, with x_e at the other end of edge e.
template <typename T>
JAXGNN_INLINE inline void AddOthers(const Sizes& sizes, const Chunk& chunk, const float* table,
                                    const Ends<const T>& x, const Ends<float>& sums) {
  const int64_t dim = x.dim;
  ForHeads(sizes, [&](int64_t head, int64_t group) JAXGNN_INLINE {
    const float* factors = table + head * kChunk;
    const int64_t at = x.At(head, group);
    float* __restrict out = sums.data + sums.At(head, group);
    int64_t e = 0;
    for (; e + 4 <= chunk.count; e += 4) {
      const T *x0 = x.Node(chunk.others[e]) + at, *x1 = x.Node(chunk.others[e + 1]) + at,
              *x2 = x.Node(chunk.others[e + 2]) + at, *x3 = x.Node(chunk.others[e + 3]) + at;
      const float f0 = factors[e], f1 = factors[e + 1], f2 = factors[e + 2], f3 = factors[e + 3];
      for (int64_t i = 0; i < dim; ++i) {
        out[i] += (f0 * ToFloat(x0[i]) + f1 * ToFloat(x1[i])) +
                  (f2 * ToFloat(x2[i]) + f3 * ToFloat(x3[i]));
      }
    }
    for (; e < chunk.count; ++e) AddScaled(factors[e], x.Node(chunk.others[e]) + at, dim, out);
  });
}

// For every head: table[head, e] = <own, x_e>, with x_e at the other end of edge e.
template <typename A, typename B>
JAXGNN_INLINE inline void DotsWithOther(const Sizes& sizes, const Chunk& chunk, int64_t e,
                                        const A* own, bool own_by_group, const Ends<const B>& x,
                                        float* table) {
  const B* other = x.Node(chunk.others[e]);
  ForHeads(sizes, [&](int64_t head, int64_t group) JAXGNN_INLINE {
    const int64_t at = (own_by_group ? group : head) * x.dim;
    table[head * kChunk + e] = Dot(own + at, other + x.At(head, group), x.dim);
  });
}

JAXGNN_INLINE inline void AddEdgeLogits(const Sizes& sizes, const Chunk& chunk,
                                        const float* edge_logits, float* scores) {
  if (!edge_logits) return;
  for (int64_t e = 0; e < chunk.count; ++e) {
    const float* logits = edge_logits + chunk.slots[e] * sizes.heads;
    for (int64_t h = 0; h < sizes.heads; ++h) scores[h * kChunk + e] += logits[h];
  }
}

// What a row's scores are shifted by: those of a row of only -inf by nothing, so that they stay.
JAXGNN_INLINE inline float Finite(float shift) { return shift == -kInfinity ? 0.0f : shift; }

// -inf, which masks an edge, stays so whatever the slope.
JAXGNN_INLINE inline float LeakyRelu(float x, float slope) {
  return x >= 0.0f || x == -kInfinity ? x : slope * x;
}

// What dropout multiplies with, for every head and edge.
JAXGNN_INLINE inline void DropoutFactors(const Sizes& sizes, const Constants& constants,
                                         const Chunk& chunk, const uint32_t* seed, float* factors) {
  uint32_t mixed[kChunk];
  for (int64_t e = 0; e < chunk.count; ++e) {
    mixed[e] = MixedEdge(seed, static_cast<uint32_t>(chunk.slots[e]));
  }
  for (int64_t h = 0; h < sizes.heads; ++h) {
    for (int64_t e = 0; e < chunk.count; ++e) {
      const bool kept = DrawOfHead(seed, mixed[e], static_cast<uint32_t>(h)) >= constants.dropped;
      factors[h * kChunk + e] = kept ? constants.kept_scale : 0.0f;
    }
  }
}

// -- the operands of a handler ---------------------------------------------------------------

// Every handler has the same operands, empty where it has no use for one or the call has none.
struct Given {
  explicit Given(const ffi::RemainingArgs& args) : buffers(Read(args)) {}

  const Buffer& unit_rows() const { return buffers[0]; }
  const Buffer& unit_offsets() const { return buffers[1]; }
  const Buffer& indices() const { return buffers[2]; }
  const Buffer& permutation() const { return buffers[3]; }
  const Buffer& seed() const { return buffers[4]; }
  const Buffer& rows() const { return buffers[5]; }
  const Buffer& columns() const { return buffers[6]; }
  const Buffer& values() const { return buffers[7]; }
  const Buffer& edge_logits() const { return buffers[8]; }
  const Buffer& edge_values() const { return buffers[9]; }
  const Buffer& edge_features() const { return buffers[10]; }
  const Buffer& edge_kernel() const { return buffers[11]; }
  const Buffer& attention() const { return buffers[12]; }
  const Buffer& lse() const { return buffers[13]; }
  const Buffer& delta() const { return buffers[14]; }
  const Buffer& dy() const { return buffers[15]; }
  const Buffer& dweights() const { return buffers[16]; }

  const Buffer& summed() const { return values().element_count() ? values() : columns(); }

  std::vector<Buffer> buffers;

 private:
  static std::vector<Buffer> Read(const ffi::RemainingArgs& args) {
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < args.size(); ++i) buffers.push_back(*args.get<Buffer>(i));
    return buffers;
  }
};

// Which ends of the edges are the rows of the graph that a pass walks.
enum class Along { kRows, kColumns };

// The arrays, of every batch member, that a pass of an op reads, and its sizes.
template <typename Score>
struct Problem {
  using T = typename Score::Feature;
  using Operand = typename Score::Operand;
  using Member = Arrays<T, Operand>;

  Problem(const Given& given, const Batch& batch, Along along, const Constants& constants)
      : batch(batch),
        constants(constants),
        graph(batch, NumRows(given, batch, along), given.unit_rows(), given.unit_offsets(),
              given.indices()) {
    const size_t rank = batch.rank();
    const auto summed = given.summed().dimensions();
    const int64_t heads = given.rows().dimensions()[rank + 1], groups = summed[rank + 1];
    const auto& features = given.edge_features();
    sizes = {heads,          groups,
             heads / groups, Score::kHasVectors ? given.columns().dimensions().back() : 1,
             summed.back(),  features.element_count() ? features.dimensions().back() : 0};
    for (int64_t member = 0; member < batch.size(); ++member) {
      const Ends<const Operand> rows{batch.Item<const Operand>(given.rows(), member), false, heads,
                                     sizes.dim};
      const Ends<const Operand> columns{batch.Item<const Operand>(given.columns(), member), true,
                                        groups, sizes.dim};
      const bool is_row = along == Along::kRows;
      const Ends<const T> values{batch.Item<const T>(given.summed(), member), true, groups,
                                 sizes.width};
      const Ends<const T> dy{batch.Item<const T>(given.dy(), member), false, heads, sizes.width};
      const bool same = given.values().element_count() == 0;
      const Ends<const T> none{nullptr, true, 0, 0};
      members.push_back({graph.Indices(member), Offsets::Of(batch, given.permutation(), member),
                         graph.num_edges(), batch.Item<const uint32_t>(given.seed(), member),
                         is_row ? rows : columns, is_row ? columns : rows, values,
                         batch.Item<const float>(given.edge_logits(), member),
                         batch.Item<const float>(given.edge_values(), member),
                         batch.Item<const float>(given.edge_features(), member),
                         batch.Item<const float>(given.edge_kernel(), member),
                         batch.Item<const float>(given.attention(), member),
                         is_row ? (same ? none : values) : dy});
    }
  }

  static int64_t NumRows(const Given& given, const Batch& batch, Along along) {
    const Buffer& nodes = along == Along::kRows ? given.rows() : given.columns();
    return nodes.dimensions()[batch.rank()];
  }

  template <typename Pass>
  void Run(ffi::ThreadPool pool, const Pass& pass, int64_t units_per_task = kUnitsPerTask) const {
    AccumulateRows(
        pool, batch.size(), [&](int64_t member) { return graph.UnitsOf(member); }, pass,
        units_per_task);
  }

  const Batch& batch;
  Constants constants;
  GraphArgs graph;
  Sizes sizes;
  std::vector<Member> members;
};

// -- passes ----------------------------------------------------------------------------------

// What passes have in common.
template <typename Score>
struct Pass {
  using T = typename Score::Feature;
  using Operand = typename Score::Operand;
  using Member = Arrays<T, Operand>;

  Pass(const Problem<Score>& problem, int64_t width)
      : width(width),
        sizes(problem.sizes),
        constants(problem.constants),
        batch(problem.batch),
        members(problem.members) {}

  int64_t width;  // of the state of a row
  Sizes sizes;
  Constants constants;
  const Batch& batch;
  const std::vector<Member>& members;

  int64_t table() const { return sizes.heads * kChunk; }

  // Sets scores and probabilities exp(s - lse).
  JAXGNN_INLINE inline void Probabilities(const Member& arrays, const Chunk& chunk,
                                          const float* own, const float* lse, bool lse_is_own,
                                          int64_t row, float* table) const {
    Score::Scores(sizes, constants, arrays, chunk, own, table);
    if (!lse_is_own) {
      for (int64_t e = 0; e < chunk.count; ++e) {
        const float* shifts = lse + chunk.others[e] * sizes.heads;
        for (int64_t h = 0; h < sizes.heads; ++h) table[h * kChunk + e] -= Finite(shifts[h]);
      }
    }
    for (int64_t h = 0; h < sizes.heads; ++h) {
      float* of_head = table + h * kChunk;
      const float shift = lse_is_own ? Finite(lse[row * sizes.heads + h]) : 0.0f;
      for (int64_t e = 0; e < chunk.count; ++e) of_head[e] = ExpOfNegative(of_head[e] - shift);
    }
  }

  // The own end's part of the scores, in float.
  JAXGNN_INLINE inline const float* Own(const Member& arrays, int64_t row) const {
    const int64_t size = arrays.own.heads * arrays.own.dim;
    float* own = Scratch<float, 1>(size);
    const Operand* given = arrays.own.Node(row);
    for (int64_t i = 0; i < size; ++i) own[i] = ToFloat(given[i]);
    return own;
  }
};

// The state of a row is its largest score, the sum of exponentials, and the weighted sum, all
// relative to the largest score so far: [heads], [heads], [heads, width].
template <typename Score>
struct ForwardPass : Pass<Score> {
  using Base = Pass<Score>;
  using Base::batch;
  using Base::constants;
  using Base::members;
  using Base::sizes;
  Result y, lse;

  ForwardPass(const Problem<Score>& problem, Result y, Result lse)
      : Base(problem, problem.sizes.heads * (2 + problem.sizes.width)), y(y), lse(lse) {}

  JAXGNN_INLINE inline void Start(float* state) const {
    for (int64_t h = 0; h < sizes.heads; ++h) state[h] = -kInfinity;
    for (int64_t i = sizes.heads; i < Base::width; ++i) state[i] = 0.0f;
  }

  // Raises the largest score of a head, and returns what its sums were multiplied with.
  JAXGNN_INLINE inline void Raise(int64_t head, float peak, float* state) const {
    if (!(peak > state[head])) return;
    const float factor = state[head] == -kInfinity ? 0.0f : ExpOfNegative(state[head] - peak);
    state[head] = peak;
    state[sizes.heads + head] *= factor;
    float* sums = state + 2 * sizes.heads + head * sizes.width;
    for (int64_t i = 0; i < sizes.width; ++i) sums[i] *= factor;
  }

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* state) const {
    const auto& arrays = members[piece.member];
    const float* own = Base::Own(arrays, piece.row);
    float* table = Scratch<float, 2>(2 * Base::table());
    float* factors = table + Base::table();
    const Ends<float> sums{state + 2 * sizes.heads, false, sizes.heads, sizes.width};
    for (int64_t begin = piece.begin; begin < piece.end; begin += kChunk) {
      const Chunk chunk = arrays.ChunkAt(begin, piece.end);
      Score::Scores(sizes, constants, arrays, chunk, own, table);
      if (arrays.seed) DropoutFactors(sizes, constants, chunk, arrays.seed, factors);
      for (int64_t h = 0; h < sizes.heads; ++h) {
        float* scores = table + h * kChunk;
        float peak = -kInfinity;
        for (int64_t e = 0; e < chunk.count; ++e) peak = scores[e] > peak ? scores[e] : peak;
        Raise(h, peak, state);
        const float shift = Finite(state[h]);
        for (int64_t e = 0; e < chunk.count; ++e) scores[e] = ExpOfNegative(scores[e] - shift);
        float sum = 0.0f;
        for (int64_t e = 0; e < chunk.count; ++e) sum += scores[e];
        state[sizes.heads + h] += sum;
        if (!arrays.seed) continue;
        for (int64_t e = 0; e < chunk.count; ++e) scores[e] *= factors[h * kChunk + e];
      }
      AddOthers(sizes, chunk, table, arrays.values, sums);
      if (arrays.edge_values) AddEdgeValues(arrays, chunk, table, sums);
    }
  }

  template <typename Member>
  JAXGNN_INLINE inline void AddEdgeValues(const Member& arrays, const Chunk& chunk,
                                          const float* table, const Ends<float>& sums) const {
    for (int64_t e = 0; e < chunk.count; ++e) {
      const float* values = arrays.edge_values + chunk.slots[e] * sizes.groups * sizes.width;
      ForHeads(sizes, [&](int64_t head, int64_t group) JAXGNN_INLINE {
        AddScaled(table[head * kChunk + e], values + group * sizes.width, sizes.width,
                  sums.data + head * sizes.width);
      });
    }
  }

  JAXGNN_INLINE inline void Merge(float* state, const float* more) const {
    for (int64_t h = 0; h < sizes.heads; ++h) {
      Raise(h, more[h], state);
      if (more[h] == -kInfinity && more[sizes.heads + h] == 0.0f) continue;
      const float factor = ExpOfNegative(Finite(more[h]) - Finite(state[h]));
      state[sizes.heads + h] += factor * more[sizes.heads + h];
      const int64_t at = 2 * sizes.heads + h * sizes.width;
      for (int64_t i = 0; i < sizes.width; ++i) state[at + i] += factor * more[at + i];
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* state) const {
    float* out = batch.template Item<float>(*y, member) + row * sizes.heads * sizes.width;
    float* logarithms = batch.template Item<float>(*lse, member) + row * sizes.heads;
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const float sum = state[sizes.heads + h];
      const float* sums = state + 2 * sizes.heads + h * sizes.width;
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      logarithms[h] = sum == 0.0f ? -kInfinity : state[h] + std::log(sum);
      for (int64_t i = 0; i < sizes.width; ++i) out[h * sizes.width + i] = factor * sums[i];
    }
  }
};

// Writes the weights of edges; a row has no state.
template <typename Score>
struct WeightsPass : Pass<Score> {
  using Base = Pass<Score>;
  using Base::batch;
  using Base::constants;
  using Base::members;
  using Base::sizes;
  const Buffer& lse;
  Result weights;

  WeightsPass(const Problem<Score>& problem, const Buffer& lse, Result weights)
      : Base(problem, 0), lse(lse), weights(weights) {}

  JAXGNN_INLINE inline void Start(float*) const {}
  JAXGNN_INLINE inline void Merge(float*, const float*) const {}
  JAXGNN_INLINE inline void Finish(int64_t, int64_t, const float*) const {}

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float*) const {
    const auto& arrays = members[piece.member];
    const float* own = Base::Own(arrays, piece.row);
    const float* logarithms = batch.template Item<const float>(lse, piece.member);
    float* out = batch.template Item<float>(*weights, piece.member);
    float* table = Scratch<float, 2>(2 * Base::table());
    float* factors = table + Base::table();
    for (int64_t begin = piece.begin; begin < piece.end; begin += kChunk) {
      const Chunk chunk = arrays.ChunkAt(begin, piece.end);
      Base::Probabilities(arrays, chunk, own, logarithms, true, piece.row, table);
      if (arrays.seed) DropoutFactors(sizes, constants, chunk, arrays.seed, factors);
      for (int64_t e = 0; e < chunk.count; ++e) {
        for (int64_t h = 0; h < sizes.heads; ++h) {
          const int64_t at = h * kChunk + e;
          out[(begin + e) * sizes.heads + h] = arrays.seed ? table[at] * factors[at] : table[at];
        }
      }
    }
  }
};

// The cotangents of one batch member.
template <typename T>
struct MemberCotangents {
  const float *lse, *delta;
  Ends<const T> dy;
  const float* dweights;
};

// Of a head: from probabilities and gradients of the weights, the weights and the gradients of the
// scores. `factors` are those of dropout, or null.
JAXGNN_INLINE inline void GradientsOfScores(int64_t count, const float* __restrict factors,
                                            const float* __restrict deltas,
                                            float* __restrict weights, float* __restrict dscores) {
  if (!factors) {
    for (int64_t e = 0; e < count; ++e) dscores[e] = weights[e] * (dscores[e] - deltas[e]);
    return;
  }
  for (int64_t e = 0; e < count; ++e) {
    dscores[e] = weights[e] * (factors[e] * dscores[e] - deltas[e]);
    weights[e] *= factors[e];
  }
}

// Where the gradients of what edges give, and of what all share, are summed for one task.
struct SharedGradients {
  float *edge_logits, *edge_values, *edge_features;  // of all edges
  float *edge_kernel, *attention;                    // of the task
};

// The state of a row is the gradient of its own end, and along the columns that of its values.
// `IsRow` is `bool`, so that one function walks both, or a constant where that was measured to be
// slower.
template <typename Score, typename IsRow>
struct BackwardPass : Pass<Score> {
  using Base = Pass<Score>;
  using T = typename Base::T;
  using Base::batch;
  using Base::constants;
  using Base::members;
  using Base::sizes;
  IsRow is_row;  // whether it walks the rows of the graph, else its columns
  std::vector<MemberCotangents<T>> cotangents;
  std::vector<SharedGradients> shared;  // of each task; empty along the columns
  int64_t tasks_each = 1;
  Result own_gradient, values_gradient;
  bool has_values;  // whether the gradient of values is a result of its own

  BackwardPass(const Problem<Score>& problem, const Given& given, IsRow is_row, Result own_gradient,
               Result values_gradient, bool has_values)
      : Base(problem, 0),
        is_row(is_row),
        own_gradient(own_gradient),
        values_gradient(values_gradient),
        has_values(has_values) {
    Base::width = own_size() + (has_values ? sizes.groups * sizes.width : 0);
    for (int64_t member = 0; member < batch.size(); ++member) {
      cotangents.push_back(
          {batch.template Item<const float>(given.lse(), member),
           batch.template Item<const float>(given.delta(), member),
           {batch.template Item<const T>(given.dy(), member), false, sizes.heads, sizes.width},
           batch.template Item<const float>(given.dweights(), member)});
    }
  }

  int64_t own_size() const { return (is_row ? sizes.heads : sizes.groups) * sizes.dim; }

  JAXGNN_INLINE inline void Start(float* state) const {
    for (int64_t i = 0; i < Base::width; ++i) state[i] = 0.0f;
  }
  JAXGNN_INLINE inline void Merge(float* state, const float* more) const {
    for (int64_t i = 0; i < Base::width; ++i) state[i] += more[i];
  }

  JAXGNN_INLINE inline void Accumulate(const Piece& piece, float* state) const {
    const auto& arrays = members[piece.member];
    const auto& given = cotangents[piece.member];
    const float* own = Base::Own(arrays, piece.row);
    float* weights = Scratch<float, 2>(4 * Base::table());
    float* dscores = weights + Base::table();
    float* factors = dscores + Base::table();
    float* deltas = factors + Base::table();
    const SharedGradients* to_share =
        is_row ? &shared[piece.member * tasks_each + piece.task] : nullptr;
    const int64_t heads = sizes.heads;
    // Their products are the gradients of the weights.
    const Ends<const T>& own_ends = is_row ? given.dy : arrays.values;
    const Ends<const T>& other_ends = is_row ? arrays.values : given.dy;
    const T* own_end = own_ends.Node(piece.row);
    for (int64_t begin = piece.begin; begin < piece.end; begin += kChunk) {
      const Chunk chunk = arrays.ChunkAt(begin, piece.end);
      Base::Probabilities(arrays, chunk, own, given.lse, is_row, piece.row, weights);
      for (int64_t e = 0; e < chunk.count; ++e) {
        DotsWithOther(sizes, chunk, e, own_end, !is_row, other_ends, dscores);
      }
      AddGradientsOfWeights(arrays, given, chunk, piece.row, dscores);
      if (arrays.seed) DropoutFactors(sizes, constants, chunk, arrays.seed, factors);
      for (int64_t e = 0; e < chunk.count; ++e) {
        const float* delta = given.delta + (is_row ? piece.row : chunk.others[e]) * heads;
        for (int64_t h = 0; h < heads; ++h) deltas[h * kChunk + e] = delta[h];
      }
      for (int64_t h = 0; h < heads; ++h) {
        GradientsOfScores(chunk.count, arrays.seed ? factors + h * kChunk : nullptr,
                          deltas + h * kChunk, weights + h * kChunk, dscores + h * kChunk);
      }
      Score::AddGradient(sizes, constants, arrays, chunk, own, dscores, state, to_share);
      if (is_row) {
        StoreEdges(given, chunk, piece.row, weights, dscores, *to_share);
      } else {
        float* of_values = state + (has_values ? own_size() : 0);
        const Ends<float> sums{of_values, true, sizes.groups, sizes.width};
        AddOthers(sizes, chunk, weights, given.dy, sums);
      }
    }
  }

  // Adds what edges add to <dy, v>: the part of their own values, and the gradient of the weights
  // that the caller asked for.
  template <typename Member>
  JAXGNN_INLINE inline void AddGradientsOfWeights(const Member& arrays,
                                                  const MemberCotangents<T>& given,
                                                  const Chunk& chunk, int64_t row,
                                                  float* table) const {
    if (arrays.edge_values) {
      for (int64_t e = 0; e < chunk.count; ++e) {
        const T* dy = given.dy.Node(is_row ? row : chunk.others[e]);
        const float* values = arrays.edge_values + chunk.slots[e] * sizes.groups * sizes.width;
        ForHeads(sizes, [&](int64_t head, int64_t group) JAXGNN_INLINE {
          table[head * kChunk + e] +=
              Dot(values + group * sizes.width, dy + head * sizes.width, sizes.width);
        });
      }
    }
    AddEdgeLogits(sizes, chunk, given.dweights, table);
  }

  JAXGNN_INLINE inline void StoreEdges(const MemberCotangents<T>& given, const Chunk& chunk,
                                       int64_t row, const float* weights, const float* dscores,
                                       const SharedGradients& to_share) const {
    if (to_share.edge_logits) {
      for (int64_t e = 0; e < chunk.count; ++e) {
        float* out = to_share.edge_logits + chunk.slots[e] * sizes.heads;
        for (int64_t h = 0; h < sizes.heads; ++h) out[h] = dscores[h * kChunk + e];
      }
    }
    if (!to_share.edge_values) return;
    const T* dy = given.dy.Node(row);
    const int64_t size = sizes.groups * sizes.width;
    for (int64_t e = 0; e < chunk.count; ++e) {
      float* out = to_share.edge_values + chunk.slots[e] * size;
      for (int64_t i = 0; i < size; ++i) out[i] = 0.0f;
      ForHeads(sizes, [&](int64_t head, int64_t group) JAXGNN_INLINE {
        AddScaled(weights[head * kChunk + e], dy + head * sizes.width, sizes.width,
                  out + group * sizes.width);
      });
    }
  }

  JAXGNN_INLINE inline void Finish(int64_t member, int64_t row, const float* state) const {
    using Operand = typename Score::Operand;
    const int64_t size = own_size();
    if (own_gradient->element_type() == ffi::F32) {  // also of a caller that adds to it
      std::copy(state, state + size,
                batch.template Item<float>(*own_gradient, member) + row * size);
    } else {
      Operand* out = batch.template Item<Operand>(*own_gradient, member) + row * size;
      for (int64_t i = 0; i < size; ++i) out[i] = FromFloat<Operand>(state[i]);
    }
    if (!has_values) return;
    const int64_t more = sizes.groups * sizes.width;
    T* values = batch.template Item<T>(*values_gradient, member) + row * more;
    for (int64_t i = 0; i < more; ++i) values[i] = FromFloat<T>(state[size + i]);
  }
};

template <typename Score, bool kIsRow>
auto IsRow() {
  if constexpr (Score::kPassesApart) {
    return std::bool_constant<kIsRow>{};
  } else {
    return kIsRow;
  }
}

template <typename Score>
auto RowsPass(const Problem<Score>& problem, const Given& given, Result rows) {
  return BackwardPass(problem, given, IsRow<Score, true>(), rows, rows, false);
}

template <typename Score>
auto ColumnsPass(const Problem<Score>& problem, const Given& given, Result columns, Result values) {
  const bool has_values = given.values().element_count() > 0;
  return BackwardPass(problem, given, IsRow<Score, false>(), columns, values, has_values);
}

// -- handlers --------------------------------------------------------------------------------

// Sets what padding slots have of an array of edges to zero.
template <typename Score>
void ZeroPadding(const Problem<Score>& problem, Result edges) {
  if (edges->element_count() == 0) return;
  int64_t size = 1;
  for (size_t i = problem.batch.rank() + 1; i < edges->dimensions().size(); ++i) {
    size *= edges->dimensions()[i];
  }
  for (int64_t member = 0; member < problem.batch.size(); ++member) {
    const Units units = problem.graph.UnitsOf(member);
    float* all = problem.batch.template Item<float>(*edges, member);
    std::fill(all + units.offsets[units.count] * size, all + problem.graph.num_edges() * size,
              0.0f);
  }
}

// Calls `body(problem)` with the problem of the dtypes that the operands have.
template <template <typename> class ScoreOf, typename Body>
ffi::Error WithProblem(const Given& given, const Batch& batch, Along along,
                       const Constants& constants, const Body& body) {
  if (!AreOffsets(given.unit_offsets().element_type()))
    return UnsupportedType("edge offsets", given.unit_offsets().element_type());
  return SwitchFloat(given.summed().element_type(), [&](auto feature) {
    using Score = ScoreOf<typename decltype(feature)::type>;
    body(Problem<Score>(given, batch, along, constants));
    return ffi::Error::Success();
  });
}

template <template <typename> class ScoreOf>
ffi::Error Forward(ffi::ThreadPool pool, ffi::RemainingArgs args, Result y, Result lse, float scale,
                   float slope, uint32_t dropped, float kept_scale) {
  const Given given(args);
  const Batch batch(lse->dimensions(), 2);
  const Constants constants{scale, slope, kept_scale, dropped};
  return WithProblem<ScoreOf>(given, batch, Along::kRows, constants, [&](const auto& problem) {
    problem.Run(pool, ForwardPass(problem, y, lse));
  });
}

template <template <typename> class ScoreOf>
ffi::Error Weights(ffi::ThreadPool pool, ffi::RemainingArgs args, Result weights, float scale,
                   float slope, uint32_t dropped, float kept_scale) {
  const Given given(args);
  const Batch batch(weights->dimensions(), 2);
  const Constants constants{scale, slope, kept_scale, dropped};
  return WithProblem<ScoreOf>(given, batch, Along::kRows, constants, [&](const auto& problem) {
    problem.Run(pool, WeightsPass(problem, given.lse(), weights));
    ZeroPadding(problem, weights);
  });
}

template <template <typename> class ScoreOf>
ffi::Error BackwardRows(ffi::ThreadPool pool, ffi::RemainingArgs args, Result rows,
                        Result edge_logits, Result edge_values, Result edge_features,
                        Result edge_kernel, Result attention, float scale, float slope,
                        uint32_t dropped, float kept_scale) {
  const Given given(args);
  // The batch is that of the results: a row's logarithm may be shared where its gradient is not.
  const Batch batch(rows->dimensions(), ScoreOf<float>::kHasVectors ? 3 : 2);
  const Constants constants{scale, slope, kept_scale, dropped};
  return WithProblem<ScoreOf>(given, batch, Along::kRows, constants, [&](const auto& problem) {
    auto pass = RowsPass(problem, given, rows);
    const int64_t units = problem.graph.UnitsOf(0).count;
    int64_t units_per_task = kUnitsPerTask;
    for (Result part : {edge_kernel, attention}) {
      if (part->element_count() == 0) continue;
      // A task has the partial sum of its own number.
      const int64_t parts = part->dimensions()[batch.rank()];
      units_per_task = (units + parts - 1) / parts;
      std::memset(part->untyped_data(), 0, part->size_bytes());
    }
    pass.tasks_each = (units + units_per_task - 1) / units_per_task;
    for (int64_t member = 0; member < batch.size(); ++member) {
      float* kernels = batch.Item<float>(*edge_kernel, member);
      float* vectors = batch.Item<float>(*attention, member);
      const int64_t size = problem.sizes.heads * problem.sizes.dim;
      for (int64_t task = 0; task < pass.tasks_each; ++task) {
        pass.shared.push_back({batch.Item<float>(*edge_logits, member),
                               batch.Item<float>(*edge_values, member),
                               batch.Item<float>(*edge_features, member),
                               kernels ? kernels + task * problem.sizes.features * size : nullptr,
                               vectors ? vectors + task * size : nullptr});
      }
    }
    problem.Run(pool, pass, units_per_task);
    for (Result edges : {edge_logits, edge_values, edge_features}) ZeroPadding(problem, edges);
  });
}

template <template <typename> class ScoreOf>
ffi::Error BackwardColumns(ffi::ThreadPool pool, ffi::RemainingArgs args, Result columns,
                           Result values, float scale, float slope, uint32_t dropped,
                           float kept_scale) {
  const Given given(args);
  const Batch batch(columns->dimensions(), ScoreOf<float>::kHasVectors ? 3 : 2);
  const Constants constants{scale, slope, kept_scale, dropped};
  return WithProblem<ScoreOf>(given, batch, Along::kColumns, constants, [&](const auto& problem) {
    problem.Run(pool, ColumnsPass(problem, given, columns, values));
  });
}

inline auto Bound() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs(); }

template <typename Binding>
auto WithConstants(Binding&& binding) {
  return std::move(binding)
      .template Attr<float>("scale")
      .template Attr<float>("slope")
      .template Attr<uint32_t>("dropped")
      .template Attr<float>("kept_scale");
}

}  // namespace attention
}  // namespace jaxgnn

// Defines the four handlers of an op whose scores are `Score<T>`.
#define JAXGNN_DEFINE_ATTENTION(op, Score)                                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                \
      op, jaxgnn::attention::Forward<Score>,                                                    \
      jaxgnn::attention::WithConstants(jaxgnn::attention::Bound()                               \
                                           .Ret<xla::ffi::AnyBuffer>()    /* y */               \
                                           .Ret<xla::ffi::AnyBuffer>())); /* lse */             \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                \
      op##_weights, jaxgnn::attention::Weights<Score>,                                          \
      jaxgnn::attention::WithConstants(jaxgnn::attention::Bound().Ret<xla::ffi::AnyBuffer>())); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                \
      op##_rows, jaxgnn::attention::BackwardRows<Score>,                                        \
      jaxgnn::attention::WithConstants(jaxgnn::attention::Bound()                               \
                                           .Ret<xla::ffi::AnyBuffer>()    /* rows */            \
                                           .Ret<xla::ffi::AnyBuffer>()    /* logits */          \
                                           .Ret<xla::ffi::AnyBuffer>()    /* values */          \
                                           .Ret<xla::ffi::AnyBuffer>()    /* features */        \
                                           .Ret<xla::ffi::AnyBuffer>()    /* kernel */          \
                                           .Ret<xla::ffi::AnyBuffer>())); /* attention */       \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                \
      op##_columns, jaxgnn::attention::BackwardColumns<Score>,                                  \
      jaxgnn::attention::WithConstants(jaxgnn::attention::Bound()                               \
                                           .Ret<xla::ffi::AnyBuffer>()    /* columns */         \
                                           .Ret<xla::ffi::AnyBuffer>())); /* values */
