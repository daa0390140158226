// Softmax over the edges of each row; see jaxgnn/ops/reference/segment_softmax.py for the maths.
#include <limits>

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/exp.h"
#include "jaxgnn_ffi/number.h"
#include "jaxgnn_ffi/offsets.h"
#include "jaxgnn_ffi/rows.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kRowsPerTask = 256;

// Calls `body(member, row, first_edge, last_edge)` for every row of every batch member and zeroes
// the edges behind the last row.
template <typename T, typename Body>
void ForRowEdges(ffi::ThreadPool pool, const Batch& batch, const ffi::AnyBuffer& indptr, T* result,
                 int64_t num_edges, int64_t heads, const Body& body) {
  const int64_t rows = indptr.dimensions().back() - 1;
  const int64_t tasks_each = (rows + kRowsPerTask - 1) / kRowsPerTask;
  ParallelFor(pool, batch.size() * tasks_each, [&](int64_t task) {
    const int64_t member = task / tasks_each, first = task % tasks_each * kRowsPerTask;
    const Offsets offsets = Offsets::Of(batch, indptr, member);
    WithAvx2([&]() JAXGNN_INLINE {
      for (int64_t row = first; row < std::min(rows, first + kRowsPerTask); ++row) {
        body(member, offsets[row], offsets[row + 1]);
      }
    });
  });
  for (int64_t member = 0; member < batch.size(); ++member) {
    T* out = result + member * num_edges * heads;
    const int64_t end = Offsets::Of(batch, indptr, member)[rows];
    for (int64_t i = end * heads; i < num_edges * heads; ++i) out[i] = T{};
  }
}

// `peaks` and `sums` hold a number a head, `exponentials` one for each edge and head of the row.
// Sums are double: a hub row may have more edges than float has digits for.
template <typename T>
JAXGNN_INLINE inline void SoftmaxOfRow(const T* logits, T* probabilities, int64_t begin,
                                       int64_t end, int64_t heads, double* sums, float* peaks,
                                       float* exponentials) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t edges = end - begin;
  const T* in = logits + begin * heads;
  T* out = probabilities + begin * heads;
  for (int64_t head = 0; head < heads; ++head) peaks[head] = -kInfinity, sums[head] = 0.0;
  for (int64_t edge = 0; edge < edges; ++edge) {
    for (int64_t head = 0; head < heads; ++head) {
      const float logit = ToFloat(in[edge * heads + head]);
      // NaN, once met, stays: it compares false with everything.
      peaks[head] =
          logit <= peaks[head] ? peaks[head] : (peaks[head] != peaks[head] ? peaks[head] : logit);
    }
  }
  for (int64_t head = 0; head < heads; ++head) {
    if (peaks[head] == -kInfinity) peaks[head] = 0.0f;
  }
  for (int64_t edge = 0; edge < edges; ++edge) {
    for (int64_t head = 0; head < heads; ++head) {
      exponentials[edge * heads + head] = ToFloat(in[edge * heads + head]) - peaks[head];
    }
  }
  for (int64_t i = 0; i < edges * heads; ++i) exponentials[i] = ExpOfNegative(exponentials[i]);
  for (int64_t edge = 0; edge < edges; ++edge) {
    for (int64_t head = 0; head < heads; ++head) sums[head] += exponentials[edge * heads + head];
  }
  for (int64_t edge = 0; edge < edges; ++edge) {
    for (int64_t head = 0; head < heads; ++head) {
      const float sum = static_cast<float>(sums[head]);
      out[edge * heads + head] = FromFloat<T>(exponentials[edge * heads + head] / sum);
    }
  }
}

ffi::Error SegmentSoftmax(ffi::ThreadPool pool, ffi::AnyBuffer indptr, ffi::AnyBuffer logits,
                          ffi::Result<ffi::AnyBuffer> probabilities) {
  const Batch batch(probabilities->dimensions(), 2);
  const int64_t heads = probabilities->dimensions().back();
  const int64_t num_edges = probabilities->dimensions()[batch.rank()];
  if (!AreOffsets(indptr.element_type()))
    return UnsupportedType("edge offsets", indptr.element_type());
  return SwitchFloat(logits.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* result = static_cast<T*>(probabilities->untyped_data());
    ForRowEdges<T>(pool, batch, indptr, result, num_edges, heads,
                   [&](int64_t member, int64_t begin, int64_t end) JAXGNN_INLINE {
                     const T* in = batch.Item<const T>(logits, member);
                     T* out = result + member * num_edges * heads;
                     double* sums = Scratch<double>(heads);
                     float* floats = Scratch<float>((end - begin + 1) * heads);
                     SoftmaxOfRow(in, out, begin, end, heads, sums, floats, floats + heads);
                   });
    return ffi::Error::Success();
  });
}

// dl_e = p_e (dp_e - Σ p_e' dp_e')
ffi::Error SegmentSoftmaxGrad(ffi::ThreadPool pool, ffi::AnyBuffer indptr,
                              ffi::AnyBuffer probabilities, ffi::AnyBuffer gradient,
                              ffi::Result<ffi::AnyBuffer> dlogits) {
  const Batch batch(dlogits->dimensions(), 2);
  const int64_t heads = dlogits->dimensions().back();
  const int64_t num_edges = dlogits->dimensions()[batch.rank()];
  if (!AreOffsets(indptr.element_type()))
    return UnsupportedType("edge offsets", indptr.element_type());
  return SwitchFloat(gradient.element_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    T* result = static_cast<T*>(dlogits->untyped_data());
    ForRowEdges<T>(pool, batch, indptr, result, num_edges, heads,
                   [&](int64_t member, int64_t begin, int64_t end) JAXGNN_INLINE {
                     const T* p = batch.Item<const T>(probabilities, member);
                     const T* dp = batch.Item<const T>(gradient, member);
                     T* out = result + member * num_edges * heads;
                     for (int64_t head = 0; head < heads; ++head) {
                       double total = 0.0;
                       for (int64_t edge = begin; edge < end; ++edge) {
                         total +=
                             ToFloat(p[edge * heads + head]) * ToFloat(dp[edge * heads + head]);
                       }
                       const float sum = static_cast<float>(total);
                       for (int64_t edge = begin; edge < end; ++edge) {
                         const int64_t at = edge * heads + head;
                         out[at] = FromFloat<T>(ToFloat(p[at]) * (ToFloat(dp[at]) - sum));
                       }
                     }
                   });
    return ffi::Error::Success();
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
