// Softmax over the edges of each row; see jaxgnn/ops/reference/segment_softmax.py for the maths.
#include <cmath>
#include <limits>

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/number.h"
#include "jaxgnn_ffi/rows.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kRowsPerTask = 256;

// Calls `body(member, row, first_edge, last_edge)` for every row of every batch member and zeroes
// the edges behind the last row.
template <typename T, typename Offset, typename Body>
void ForRowEdges(ffi::ThreadPool pool, const Batch& batch, const ffi::AnyBuffer& indptr, T* result,
                 int64_t num_edges, int64_t heads, const Body& body) {
  const int64_t rows = indptr.dimensions().back() - 1;
  const int64_t tasks_each = (rows + kRowsPerTask - 1) / kRowsPerTask;
  ParallelFor(pool, batch.size() * tasks_each, [&](int64_t task) {
    const int64_t member = task / tasks_each, first = task % tasks_each * kRowsPerTask;
    const Offset* offsets = batch.Item<const Offset>(indptr, member);
    WithWidestIsa([&]() JAXGNN_INLINE {
      for (int64_t row = first; row < std::min(rows, first + kRowsPerTask); ++row) {
        body(member, offsets[row], offsets[row + 1]);
      }
    });
  });
  for (int64_t member = 0; member < batch.size(); ++member) {
    T* out = result + member * num_edges * heads;
    const Offset end = batch.Item<const Offset>(indptr, member)[rows];
    for (int64_t i = end * heads; i < num_edges * heads; ++i) out[i] = T{};
  }
}

template <typename T, typename Offset>
JAXGNN_INLINE inline void SoftmaxOfRow(const T* logits, T* probabilities, Offset begin, Offset end,
                                       int64_t heads, int64_t head) {
  float peak = -std::numeric_limits<float>::infinity();
  bool has_nan = false;
  for (Offset edge = begin; edge < end; ++edge) {
    const float logit = ToFloat(logits[edge * heads + head]);
    peak = logit > peak ? logit : peak;
    has_nan |= logit != logit;
  }
  if (has_nan) peak = std::numeric_limits<float>::quiet_NaN();
  if (peak == -std::numeric_limits<float>::infinity()) peak = 0.0f;
  float sum = 0.0f;
  for (Offset edge = begin; edge < end; ++edge) {
    sum += std::exp(ToFloat(logits[edge * heads + head]) - peak);
  }
  for (Offset edge = begin; edge < end; ++edge) {
    const float exponential = std::exp(ToFloat(logits[edge * heads + head]) - peak);
    probabilities[edge * heads + head] = FromFloat<T>(exponential / sum);
  }
}

ffi::Error SegmentSoftmax(ffi::ThreadPool pool, ffi::AnyBuffer indptr, ffi::AnyBuffer logits,
                          ffi::Result<ffi::AnyBuffer> probabilities) {
  const Batch batch(probabilities->dimensions(), 2);
  const int64_t heads = probabilities->dimensions().back();
  const int64_t num_edges = probabilities->dimensions()[batch.rank()];
  return SwitchOffset(indptr.element_type(), [&](auto offset) {
    using Offset = typename decltype(offset)::type;
    return SwitchFloat(logits.element_type(), [&](auto type) {
      using T = typename decltype(type)::type;
      T* result = static_cast<T*>(probabilities->untyped_data());
      ForRowEdges<T, Offset>(pool, batch, indptr, result, num_edges, heads,
                             [&](int64_t member, Offset begin, Offset end) JAXGNN_INLINE {
                               const T* in = batch.Item<const T>(logits, member);
                               T* out = result + member * num_edges * heads;
                               for (int64_t head = 0; head < heads; ++head) {
                                 SoftmaxOfRow(in, out, begin, end, heads, head);
                               }
                             });
      return ffi::Error::Success();
    });
  });
}

// dl_e = p_e (dp_e - Σ p_e' dp_e')
ffi::Error SegmentSoftmaxGrad(ffi::ThreadPool pool, ffi::AnyBuffer indptr,
                              ffi::AnyBuffer probabilities, ffi::AnyBuffer gradient,
                              ffi::Result<ffi::AnyBuffer> dlogits) {
  const Batch batch(dlogits->dimensions(), 2);
  const int64_t heads = dlogits->dimensions().back();
  const int64_t num_edges = dlogits->dimensions()[batch.rank()];
  return SwitchOffset(indptr.element_type(), [&](auto offset) {
    using Offset = typename decltype(offset)::type;
    return SwitchFloat(gradient.element_type(), [&](auto type) {
      using T = typename decltype(type)::type;
      T* result = static_cast<T*>(dlogits->untyped_data());
      ForRowEdges<T, Offset>(pool, batch, indptr, result, num_edges, heads,
                             [&](int64_t member, Offset begin, Offset end) JAXGNN_INLINE {
                               const T* p = batch.Item<const T>(probabilities, member);
                               const T* dp = batch.Item<const T>(gradient, member);
                               T* out = result + member * num_edges * heads;
                               for (int64_t head = 0; head < heads; ++head) {
                                 float sum = 0.0f;
                                 for (Offset edge = begin; edge < end; ++edge) {
                                   sum += ToFloat(p[edge * heads + head]) *
                                          ToFloat(dp[edge * heads + head]);
                                 }
                                 for (Offset edge = begin; edge < end; ++edge) {
                                   const int64_t at = edge * heads + head;
                                   out[at] = FromFloat<T>(ToFloat(p[at]) * (ToFloat(dp[at]) - sum));
                                 }
                               }
                             });
      return ffi::Error::Success();
    });
  });
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_segment_softmax, jaxgnn::SegmentSoftmax,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // indptr
                                  .Arg<xla::ffi::AnyBuffer>()  // logits
                                  .Ret<xla::ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_segment_softmax_grad, jaxgnn::SegmentSoftmaxGrad,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // indptr
                                  .Arg<xla::ffi::AnyBuffer>()  // probabilities
                                  .Arg<xla::ffi::AnyBuffer>()  // gradient of the probabilities
                                  .Ret<xla::ffi::AnyBuffer>());

#pragma GCC visibility pop
