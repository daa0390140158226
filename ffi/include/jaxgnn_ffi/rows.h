// Row-wise accumulation over the units of a row schedule (see jaxgnn/graph/plan/schedule.py).
#pragma once

#include <cstdint>
#include <vector>

#include "jaxgnn_ffi/isa.h"
#include "jaxgnn_ffi/parallel.h"

namespace jaxgnn {

// Units of one graph; padding units have row == num_rows.
template <typename Offset>
struct Units {
  const int32_t* rows;
  const Offset* offsets;
  int64_t count;
  int64_t num_rows;

  bool Continues(int64_t unit) const {
    return unit > 0 && unit < count && rows[unit] < num_rows && rows[unit] == rows[unit - 1];
  }
};

// The coefficient of an edge, each factor one if its array is null.
template <typename Offset>
struct Coefficients {
  const float* weights;
  const float* row_scale;
  const float* col_scale;

  JAXGNN_INLINE inline float Edge(int64_t edge, int32_t column) const {
    const float weight = weights ? weights[edge] : 1.0f;
    return col_scale ? weight * col_scale[column] : weight;
  }
  JAXGNN_INLINE inline float Row(int64_t row) const { return row_scale ? row_scale[row] : 1.0f; }
};

// Memory of this thread; what is in use at the same time has different numbers `kUse`.
template <typename Number, int kUse = 0>
inline Number* Scratch(int64_t size) {
  static thread_local std::vector<Number> scratch;
  if (static_cast<int64_t>(scratch.size()) < size) scratch.resize(size);
  return scratch.data();
}

// Fixed, so that the order of summation depends neither on the machine nor on its load.
constexpr int64_t kUnitsPerTask = 64;

// Edges [begin, end) of a row, all of them or a piece.
struct Piece {
  int64_t member;
  int64_t task;  // of its member; a task runs its pieces one after the other
  int64_t row;
  int64_t begin;
  int64_t end;
};

// Base of kernels whose state of a row is a number of sums.
struct RowSums {
  int64_t width;

  JAXGNN_INLINE inline void Start(float* sums) const {
    for (int64_t i = 0; i < width; ++i) sums[i] = 0.0f;
  }
  JAXGNN_INLINE inline void Merge(float* sums, const float* more) const {
    for (int64_t i = 0; i < width; ++i) sums[i] += more[i];
  }
};

// Computes every row of every batch member. The state of a row is `kernel.width` floats:
// `kernel.Start(state)` sets them for no edges, `kernel.Accumulate(piece, state)` adds edges, and
// `kernel.Finish(member, row, state)` stores the row. Rows whose units fall to one task are stored
// from there; the others leave states of their pieces, which `kernel.Merge(state, more)` puts
// together afterwards, in order. Each row is written once and none needs zeroing.
template <typename Offset, typename UnitsOf, typename Kernel>
void AccumulateRows(xla::ffi::ThreadPool pool, int64_t members, const UnitsOf& units_of,
                    const Kernel& kernel, int64_t units_per_task = kUnitsPerTask) {
  const int64_t width = kernel.width;
  const int64_t units_each = units_of(0).count;
  const int64_t tasks_each = (units_each + units_per_task - 1) / units_per_task;
  const int64_t tasks = members * tasks_each;

  // A task may hold a piece of the row it begins with and of the row it ends with.
  constexpr int64_t kWhole = -1;
  std::vector<int64_t> head_slot(tasks, kWhole), tail_slot(tasks, kWhole);
  int64_t slots = 0;
  for (int64_t task = 0; task < tasks; ++task) {
    const Units<Offset> units = units_of(task / tasks_each);
    const int64_t begin = task % tasks_each * units_per_task;
    const int64_t end = std::min(begin + units_per_task, units.count);
    const bool continued = units.Continues(begin);
    if (continued) head_slot[task] = slots++;
    const bool one_row = continued && units.rows[begin] == units.rows[end - 1];
    if (units.Continues(end) && !one_row) tail_slot[task] = slots++;
  }
  std::vector<float> partial(slots * width);

  ParallelFor(pool, tasks, [&](int64_t task) {
    const int64_t member = task / tasks_each;
    const Units<Offset> units = units_of(member);
    const int64_t begin = task % tasks_each * units_per_task;
    const int64_t end = std::min(begin + units_per_task, units.count);
    float* state = Scratch<float>(width);
    WithWidestIsa([&]() JAXGNN_INLINE {
      for (int64_t unit = begin; unit < end;) {
        const int32_t row = units.rows[unit];
        if (row >= units.num_rows) break;
        int64_t last = unit + 1;
        while (last < end && units.rows[last] == row) ++last;
        kernel.Start(state);
        kernel.Accumulate(
            {member, task % tasks_each, row, units.offsets[unit], units.offsets[last]}, state);
        int64_t slot = kWhole;
        if (unit == begin) slot = head_slot[task];
        if (last == end && slot == kWhole) slot = tail_slot[task];
        if (slot == kWhole) {
          kernel.Finish(member, row, state);
        } else {
          for (int64_t i = 0; i < width; ++i) partial[slot * width + i] = state[i];
        }
        unit = last;
      }
    });
  });

  for (int64_t task = 0; task < tasks; ++task) {
    if (tail_slot[task] == kWhole) continue;
    const int64_t member = task / tasks_each;
    const Units<Offset> units = units_of(member);
    const int64_t end = (task % tasks_each + 1) * units_per_task;
    const int32_t row = units.rows[end - 1];
    float* state = partial.data() + tail_slot[task] * width;
    for (int64_t next = task + 1; next < (member + 1) * tasks_each; ++next) {
      const int64_t begin = next % tasks_each * units_per_task;
      if (head_slot[next] == kWhole || units.rows[begin] != row) break;
      kernel.Merge(state, partial.data() + head_slot[next] * width);
    }
    kernel.Finish(member, row, state);
  }
}

}  // namespace jaxgnn
