// Numbers the nodes of a sample: seeds in their order, then the new nodes of each hop, ascending.
//
// Each level, that is the seeds or the new nodes of a hop, is a set of bits, one for each node of
// the graph, with the number of the first node of each word. A node's number is that of its word
// plus the count of lower bits in it. Nothing is sorted or hashed: the words are in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/buffer.h"
#include "jaxgnn_ffi/isa.h"
#include "jaxgnn_ffi/team.h"

namespace jaxgnn {
namespace sampling {

class NodeNumbers {
 public:
  explicit NodeNumbers(int64_t num_nodes)
      : num_nodes_(num_nodes), num_words_((num_nodes + 63) / 64), seen_(num_words_) {}

  int64_t num_nodes() const { return num_nodes_; }
  int64_t bytes() const {
    const size_t sets = 1 + found_.size();
    return num_words_ *
           static_cast<int64_t>(sets * sizeof(uint64_t) + levels_.size() * sizeof(Word));
  }

  // Begins with distinct seeds, for so many hops and threads.
  void Begin(const int64_t* seeds, int64_t count, int64_t hops, int threads) {
    while (static_cast<int>(found_.size()) < threads) found_.emplace_back(num_words_);
    while (static_cast<int64_t>(levels_.size()) <= hops) levels_.emplace_back(num_words_);
    places_.resize(count);
    std::iota(places_.begin(), places_.end(), 0);
    std::sort(places_.begin(), places_.end(),
              [=](uint32_t a, uint32_t b) { return seeds[a] < seeds[b]; });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t node = seeds[places_[i]];
      Word& word = levels_[0][node >> 6];
      if (word.bits == 0) word.first = static_cast<uint32_t>(i);
      word.bits |= Bit(node);
      seen_[node >> 6] |= Bit(node);
    }
  }

  // Adds a node to those that a hop has found. Each thread has a set of its own: in a common one
  // they would wait for each other's cache lines.
  void Find(int thread, int64_t node) { found_[thread][node >> 6] |= Bit(node); }

  // Numbers those found nodes that no earlier level has, and appends them to `nodes`.
  void Number(Team& team, int64_t level, Buffer<int64_t>& nodes) {
    const int64_t tasks = (num_words_ + kTaskWords - 1) / kTaskWords;
    std::vector<int64_t> ends(tasks + 1);
    team.For(tasks, [&](int, int64_t task) { ends[task + 1] = KeepNew(level, task); });
    ends[0] = nodes.size();
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    nodes.Resize(ends[tasks]);
    team.For(tasks, [&](int, int64_t task) { List(level, task, ends[task], nodes.data()); });
  }

  // The number of a node that is in one of the levels up to `level`.
  JAXGNN_INLINE inline int32_t Of(int64_t level, int64_t node) const {
    for (;; --level) {
      const Word word = levels_[level][node >> 6];
      if (!(word.bits & Bit(node))) continue;
      const uint32_t number = word.first + __builtin_popcountll(word.bits & (Bit(node) - 1));
      return static_cast<int32_t>(level == 0 ? places_[number] : number);
    }
  }

  // Forgets a sample, whose level `l` ended with the node `ends[l]`.
  void Clear(Team& team, const Buffer<int64_t>& nodes, const std::vector<int64_t>& ends) {
    for (size_t level = 0; level < ends.size(); ++level) {
      const int64_t begin = level == 0 ? 0 : ends[level - 1], end = ends[level];
      team.For((end - begin + kTaskNodes - 1) / kTaskNodes, [&](int, int64_t task) {
        const int64_t first = begin + task * kTaskNodes;
        for (int64_t i = first; i < std::min(first + kTaskNodes, end); ++i) {
          // Another task may have nodes of the same word.
          __atomic_store_n(&levels_[level][nodes[i] >> 6].bits, 0, __ATOMIC_RELAXED);
          __atomic_store_n(&seen_[nodes[i] >> 6], 0, __ATOMIC_RELAXED);
        }
      });
    }
  }

 private:
  struct Word {
    uint64_t bits;
    uint32_t first;  // number of the node of the lowest bit
    uint32_t unused;
  };

  // An array of zeros, whose pages the system hands out when they are first written.
  template <typename T>
  class Zeros {
   public:
    explicit Zeros(int64_t count)
        : data_(static_cast<T*>(std::calloc(std::max<int64_t>(count, 1), sizeof(T))), &std::free) {
      if (data_ == nullptr) throw std::bad_alloc();
    }
    JAXGNN_INLINE inline T& operator[](int64_t i) { return data_.get()[i]; }
    JAXGNN_INLINE inline const T& operator[](int64_t i) const { return data_.get()[i]; }

   private:
    std::unique_ptr<T, void (*)(void*)> data_;
  };

  static constexpr int64_t kTaskWords = 512, kTaskNodes = 1 << 14;

  JAXGNN_INLINE static inline uint64_t Bit(int64_t node) { return uint64_t{1} << (node & 63); }

  int64_t LastWord(int64_t task) const { return std::min((task + 1) * kTaskWords, num_words_); }

  int64_t KeepNew(int64_t level, int64_t task) {
    int64_t count = 0;
    WithWidestIsa([&]() JAXGNN_INLINE {
      for (int64_t i = task * kTaskWords; i < LastWord(task); ++i) {
        uint64_t bits = 0;
        for (Zeros<uint64_t>& found : found_) {
          if (found[i] != 0) bits |= std::exchange(found[i], 0);
        }
        if (bits == 0) continue;
        bits &= ~seen_[i];
        seen_[i] |= bits;
        levels_[level][i].bits = bits;
        count += __builtin_popcountll(bits);
      }
    });
    return count;
  }

  void List(int64_t level, int64_t task, int64_t number, int64_t* nodes) {
    for (int64_t i = task * kTaskWords; i < LastWord(task); ++i) {
      Word& word = levels_[level][i];
      word.first = static_cast<uint32_t>(number);
      for (uint64_t bits = word.bits; bits != 0; bits &= bits - 1) {
        nodes[number++] = i * 64 + __builtin_ctzll(bits);
      }
    }
  }

  int64_t num_nodes_, num_words_;
  Zeros<uint64_t> seen_;                // in any level
  std::vector<Zeros<uint64_t>> found_;  // by each thread, in this hop
  std::vector<Zeros<Word>> levels_;
  std::vector<uint32_t> places_;  // of the seeds, in ascending order of seeds
};

}  // namespace sampling
}  // namespace jaxgnn
