// Samples neighbours of seeds in several hops: plain C functions, called by
// jaxgnn/_ffi/sample_neighbours.py.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/buffer.h"
#include "jaxgnn_ffi/node_numbers.h"
#include "jaxgnn_ffi/row_draws.h"
#include "jaxgnn_ffi/team.h"

namespace jaxgnn {
namespace sampling {
namespace {

// Arguments of a call, as jaxgnn/_ffi/sample_neighbours.py lays them out.
struct Request {
  const void *indptr, *indices, *weights;
  int64_t num_nodes, num_edges;
  const int64_t *seeds, *fanouts;
  int64_t num_seeds, num_hops;
  uint64_t seed;
  uint32_t epoch, step, period;  // `period` counts the steps between which draws of senders mix
  uint32_t mix_first, mix_second;
  int32_t mixes, replace, labor, threads;
  int32_t wide_indptr, wide_indices, wide_weights;
};

struct Hop {
  Buffer<int64_t> indptr, edges;
  Buffer<int32_t> senders;
};

struct Sample {
  Buffer<int64_t> nodes;
  std::vector<Hop> hops;
  std::vector<int64_t> ends;  // number of nodes before the first hop and after each
  Problem problem;
};

// Numbers of nodes, kept from call to call: their memory is large and all zero between calls.
class Pool {
 public:
  std::unique_ptr<NodeNumbers> Take(int64_t num_nodes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& numbers : free_) {
      if (numbers->num_nodes() != num_nodes) continue;
      std::swap(numbers, free_.back());
      auto taken = std::move(free_.back());
      free_.pop_back();
      return taken;
    }
    return std::make_unique<NodeNumbers>(num_nodes);
  }

  void GiveBack(std::unique_ptr<NodeNumbers> numbers) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(numbers));
    int64_t bytes = 0;
    for (const auto& kept : free_) bytes += kept->bytes();
    while (bytes > kMostBytes) {  // the oldest goes first
      bytes -= free_.front()->bytes();
      free_.erase(free_.begin());
    }
  }

 private:
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  std::mutex mutex_;
  std::vector<std::unique_ptr<NodeNumbers>> free_;
};

Pool& SharedPool() {
  static Pool* const pool =
      new Pool;  // never destroyed: a thread may outlive the library's statics
  return *pool;
}

Rule RuleOf(const Request& request, int64_t hop) {
  const auto number = static_cast<uint32_t>(hop);
  const auto senders = [&](uint32_t step) {
    return HopKey(BatchKey(request.seed, request.epoch, step), number, kLabor);
  };
  const Key batch = BatchKey(request.seed, request.epoch, request.step);
  Rule rule;
  rule.fanout = request.fanouts[hop];
  rule.replace = request.replace != 0;
  rule.labor = request.labor != 0;
  rule.mixes = rule.labor && request.mixes != 0;
  rule.neighbours = HopKey(batch, number, kNeighbours);
  rule.weighted = HopKey(batch, number, kWeighted);
  rule.senders = senders(request.period);
  rule.next_senders = senders(request.period + 1);
  rule.mix = {request.mix_first, request.mix_second};
  return rule;
}

// One hop, in chunks of rows that threads take in any order.
template <typename Id>
class HopSampler {
 public:
  HopSampler(const Graph<Id>& graph, const Rule& rule, Team& team)
      : graph_(graph), drawn_(team.threads()), team_(team) {
    for (int i = 0; i < team.threads(); ++i) {
      draws_.push_back(std::make_unique<RowDraws<Id>>(graph, rule, drawn_[i]));
    }
  }

  // Draws the edges of the first `num_rows` nodes and appends the new nodes. False if the graph is
  // invalid.
  bool Run(Sample& sample, NodeNumbers& numbers, int64_t level) {
    const int64_t num_rows = sample.nodes.size();
    sample.hops.emplace_back();
    Hop& hop = sample.hops.back();
    hop.indptr.Resize(num_rows + 1);
    hop.indptr[0] = 0;
    chunks_.resize((num_rows + kChunkRows - 1) / kChunkRows);
    team_.For(chunks_.size(),
              [&](int thread, int64_t chunk) { DrawChunk(sample, numbers, level, thread, chunk); });
    int64_t num_edges = 0;
    for (Chunk& chunk : chunks_) {
      if (chunk.problem.kind != Problem::kNone) {
        sample.problem = chunk.problem;
        return false;
      }
      chunk.place = num_edges;
      num_edges += chunk.count;
    }
    numbers.Number(team_, level, sample.nodes);
    hop.edges.Resize(num_edges);
    hop.senders.Resize(num_edges);
    team_.For(chunks_.size(), [&](int, int64_t chunk) {
      WriteChunk(numbers, level, num_rows, chunks_[chunk], chunk, hop);
    });
    return true;
  }

 private:
  struct Chunk {
    int thread;
    int64_t begin, count;  // its edges among those that the thread has drawn
    int64_t place;         // and in the hop
    Problem problem;
  };

  static constexpr int64_t kChunkRows = 64;

  void DrawChunk(Sample& sample, NodeNumbers& numbers, int64_t level, int thread, int64_t number) {
    Drawn<Id>& drawn = drawn_[thread];
    Chunk& chunk = chunks_[number];
    const int64_t first = number * kChunkRows, begin = drawn.positions.size();
    const int64_t count = std::min(kChunkRows, sample.hops.back().indptr.size() - 1 - first);
    chunk = {thread, begin, 0, 0, {}};
    int64_t* counts = sample.hops.back().indptr.data() + first + 1;
    if (!draws_[thread]->Run(sample.nodes.data() + first, count, counts, chunk.problem)) return;
    chunk.count = drawn.positions.size() - begin;
    const int64_t* positions = drawn.positions.data() + begin;
    Id* senders = drawn.senders.Reserve(chunk.count);
    for (int64_t i = 0; i < chunk.count; ++i) {
      if (i + kAhead < chunk.count) __builtin_prefetch(graph_.indices + positions[i + kAhead]);
      const Id sender = graph_.indices[positions[i]];
      if (sender < 0 || sender >= graph_.num_nodes) {
        chunk.problem = {Problem::kSender, positions[i], sender, 0, 0};
        return;
      }
      senders[i] = sender;
      numbers.Find(level, sender);
    }
    drawn.senders.Add(chunk.count);
  }

  void WriteChunk(const NodeNumbers& numbers, int64_t level, int64_t num_rows, const Chunk& chunk,
                  int64_t number, Hop& hop) {
    const int64_t first = number * kChunkRows;
    int64_t end = chunk.place;
    for (int64_t row = first; row < std::min(first + kChunkRows, num_rows); ++row) {
      hop.indptr[row + 1] = end += hop.indptr[row + 1];
    }
    const Drawn<Id>& drawn = drawn_[chunk.thread];
    std::copy_n(drawn.positions.data() + chunk.begin, chunk.count, hop.edges.data() + chunk.place);
    const Id* senders = drawn.senders.data() + chunk.begin;
    int32_t* local = hop.senders.data() + chunk.place;
    WithWidestIsa([&, count = chunk.count]() JAXGNN_INLINE {
      for (int64_t i = 0; i < count; ++i) local[i] = numbers.Of(level, senders[i]);
    });
  }

  static constexpr int64_t kAhead = 32;

  const Graph<Id>& graph_;
  std::vector<Drawn<Id>> drawn_;
  std::vector<std::unique_ptr<RowDraws<Id>>> draws_;
  std::vector<Chunk> chunks_;
  Team& team_;
};

template <typename Id>
void SampleHops(const Request& request, Sample& sample) {
  const Graph<Id> graph{{request.indptr, request.wide_indptr != 0},
                        static_cast<const Id*>(request.indices),
                        {request.weights, request.wide_weights != 0},
                        request.num_nodes,
                        request.num_edges};
  Team team(request.threads);
  std::unique_ptr<NodeNumbers> numbers = SharedPool().Take(request.num_nodes);
  numbers->Begin(request.seeds, request.num_seeds, request.num_hops);
  sample.nodes.Resize(request.num_seeds);
  std::copy_n(request.seeds, request.num_seeds, sample.nodes.data());
  sample.ends.push_back(request.num_seeds);
  for (int64_t i = 0; i < request.num_hops; ++i) {
    const Rule rule = RuleOf(request, i);
    HopSampler<Id> hop(graph, rule, team);
    if (!hop.Run(sample, *numbers, i + 1)) return;  // the numbers are not clean any more
    sample.ends.push_back(sample.nodes.size());
  }
  numbers->Clear(sample.nodes, sample.ends);
  SharedPool().GiveBack(std::move(numbers));
}

}  // namespace
}  // namespace sampling
}  // namespace jaxgnn

#pragma GCC visibility push(default)

extern "C" {

// The sample of one batch, to be freed; null without memory.
void* jaxgnn_sample_neighbours(const void* arguments) {
  namespace sampling = jaxgnn::sampling;
  const auto& request = *static_cast<const sampling::Request*>(arguments);
  std::unique_ptr<sampling::Sample> sample;
  try {
    sample = std::make_unique<sampling::Sample>();
    if (request.wide_indices != 0) {
      sampling::SampleHops<int64_t>(request, *sample);
    } else {
      sampling::SampleHops<int32_t>(request, *sample);
    }
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return sample.release();
}

// What is wrong with the graph: kind, place, first, degree. Returns the wrong weight.
double jaxgnn_sample_problem(const void* handle, int64_t* problem) {
  const auto& found = static_cast<const jaxgnn::sampling::Sample*>(handle)->problem;
  problem[0] = found.kind;
  problem[1] = found.place;
  problem[2] = found.first;
  problem[3] = found.degree;
  return found.weight;
}

// Addresses of the nodes and of the indptr, senders and edges of each hop, as numbers, and the
// number of nodes before the first hop and after each.
void jaxgnn_sample_arrays(void* handle, int64_t* addresses, int64_t* num_nodes) {
  auto& sample = *static_cast<jaxgnn::sampling::Sample*>(handle);
  const auto address = [](const void* data) { return reinterpret_cast<int64_t>(data); };
  *addresses++ = address(sample.nodes.data());
  for (auto& hop : sample.hops) {
    *addresses++ = address(hop.indptr.data());
    *addresses++ = address(hop.senders.data());
    *addresses++ = address(hop.edges.data());
  }
  std::copy(sample.ends.begin(), sample.ends.end(), num_nodes);
}

void jaxgnn_sample_free(void* handle) { delete static_cast<jaxgnn::sampling::Sample*>(handle); }

}  // extern "C"

#pragma GCC visibility pop
