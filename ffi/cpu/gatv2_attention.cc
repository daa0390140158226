// Attention of GATv2; see jaxgnn/ops/_attention/reference/gatv2_attention.py for the maths.
#include "jaxgnn_ffi/attention.h"

namespace jaxgnn {
namespace {

using attention::Chunk;
using attention::Constants;
using attention::kChunk;
using attention::SharedGradients;
using attention::Sizes;

// s = <attention, leaky_relu(own + other + edge features * edge kernel)> + edge logit
template <typename T>
struct GatV2Score {
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
      const float* base = OwnAndEdge(sizes, arrays, chunk.slots[e], own);
      const T* other = arrays.other.Node(chunk.others[e]);
      for (int64_t h = 0; h < sizes.heads; ++h) {
        const int64_t at = h * sizes.dim;
        scores[h * kChunk + e] =
            Score(arrays.attention + at, base + at, other + at, sizes.dim, constants.slope);
      }
    }
    attention::AddEdgeLogits(sizes, chunk, arrays.edge_logits, scores);
  }

  // Adds the gradients of the own end, and along the rows those of what edges share; `dscores` is
  // the gradient of the edge logits as it stands.
  template <typename Arrays>
  JAXGNN_INLINE static inline void AddGradient(const Sizes& sizes, const Constants& constants,
                                               const Arrays& arrays, const Chunk& chunk,
                                               const float* own, float* dscores, float* gradient,
                                               const SharedGradients* shared) {
    const int64_t size = sizes.heads * sizes.dim;
    float* of_edge = Scratch<float, 4>(size);
    for (int64_t e = 0; e < chunk.count; ++e) {
      const float* base = OwnAndEdge(sizes, arrays, chunk.slots[e], own);
      const T* other = arrays.other.Node(chunk.others[e]);
      for (int64_t h = 0; h < sizes.heads; ++h) {
        const int64_t at = h * sizes.dim;
        const End end{sizes.dim, constants.slope, dscores[h * kChunk + e],
                      base + at, other + at,      arrays.attention + at};
        AddToOwn(end, gradient + at);
        if (shared) AddToVector(end, shared->attention + at);
        if (shared && sizes.features) {
          for (int64_t i = 0; i < sizes.dim; ++i) of_edge[at + i] = 0.0f;
          AddToOwn(end, of_edge + at);
        }
      }
      if (shared && sizes.features) AddFeatures(sizes, arrays, chunk.slots[e], of_edge, *shared);
    }
  }

 private:
  // An edge's ends and the gradient of its score, for a head.
  struct End {
    int64_t dim;
    float slope, dscore;
    const float* base;
    const T* other;
    const float* vector;
  };

  JAXGNN_INLINE static inline void AddToOwn(const End& end, float* __restrict gradient) {
    const float high = end.dscore, low = end.dscore * end.slope;
    for (int64_t i = 0; i < end.dim; ++i) {
      const float sum = end.base[i] + ToFloat(end.other[i]);
      gradient[i] += end.vector[i] * (sum >= 0.0f ? high : low);
    }
  }

  JAXGNN_INLINE static inline void AddToVector(const End& end, float* __restrict gradient) {
    for (int64_t i = 0; i < end.dim; ++i) {
      const float sum = end.base[i] + ToFloat(end.other[i]);
      gradient[i] += end.dscore * attention::LeakyRelu(sum, end.slope);
    }
  }

  JAXGNN_INLINE static inline float Score(const float* vector, const float* base, const T* other,
                                          int64_t dim, float slope) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float sum = base[i + lane] + ToFloat(other[i + lane]);
        lanes[lane] += vector[i + lane] * attention::LeakyRelu(sum, slope);
      }
    }
    Lanes sums;
    LoadLanes(lanes, sums);
    float rest = 0.0f;
    for (; i < dim; ++i) {
      rest += vector[i] * attention::LeakyRelu(base[i] + ToFloat(other[i]), slope);
    }
    return SumOfLanes(sums) + rest;
  }

  // The own end plus what the features of an edge add.
  template <typename Arrays>
  JAXGNN_INLINE static inline const float* OwnAndEdge(const Sizes& sizes, const Arrays& arrays,
                                                      int64_t slot, const float* own) {
    if (!sizes.features) return own;
    const int64_t size = sizes.heads * sizes.dim;
    float* base = Scratch<float, 3>(size);
    for (int64_t i = 0; i < size; ++i) base[i] = own[i];
    const float* features = arrays.edge_features + slot * sizes.features;
    for (int64_t f = 0; f < sizes.features; ++f) {
      attention::AddScaled(features[f], arrays.edge_kernel + f * size, size, base);
    }
    return base;
  }

  template <typename Arrays>
  JAXGNN_INLINE static inline void AddFeatures(const Sizes& sizes, const Arrays& arrays,
                                               int64_t slot, const float* of_edge,
                                               const SharedGradients& shared) {
    const int64_t size = sizes.heads * sizes.dim, at = slot * sizes.features;
    for (int64_t f = 0; f < sizes.features; ++f) {
      shared.edge_features[at + f] = Dot(of_edge, arrays.edge_kernel + f * size, size);
      attention::AddScaled(arrays.edge_features[at + f], of_edge, size,
                           shared.edge_kernel + f * size);
    }
  }
};

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)
JAXGNN_DEFINE_ATTENTION(jaxgnn_gatv2_attention, jaxgnn::GatV2Score)
#pragma GCC visibility pop
