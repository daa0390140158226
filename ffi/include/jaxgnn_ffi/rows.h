// Row-wise accumulation over the units of a row schedule (see jaxgnn/graph/plan/schedule.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/isa.h"
#include "jaxgnn_ffi/offsets.h"
#include "jaxgnn_ffi/parallel.h"

namespace jaxgnn {

// Units of one graph; padding units have row == num_rows.
struct Units {
  const int32_t* rows;
  Offsets offsets;
  int64_t count;
  int64_t num_rows;

  bool Continues(int64_t unit) const {
    return unit > 0 && unit < count && rows[unit] < num_rows && rows[unit] == rows[unit - 1];
  }
};

// The coefficient of an edge, each factor one if its array is null.
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

  template <typename Number>
  JAXGNN_INLINE inline void Start(Number* sums) const {
    for (int64_t i = 0; i < width; ++i) sums[i] = 0;
  }
  template <typename Number>
  JAXGNN_INLINE inline void Merge(Number* sums, const Number* more) const {
    for (int64_t i = 0; i < width; ++i) sums[i] += more[i];
  }
};

// How the units of all batch members are divided into tasks. A task may hold a piece of the row
// that it begins with and of the row that it ends with; each has a slot for its state.
class RowTasks {
 public:
  static constexpr int64_t kWhole = -1;  // a slot of a task that has no piece

  struct Task {
    int64_t member, number;  // among those of the member
    Units units;
    int64_t begin, end;  // its units
    int64_t head_slot, tail_slot;
  };

  RowTasks(int64_t members, std::function<Units(int64_t)> units_of, int64_t units_per_task)
      : units_of_(std::move(units_of)), units_per_task_(units_per_task) {
    const int64_t units_each = units_of_(0).count;
    tasks_each_ = (units_each + units_per_task - 1) / units_per_task;
    head_slot_.assign(members * tasks_each_, kWhole);
    tail_slot_.assign(members * tasks_each_, kWhole);
    for (int64_t number = 0; number < size(); ++number) {
      const Task task = At(number);
      const bool continued = task.units.Continues(task.begin);
      if (continued) head_slot_[number] = slots_++;
      const bool one_row =
          continued && task.units.rows[task.begin] == task.units.rows[task.end - 1];
      if (task.units.Continues(task.end) && !one_row) tail_slot_[number] = slots_++;
    }
  }

  int64_t size() const { return head_slot_.size(); }
  int64_t slots() const { return slots_; }

  Task At(int64_t task) const {
    const int64_t member = task / tasks_each_, number = task % tasks_each_;
    const Units units = units_of_(member);
    const int64_t begin = number * units_per_task_;
    const int64_t end = std::min(begin + units_per_task_, units.count);
    return {member, number, units, begin, end, head_slot_[task], tail_slot_[task]};
  }

  // The slots of the pieces of the row that a task ends with, in order; none if it has it whole.
  std::vector<int64_t> PiecesFrom(int64_t task) const {
    std::vector<int64_t> slots;
    if (tail_slot_[task] == kWhole) return slots;
    slots.push_back(tail_slot_[task]);
    const Task first = At(task);
    const int32_t row = first.units.rows[first.end - 1];
    const int64_t last = (first.member + 1) * tasks_each_;
    for (int64_t next = task + 1; next < last && head_slot_[next] != kWhole; ++next) {
      if (first.units.rows[next % tasks_each_ * units_per_task_] != row) break;
      slots.push_back(head_slot_[next]);
    }
    return slots;
  }

 private:
  std::function<Units(int64_t)> units_of_;
  int64_t units_per_task_, tasks_each_, slots_ = 0;
  std::vector<int64_t> head_slot_, tail_slot_;
};

// Puts the pieces of rows together, in order, and stores the rows. There are at most two pieces a
// task, so it is compiled for size.
template <typename Number, typename Kernel>
__attribute__((cold, noinline)) void MergePieces(const RowTasks& tasks, const Kernel& kernel,
                                                 Number* partial) {
  for (int64_t number = 0; number < tasks.size(); ++number) {
    const std::vector<int64_t> slots = tasks.PiecesFrom(number);
    if (slots.empty()) continue;
    Number* state = partial + slots[0] * kernel.width;
    for (size_t i = 1; i < slots.size(); ++i) {
      kernel.Merge(state, partial + slots[i] * kernel.width);
    }
    const RowTasks::Task task = tasks.At(number);
    kernel.Finish(task.member, task.units.rows[task.end - 1], state);
  }
}

// Computes every row of every batch member. The state of a row is `kernel.width` numbers:
// `kernel.Start(state)` sets them for no edges, `kernel.Accumulate(piece, state)` adds edges, and
// `kernel.Finish(member, row, state)` stores the row. Rows whose units fall to one task are stored
// from there; the others leave states of their pieces, which `kernel.Merge(state, more)` puts
// together afterwards, in order. Each row is written once and none needs zeroing.
template <typename Number = float, typename Kernel>
void AccumulateRows(xla::ffi::ThreadPool pool, int64_t members,
                    std::function<Units(int64_t)> units_of, const Kernel& kernel,
                    int64_t units_per_task = kUnitsPerTask) {
  const int64_t width = kernel.width;
  const RowTasks tasks(members, std::move(units_of), units_per_task);
  std::vector<Number> partial(tasks.slots() * width);
  ParallelFor(pool, tasks.size(), [&](int64_t number) {
    const RowTasks::Task task = tasks.At(number);
    const Units& units = task.units;
    Number* state = Scratch<Number>(width);
    WithWidestIsa([&]() JAXGNN_INLINE {
      for (int64_t unit = task.begin; unit < task.end;) {
        const int32_t row = units.rows[unit];
        if (row >= units.num_rows) break;
        int64_t last = unit + 1;
        while (last < task.end && units.rows[last] == row) ++last;
        kernel.Start(state);
        kernel.Accumulate({task.member, task.number, row, units.offsets[unit], units.offsets[last]},
                          state);
        int64_t slot = RowTasks::kWhole;
        if (unit == task.begin) slot = task.head_slot;
        if (last == task.end && slot == RowTasks::kWhole) slot = task.tail_slot;
        if (slot == RowTasks::kWhole) {
          kernel.Finish(task.member, row, state);
        } else {
          for (int64_t i = 0; i < width; ++i) partial[slot * width + i] = state[i];
        }
        unit = last;
      }
    });
  });
  MergePieces(tasks, kernel, partial.data());
}

}  // namespace jaxgnn
