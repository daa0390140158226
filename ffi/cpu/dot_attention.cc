// Dot-product attention; see jaxgnn/ops/_attention/reference/dot_attention.py for the maths.
#include "jaxgnn_ffi/attention.h"

namespace jaxgnn {
namespace {

using attention::Chunk;
using attention::Constants;
using attention::Ends;
using attention::kChunk;
using attention::SharedGradients;
using attention::Sizes;

// s = scale <own, other> + edge logit
template <typename T>
struct DotScore {
  using Feature = T;
  using Operand = T;
  static constexpr bool kHasVectors = true;
  static constexpr bool kPassesApart = !std::is_same_v<T, float>;

  template <typename Arrays>
  JAXGNN_INLINE static inline void Scores(const Sizes& sizes, const Constants& constants,
                                          const Arrays& arrays, const Chunk& chunk,
                                          const float* own, float* scores) {
    for (int64_t e = 0; e < chunk.count; ++e) {
      arrays.Prefetch(chunk, e);
      attention::DotsWithOther(sizes, chunk, e, own, arrays.own.by_group, arrays.other, scores);
    }
    for (int64_t i = 0; i < sizes.heads * kChunk; ++i) scores[i] *= constants.scale;
    attention::AddEdgeLogits(sizes, chunk, arrays.edge_logits, scores);
  }

  // Adds the gradient of the own end; `dscores` is the gradient of the edge logits as it stands.
  template <typename Arrays>
  JAXGNN_INLINE static inline void AddGradient(const Sizes& sizes, const Constants& constants,
                                               const Arrays& arrays, const Chunk& chunk,
                                               const float*, float* dscores, float* gradient,
                                               const SharedGradients*) {
    float* scaled = Scratch<float, 3>(sizes.heads * kChunk);
    for (int64_t i = 0; i < sizes.heads * kChunk; ++i) scaled[i] = constants.scale * dscores[i];
    const Ends<float> sums{gradient, arrays.own.by_group, arrays.own.heads, arrays.own.dim};
    attention::AddOthers(sizes, chunk, scaled, arrays.other, sums);
  }
};

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)
JAXGNN_DEFINE_ATTENTION(jaxgnn_dot_attention, jaxgnn::DotScore)
#pragma GCC visibility pop
