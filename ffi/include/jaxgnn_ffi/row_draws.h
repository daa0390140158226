// Draws edges of rows of a graph: the same as jaxgnn/sampling/reference.py, which defines it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/buffer.h"
#include "jaxgnn_ffi/counter_random.h"

namespace jaxgnn {
namespace sampling {

// Numbers of 32 or 64 bits, told apart where they are read.
template <typename Narrow, typename Wide>
struct EitherOf {
  const void* data = nullptr;
  bool wide = false;

  JAXGNN_INLINE inline Wide operator[](int64_t i) const {
    return wide ? static_cast<const Wide*>(data)[i] : static_cast<const Narrow*>(data)[i];
  }

  // The numbers from the i-th on.
  EitherOf From(int64_t i) const {
    if (data == nullptr) return *this;
    if (wide) return {static_cast<const Wide*>(data) + i, wide};
    return {static_cast<const Narrow*>(data) + i, wide};
  }
};

template <typename Id>
struct Graph {
  EitherOf<int32_t, int64_t> indptr;
  const Id* indices;
  EitherOf<float, double> weights;  // `data` is null if there are none
  int64_t num_nodes, num_edges;
  // Positions of edges that count as absent, ascending.
  const int64_t* excluded = nullptr;
  int64_t num_excluded = 0;
};

// What a hop draws, and its keys.
struct Rule {
  int64_t fanout;  // -1 for all
  bool replace, labor, mixes;
  Key neighbours, weighted, senders, next_senders;
  Mix mix;
};

// What is wrong with a graph or a sample; `place` is a node or the position of an edge.
struct Problem {
  enum Kind : int64_t { kNone, kOffsets, kSender, kWeight, kZeroWeights, kTooLarge };

  int64_t kind = kNone;
  int64_t place = 0;
  int64_t first = 0, degree = 0;  // of a row, or the wrong sender
  double weight = 0;
};

// Positions of the edges that a thread has drawn, and their senders.
template <typename Id>
struct Drawn {
  Buffer<int64_t> positions;
  Buffer<Id> senders;
};

template <typename Id>
class RowDraws {
 public:
  RowDraws(const Graph<Id>& graph, const Rule& rule, Drawn<Id>& out)
      : graph_(graph), rule_(rule), out_(out) {}

  // Appends the edges of `count` rows, and writes how many each has. False if the graph is invalid.
  bool Run(const int64_t* rows, int64_t count, int64_t* drawn, Problem& problem) {
    if (!ReadRows(rows, count, problem)) return false;
    const int64_t begin = out_.positions.size();
    const bool is_weighted = graph_.weights.data != nullptr;
    if (!is_weighted && (rule_.fanout < 0 || !rule_.labor)) {
      DrawUniformly(rows, count, drawn);
    } else if (!DrawEach(rows, count, drawn, problem)) {
      return false;
    }
    RestorePositions(begin, drawn);
    return true;
  }

 private:
  // The edges of a row without those that are excluded, as if they followed each other.
  struct Row {
    int64_t node, first, degree;
    const Id* senders;
    EitherOf<float, double> weights;
  };
  // A row, by its place in the call, with the positions of its excluded edges.
  struct Cut {
    int64_t place;
    const int64_t *begin, *end;
  };
  struct Candidate {
    uint64_t key;
    int64_t offset;
    bool operator<(const Candidate& other) const {
      return key != other.key ? key < other.key : offset < other.offset;
    }
  };

  static constexpr int64_t kBlock = 256;

  bool ReadRows(const int64_t* rows, int64_t count, Problem& problem) {
    first_.Resize(count);
    degree_.Resize(count);
    cuts_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = graph_.indptr[rows[i]], end = graph_.indptr[rows[i] + 1];
      first_[i] = first;
      degree_[i] = end - first;
      if (first < 0 || end < first || end > graph_.num_edges) {
        problem = {Problem::kOffsets, rows[i], first, end - first, 0};
        return false;
      }
      if (graph_.num_excluded > 0) CutRow(i, end);
    }
    return true;
  }

  // Takes the excluded edges of a row from its degree.
  void CutRow(int64_t i, int64_t end) {
    const int64_t* last = graph_.excluded + graph_.num_excluded;
    const int64_t* from = std::lower_bound(graph_.excluded, last, first_[i]);
    if (from == last || *from >= end) return;
    const int64_t* to = std::lower_bound(from, last, end);
    cuts_.push_back({i, from, to});
    degree_[i] -= to - from;
  }

  // Moves the edges of rows that were drawn as if their other edges followed each other.
  void RestorePositions(int64_t begin, const int64_t* drawn) {
    int64_t* positions = out_.positions.data() + begin;
    int64_t place = 0;
    for (const Cut& cut : cuts_) {
      for (; place < cut.place; ++place) positions += drawn[place];
      const int64_t* next = cut.begin;
      for (int64_t i = 0; i < drawn[place]; ++i) {
        while (next != cut.end && *next <= positions[i] + (next - cut.begin)) ++next;
        positions[i] += next - cut.begin;
      }
    }
  }

  // Rows of weights or of draws of senders. False if the graph is invalid.
  bool DrawEach(const int64_t* rows, int64_t count, int64_t* drawn, Problem& problem) {
    const bool is_weighted = graph_.weights.data != nullptr;
    auto cut = cuts_.begin();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t before = out_.positions.size(), first = first_[i];
      const bool is_cut = cut != cuts_.end() && cut->place == i;
      const int64_t degree = degree_[i] + (is_cut ? cut->end - cut->begin : 0);
      if (is_weighted && !CheckWeights(rows[i], first, degree, problem)) return false;
      Row row{rows[i], first, degree_[i], graph_.indices + first, graph_.weights.From(first)};
      if (is_cut) CopyOthers(*cut++, row);
      if (rule_.fanout < 0) {
        TakePositive(row);
      } else if (rule_.replace) {
        DrawWeighted(row);
      } else if (!is_weighted && row.degree <= rule_.fanout) {
        TakeAll(row);
      } else {
        TakeLeastKeys(row);
      }
      drawn[i] = out_.positions.size() - before;
    }
    return true;
  }

  // Lets a row read copies of its edges without those that are excluded.
  void CopyOthers(const Cut& cut, Row& row) {
    kept_senders_.Resize(row.degree);
    const bool is_weighted = row.weights.data != nullptr;
    if (is_weighted) kept_weights_.Resize(row.degree);
    const int64_t* next = cut.begin;
    for (int64_t i = 0, offset = 0; i < row.degree; ++offset) {
      if (next != cut.end && *next == row.first + offset) {
        ++next;
        continue;
      }
      kept_senders_[i] = row.senders[offset];
      if (is_weighted) kept_weights_[i] = row.weights[offset];
      ++i;
    }
    row.senders = kept_senders_.data();
    if (is_weighted) row.weights = {kept_weights_.data(), true};
  }

  // Rows without weights, or with all their edges.
  void DrawUniformly(const int64_t* rows, int64_t count, int64_t* drawn) {
    const int64_t fanout = rule_.fanout;
    const auto needs_draws = [=](int64_t degree) {
      return fanout >= 0 && (rule_.replace ? degree > 0 : degree > fanout);
    };
    int64_t total = 0;
    words_.Resize(0);
    for (int64_t i = 0; i < count; ++i) {
      const bool draws = needs_draws(degree_[i]);
      total += drawn[i] = draws ? fanout : degree_[i];
      if (!draws) continue;
      uint64_t* words = words_.Reserve(fanout);
      for (int64_t slot = 0; slot < fanout; ++slot) words[slot] = Word(Counter(rows[i], slot));
      words_.Add(fanout);
    }
    words_.Reserve(kDrawGroup);
    Draw(rule_.neighbours, words_.size(), words_.data());
    const uint64_t* words = words_.data();
    int64_t* positions = out_.positions.Reserve(total);
    for (int64_t i = 0; i < count; ++i) {
      if (!needs_draws(degree_[i])) {
        for (int64_t j = 0; j < degree_[i]; ++j) positions[j] = first_[i] + j;
      } else {
        if (rule_.replace) {
          DrawWithReplacement(words, degree_[i], first_[i], positions);
        } else {
          DrawDistinct(words, degree_[i], first_[i], positions);
        }
        words += fanout;
      }
      positions += drawn[i];
    }
    out_.positions.Add(total);
  }

  void DrawWithReplacement(const uint64_t* words, int64_t degree, int64_t first,
                           int64_t* positions) {
    for (int64_t slot = 0; slot < rule_.fanout; ++slot) {
      const int64_t drawn = first + static_cast<int64_t>(Below(words[slot], degree));
      Insert(drawn, PlaceOf(drawn, positions, slot), positions, slot);
    }
  }

  // Floyd's method. A number that is drawn again gives way to the largest so far.
  void DrawDistinct(const uint64_t* words, int64_t degree, int64_t first, int64_t* positions) {
    for (int64_t slot = 0; slot < rule_.fanout; ++slot) {
      const int64_t last = degree - rule_.fanout + slot;
      const int64_t drawn = first + static_cast<int64_t>(Below(words[slot], last + 1));
      const int64_t place = PlaceOf(drawn, positions, slot);
      if (place > 0 && positions[place - 1] == drawn) {
        positions[slot] = first + last;
      } else {
        Insert(drawn, place, positions, slot);
      }
    }
  }

  // The number of ascending positions up to and with `value`.
  static int64_t PlaceOf(int64_t value, const int64_t* positions, int64_t count) {
    if (count > 32) return std::upper_bound(positions, positions + count, value) - positions;
    int64_t place = 0;
    for (int64_t i = 0; i < count; ++i) place += positions[i] <= value;
    return place;
  }

  static void Insert(int64_t value, int64_t place, int64_t* positions, int64_t count) {
    for (int64_t i = count; i > place; --i) positions[i] = positions[i - 1];
    positions[place] = value;
  }

  bool CheckWeights(int64_t node, int64_t first, int64_t degree, Problem& problem) const {
    bool has_positive = degree == 0;
    for (int64_t i = first; i < first + degree; ++i) {
      const double weight = graph_.weights[i];
      if (!(weight >= 0) || std::isinf(weight)) {
        problem = {Problem::kWeight, i, 0, 0, weight};
        return false;
      }
      has_positive |= weight > 0;
    }
    if (!has_positive) problem = {Problem::kZeroWeights, node, 0, 0, 0};
    return has_positive;
  }

  void TakeAll(const Row& row) {
    int64_t* positions = out_.positions.Reserve(row.degree);
    for (int64_t i = 0; i < row.degree; ++i) positions[i] = row.first + i;
    out_.positions.Add(row.degree);
  }

  void TakePositive(const Row& row) {
    int64_t* positions = out_.positions.Reserve(row.degree);
    int64_t count = 0;
    for (int64_t i = 0; i < row.degree; ++i) {
      positions[count] = row.first + i;
      count += row.weights[i] > 0;
    }
    out_.positions.Add(count);
  }

  // With replacement, in proportion to the weights.
  void DrawWeighted(const Row& row) {
    const int64_t fanout = rule_.fanout;
    ends_.Resize(row.degree);
    double total = 0;
    for (int64_t i = 0; i < row.degree; ++i) {
      ends_[i] = total = i == 0 ? row.weights[0] : total + row.weights[i];
    }
    if (!(total > 0)) return;  // without edges, or with excluded ones alone that could be drawn
    words_.Resize(fanout + kDrawGroup);
    for (int64_t slot = 0; slot < fanout; ++slot) words_[slot] = Word(Counter(row.node, slot));
    Draw(rule_.weighted, fanout, words_.data());
    int64_t* positions = out_.positions.Reserve(fanout);
    const double most = std::nextafter(total, 0.0);
    for (int64_t slot = 0; slot < fanout; ++slot) {
      const double point = std::min(Uniform(words_[slot]) * total, most);
      const double* end = std::upper_bound(ends_.data(), ends_.data() + row.degree, point);
      positions[slot] = row.first + (end - ends_.data());
    }
    std::sort(positions, positions + fanout);
    out_.positions.Add(fanout);
  }

  // The edges of least key; equal keys in the order of the graph.
  void TakeLeastKeys(const Row& row) {
    candidates_.clear();
    const bool is_weighted = graph_.weights.data != nullptr;
    bool is_full = false;
    uint64_t largest = 0;
    for (int64_t begin = 0; begin < row.degree; begin += kBlock) {
      const int64_t count = std::min(kBlock, row.degree - begin);
      DrawBlock(row, begin, count);
      for (int64_t i = 0; i < count; ++i) {
        uint64_t key = block_[i];
        if (is_weighted && !WeightedKey(key, row.weights[begin + i], &key)) continue;
        if (is_full && key >= largest) continue;
        Keep({key, begin + i});
        is_full = IsFull();
        largest = candidates_.front().key;
      }
    }
    int64_t* positions = out_.positions.Reserve(candidates_.size());
    for (size_t i = 0; i < candidates_.size(); ++i)
      positions[i] = row.first + candidates_[i].offset;
    std::sort(positions, positions + candidates_.size());
    out_.positions.Add(candidates_.size());
  }

  // Random words, or sums of them, for a block of edges of a row.
  void DrawBlock(const Row& row, int64_t begin, int64_t count) {
    const Id* senders = row.senders + begin;
    for (int64_t i = 0; i < count; ++i) {
      block_[i] = Word(rule_.labor ? Counter(senders[i], 0) : Counter(row.node, begin + i));
    }
    if (rule_.mixes) {
      std::copy(block_, block_ + count, next_block_);
      Draw(rule_.next_senders, count, next_block_);
    }
    Draw(rule_.labor ? rule_.senders : rule_.weighted, count, block_);
    if (rule_.mixes) {
      for (int64_t i = 0; i < count; ++i) block_[i] = rule_.mix.Sum(block_[i], next_block_[i]);
    }
  }

  // An exponential deviate over the weight, as bits, whose order is that of the numbers. False for
  // weight zero, or if the key is so large that the logarithm need not be known: -log(1 - u) >= u.
  bool WeightedKey(uint64_t drawn, double weight, uint64_t* key) const {
    if (weight == 0) return false;
    const double larger = rule_.mixes ? rule_.mix.Larger(drawn) : 1.0 - Uniform(drawn);
    if (IsFull() && 1.0 - larger > limit_ * weight * (1 + 1e-12) + 1e-15) return false;
    const double value = (0.0 - Log(larger)) / weight;
    std::memcpy(key, &value, sizeof value);
    return true;
  }

  bool IsFull() const { return static_cast<int64_t>(candidates_.size()) == rule_.fanout; }

  // Candidates become a heap, with the largest in front, when there are as many as are drawn.
  void Keep(Candidate candidate) {
    if (IsFull()) {
      std::pop_heap(candidates_.begin(), candidates_.end());
      candidates_.back() = candidate;
      std::push_heap(candidates_.begin(), candidates_.end());
    } else {
      candidates_.push_back(candidate);
      if (IsFull()) std::make_heap(candidates_.begin(), candidates_.end());
    }
    if (IsFull()) std::memcpy(&limit_, &candidates_.front().key, sizeof limit_);
  }

  const Graph<Id>& graph_;
  const Rule& rule_;
  Drawn<Id>& out_;
  Buffer<int64_t> first_, degree_;  // of the edges that are left
  std::vector<Cut> cuts_;
  Buffer<Id> kept_senders_;
  Buffer<double> kept_weights_;
  Buffer<uint64_t> words_;
  Buffer<double> ends_;
  uint64_t block_[kBlock] = {}, next_block_[kBlock] = {};
  std::vector<Candidate> candidates_;
  double limit_ = 0;  // the largest key of a full heap, as a number
};

}  // namespace sampling
}  // namespace jaxgnn
