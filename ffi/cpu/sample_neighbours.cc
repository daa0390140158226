// Samples neighbours of seeds in several hops: plain C functions, called by
// jaxgnn/_ffi/sample_neighbours.py.
#include <algorithm>
#include <cstdint>
#include <limits>
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
  int64_t num_seeds, num_hops, first_hop;
  const int64_t* excluded;
  int64_t num_excluded;
  uint64_t seed;
  uint32_t epoch, step, period;  // `period` counts the steps between which draws of senders mix
  uint32_t mix_first, mix_second;
  int32_t mixes, replace, labor, threads, numbers_nodes;
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
  const auto number = static_cast<uint32_t>(request.first_hop + hop);
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

  // Draws the edges of rows, and adds their senders to the numbers, if there are any. False if the
  // graph is invalid.
  bool Draw(const int64_t* rows, int64_t num_rows, NodeNumbers* numbers, Hop& hop,
            Problem& problem) {
    hop.indptr.Resize(num_rows + 1);
    hop.indptr[0] = 0;
    chunks_.resize((num_rows + kChunkRows - 1) / kChunkRows);
    team_.For(chunks_.size(),
              [&](int thread, int64_t chunk) { DrawChunk(rows, numbers, hop, thread, chunk); });
    int64_t num_edges = 0;
    for (Chunk& chunk : chunks_) {
      if (chunk.problem.kind != Problem::kNone) {
        problem = chunk.problem;
        return false;
      }
      chunk.place = num_edges;
      num_edges += chunk.count;
    }
    hop.edges.Resize(num_edges);
    return true;
  }

  // Writes the edges to their places, and their senders by number, if there are numbers.
  void Write(const NodeNumbers* numbers, int64_t level, Hop& hop) {
    if (numbers != nullptr) hop.senders.Resize(hop.edges.size());
    team_.For(chunks_.size(), [&](int, int64_t chunk) {
      WriteEdges(chunk, hop);
      if (numbers != nullptr) WriteSenders(*numbers, level, chunks_[chunk], hop);
    });
  }

 private:
  struct Chunk {
    int thread;
    int64_t begin, count;  // its edges among those that the thread has drawn
    int64_t place;         // and in the hop
    Problem problem;
  };

  static constexpr int64_t kChunkRows = 64;

  void DrawChunk(const int64_t* rows, NodeNumbers* numbers, Hop& hop, int thread, int64_t number) {
    Drawn<Id>& drawn = drawn_[thread];
    Chunk& chunk = chunks_[number];
    const int64_t first = number * kChunkRows, begin = drawn.positions.size();
    const int64_t count = std::min(kChunkRows, hop.indptr.size() - 1 - first);
    int64_t* counts = hop.indptr.data() + first + 1;
    chunk = {thread, begin, 0, 0, {}};
    if (!draws_[thread]->Run(rows + first, count, counts, chunk.problem)) return;
    chunk.count = drawn.positions.size() - begin;
    if (numbers != nullptr) FindSenders(*numbers, drawn, chunk);
  }

  void FindSenders(NodeNumbers& numbers, Drawn<Id>& drawn, Chunk& chunk) {
    const int64_t* positions = drawn.positions.data() + chunk.begin;
    Id* senders = drawn.senders.Reserve(chunk.count);
    for (int64_t i = 0; i < chunk.count; ++i) {
      if (i + kAhead < chunk.count) __builtin_prefetch(graph_.indices + positions[i + kAhead]);
      const Id sender = graph_.indices[positions[i]];
      if (sender < 0 || sender >= graph_.num_nodes) {
        chunk.problem = {Problem::kSender, positions[i], sender, 0, 0};
        return;
      }
      senders[i] = sender;
      numbers.Find(chunk.thread, sender);
    }
    drawn.senders.Add(chunk.count);
  }

  void WriteEdges(int64_t number, Hop& hop) {
    const Chunk& chunk = chunks_[number];
    const int64_t first = number * kChunkRows, num_rows = hop.indptr.size() - 1;
    int64_t end = chunk.place;
    for (int64_t row = first; row < std::min(first + kChunkRows, num_rows); ++row) {
      hop.indptr[row + 1] = end += hop.indptr[row + 1];
    }
    const int64_t* positions = drawn_[chunk.thread].positions.data() + chunk.begin;
    std::copy_n(positions, chunk.count, hop.edges.data() + chunk.place);
  }

  void WriteSenders(const NodeNumbers& numbers, int64_t level, const Chunk& chunk, Hop& hop) {
    const Id* senders = drawn_[chunk.thread].senders.data() + chunk.begin;
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

// Draws edges of rows in one hop.
template <typename Id>
void SampleRows(const Request& request, const Graph<Id>& graph, Team& team, Sample& sample) {
  const Rule rule = RuleOf(request, 0);
  HopSampler<Id> sampler(graph, rule, team);
  Hop& hop = sample.hops.emplace_back();
  if (!sampler.Draw(request.seeds, request.num_seeds, nullptr, hop, sample.problem)) return;
  sampler.Write(nullptr, 0, hop);
}

template <typename Id>
void SampleHops(const Request& request, const Graph<Id>& graph, Team& team, Sample& sample) {
  std::unique_ptr<NodeNumbers> numbers = SharedPool().Take(request.num_nodes);
  numbers->Begin(request.seeds, request.num_seeds, request.num_hops, team.threads());
  sample.nodes.Resize(request.num_seeds);
  std::copy_n(request.seeds, request.num_seeds, sample.nodes.data());
  sample.ends.push_back(request.num_seeds);
  for (int64_t i = 0; i < request.num_hops; ++i) {
    const Rule rule = RuleOf(request, i);
    HopSampler<Id> sampler(graph, rule, team);
    Hop& hop = sample.hops.emplace_back();
    const int64_t num_rows = sample.nodes.size(), level = i + 1;
    if (!sampler.Draw(sample.nodes.data(), num_rows, numbers.get(), hop, sample.problem)) {
      return;  // the numbers are not clean any more
    }
    numbers->Number(team, level, sample.nodes);
    if (sample.nodes.size() > std::numeric_limits<int32_t>::max()) {
      sample.problem.kind = Problem::kTooLarge;
      return;
    }
    sampler.Write(numbers.get(), level, hop);
    sample.ends.push_back(sample.nodes.size());
  }
  numbers->Clear(team, sample.nodes, sample.ends);
  SharedPool().GiveBack(std::move(numbers));
}

template <typename Id>
void Run(const Request& request, Sample& sample) {
  const Graph<Id> graph{{request.indptr, request.wide_indptr != 0},
                        static_cast<const Id*>(request.indices),
                        {request.weights, request.wide_weights != 0},
                        request.num_nodes,
                        request.num_edges,
                        request.excluded,
                        request.num_excluded};
  Team team(request.threads);
  if (request.numbers_nodes != 0) {
    SampleHops(request, graph, team, sample);
  } else {
    SampleRows(request, graph, team, sample);
  }
}

// A new sample after `fill` has been called with it; null without memory.
template <typename Fill>
void* Sampled(const Fill& fill) {
  std::unique_ptr<Sample> sample;
  try {
    sample = std::make_unique<Sample>();
    fill(*sample);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return sample.release();
}

// Rows with the senders of edges to find, as jaxgnn/_ffi/sample_neighbours.py lays them out: those
// of row i are `senders[ends[i]]` to before `senders[ends[i + 1]]`, ascending, and all are
// distinct.
struct Pairs {
  const void *indptr, *indices;
  int64_t num_edges;
  const int64_t *rows, *ends, *senders;
  int64_t num_rows;
  int32_t wide_indptr, wide_indices;
};

// Finds the positions of all edges between pairs.
template <typename Id>
void FindEdges(const Pairs& pairs, Sample& sample) {
  static constexpr int64_t kFew = 8;
  const EitherOf<int32_t, int64_t> indptr{pairs.indptr, pairs.wide_indptr != 0};
  const auto* indices = static_cast<const Id*>(pairs.indices);
  Buffer<int64_t>& positions = sample.nodes;
  for (int64_t i = 0; i < pairs.num_rows; ++i) {
    const int64_t first = indptr[pairs.rows[i]], end = indptr[pairs.rows[i] + 1];
    if (first < 0 || end < first || end > pairs.num_edges) {
      sample.problem = {Problem::kOffsets, pairs.rows[i], first, end - first, 0};
      return;
    }
    const int64_t *from = pairs.senders + pairs.ends[i], *to = pairs.senders + pairs.ends[i + 1];
    const bool are_few = to - from <= kFew;
    int64_t* found = positions.Reserve(end - first);
    int64_t count = 0;
    for (int64_t edge = first; edge < end; ++edge) {
      const int64_t sender = indices[edge];
      found[count] = edge;
      count += are_few ? std::find(from, to, sender) != to : std::binary_search(from, to, sender);
    }
    positions.Add(count);
  }
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
  return sampling::Sampled([&](sampling::Sample& sample) {
    if (request.wide_indices != 0) {
      sampling::Run<int64_t>(request, sample);
    } else {
      sampling::Run<int32_t>(request, sample);
    }
  });
}

// A sample whose nodes are the positions of all edges between pairs, to be freed; null without
// memory.
void* jaxgnn_sample_edges(const void* arguments) {
  namespace sampling = jaxgnn::sampling;
  const auto& pairs = *static_cast<const sampling::Pairs*>(arguments);
  return sampling::Sampled([&](sampling::Sample& sample) {
    if (pairs.wide_indices != 0) {
      sampling::FindEdges<int64_t>(pairs, sample);
    } else {
      sampling::FindEdges<int32_t>(pairs, sample);
    }
  });
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

// Addresses and lengths: of the nodes, and of the indptr, senders and edges of each hop. Then the
// number of nodes before the first hop and after each.
void jaxgnn_sample_arrays(void* handle, int64_t* arrays) {
  auto& sample = *static_cast<jaxgnn::sampling::Sample*>(handle);
  const auto add = [&](const auto& buffer) {
    *arrays++ = reinterpret_cast<int64_t>(buffer.data());
    *arrays++ = buffer.size();
  };
  add(sample.nodes);
  for (auto& hop : sample.hops) add(hop.indptr), add(hop.senders), add(hop.edges);
  std::copy(sample.ends.begin(), sample.ends.end(), arrays);
}

void jaxgnn_sample_free(void* handle) { delete static_cast<jaxgnn::sampling::Sample*>(handle); }

}  // extern "C"

#pragma GCC visibility pop
