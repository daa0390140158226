// What the handlers of the sparse kernels have in common: reading a graph's operands.
#pragma once

#include "jaxgnn_ffi/batch.h"
#include "jaxgnn_ffi/number.h"
#include "jaxgnn_ffi/rows.h"

namespace jaxgnn {

// How many edges ahead of the arithmetic a neighbour's data is asked for.
constexpr int64_t kPrefetchEdges = 6;

JAXGNN_INLINE inline void PrefetchBytes(const void* data, int64_t bytes) {
  const char* start = static_cast<const char*>(data);
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(start + byte);
}

// The operands that come first in every sparse kernel, by batch member.
class GraphArgs {
 public:
  GraphArgs(const Batch& batch, int64_t num_rows, const xla::ffi::AnyBuffer& unit_rows,
            const xla::ffi::AnyBuffer& unit_offsets, const xla::ffi::AnyBuffer& indices)
      : batch_(batch),
        num_rows_(num_rows),
        unit_rows_(unit_rows),
        unit_offsets_(unit_offsets),
        indices_(indices) {}

  Units UnitsOf(int64_t member) const {
    return {batch_.Item<const int32_t>(unit_rows_, member),
            Offsets::Of(batch_, unit_offsets_, member), unit_rows_.dimensions().back(), num_rows_};
  }
  const int32_t* Indices(int64_t member) const {
    return batch_.Item<const int32_t>(indices_, member);
  }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_edges() const { return indices_.dimensions().back(); }

 private:
  const Batch& batch_;
  int64_t num_rows_;
  const xla::ffi::AnyBuffer& unit_rows_;
  const xla::ffi::AnyBuffer& unit_offsets_;
  const xla::ffi::AnyBuffer& indices_;
};

// Calls `body(task, first_unit, last_unit, member)` in parallel over all units of all members, for
// kernels whose result has one entry an edge, so that rows need not be kept together.
template <typename Body>
void ForUnits(xla::ffi::ThreadPool pool, int64_t members, int64_t units, const Body& body,
              int64_t units_per_task = kUnitsPerTask) {
  const int64_t tasks_each = (units + units_per_task - 1) / units_per_task;
  ParallelFor(pool, members * tasks_each, [&](int64_t task) {
    const int64_t begin = task % tasks_each * units_per_task;
    body(task / tasks_each, begin, std::min(begin + units_per_task, units));
  });
}

// Sets the entries of padding slots, those behind the last unit's end, to zero; `edges` has as many
// numbers an edge as there are heads.
inline void ZeroPaddingEdges(const Units& units, float* edges, int64_t num_edges,
                             int64_t heads = 1) {
  const int64_t first = units.offsets[units.count];
  std::fill(edges + first * heads, edges + num_edges * heads, 0.0f);
}

}  // namespace jaxgnn
