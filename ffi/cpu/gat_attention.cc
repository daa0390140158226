// Attention of GAT; see jaxgnn/ops/_attention/reference/gat_attention.py for the maths.
#include "jaxgnn_ffi/attention.h"

namespace jaxgnn {
namespace {

using attention::Chunk;
using attention::Constants;
using attention::kChunk;
using attention::SharedGradients;
using attention::Sizes;

// s = leaky_relu(own + other + edge logit), of one number for each end and head
template <typename T>
struct GatScore {
  using Feature = T;
  using Operand = float;
  static constexpr bool kHasVectors = false;
  static constexpr bool kPassesApart = false;

  template <typename Arrays>
  JAXGNN_INLINE static inline void Scores(const Sizes& sizes, const Constants& constants,
                                          const Arrays& arrays, const Chunk& chunk,
                                          const float* own, float* scores) {
    for (int64_t e = 0; e < chunk.count; ++e) arrays.Prefetch(chunk, e);
    Sums(sizes, arrays, chunk, own, scores);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      float* of_head = scores + h * kChunk;
      for (int64_t e = 0; e < chunk.count; ++e) {
        of_head[e] = attention::LeakyRelu(of_head[e], constants.slope);
      }
    }
  }

  // Adds the gradient of the own end, and makes `dscores` the gradient of the edge logits.
  template <typename Arrays>
  JAXGNN_INLINE static inline void AddGradient(const Sizes& sizes, const Constants& constants,
                                               const Arrays& arrays, const Chunk& chunk,
                                               const float* own, float* dscores, float* gradient,
                                               const SharedGradients*) {
    float* sums = Scratch<float, 3>(sizes.heads * kChunk);
    Sums(sizes, arrays, chunk, own, sums);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      float total = 0.0f;
      for (int64_t e = 0; e < chunk.count; ++e) {
        const int64_t at = h * kChunk + e;
        dscores[at] *= sums[at] >= 0.0f ? 1.0f : constants.slope;
        total += dscores[at];
      }
      gradient[h] += total;
    }
  }

 private:
  template <typename Arrays>
  JAXGNN_INLINE static inline void Sums(const Sizes& sizes, const Arrays& arrays,
                                        const Chunk& chunk, const float* own, float* sums) {
    for (int64_t e = 0; e < chunk.count; ++e) {
      const float* other = arrays.other.Node(chunk.others[e]);
      for (int64_t h = 0; h < sizes.heads; ++h) sums[h * kChunk + e] = own[h] + other[h];
    }
    attention::AddEdgeLogits(sizes, chunk, arrays.edge_logits, sums);
  }
};

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)
JAXGNN_DEFINE_ATTENTION(jaxgnn_gat_attention, jaxgnn::GatScore)
#pragma GCC visibility pop
