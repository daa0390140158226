// Paths of a tensor product, and their sparse Clebsch-Gordan tables, as kernels read them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "jaxgnn_ffi/components.h"

namespace jaxgnn {

// A row of the operand `paths` (see jaxgnn/equivariant/couplings.py).
struct PathNumbers {
  int32_t in_start, sh_start, out_start, weight_start;
  int32_t channels, in_dim, sh_dim, out_dim, entries;
};
static_assert(sizeof(PathNumbers) == 9 * sizeof(int32_t));

// A sparse table of three axes, by its outer axis, then by its inner one. Outer component i has the
// pairs from `outer_first[i]` to `outer_first[i + 1]`; pair p is of inner component `inner[p]` and
// has the terms from `pair_first[p]` to `pair_first[p + 1]`, each of a component of the third axis
// and a coefficient.
template <typename Number>
struct SparseTable {
  std::vector<int32_t> outer_first, inner, pair_first, third;
  std::vector<Number> coefficients;

  // `axes` are the axes of the entries that are the outer, the inner and the third one.
  static SparseTable Of(const int32_t* entries, const Number* coefficients, int32_t count,
                        std::array<int, 3> axes, int32_t outer_dim) {
    std::vector<int32_t> order(count);
    for (int32_t i = 0; i < count; ++i) order[i] = i;
    const auto at = [&](int32_t i, int axis) { return entries[3 * i + axes[axis]]; };
    std::sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
      for (int axis = 0; axis < 3; ++axis) {
        if (at(i, axis) != at(j, axis)) return at(i, axis) < at(j, axis);
      }
      return i < j;
    });
    SparseTable table;
    for (int32_t k = 0; k < count; ++k) {
      const int32_t i = order[k], outer = at(i, 0), inner = at(i, 1);
      const bool is_new = k == 0 || at(order[k - 1], 0) != outer || at(order[k - 1], 1) != inner;
      while (static_cast<int32_t>(table.outer_first.size()) <= outer) {
        table.outer_first.push_back(static_cast<int32_t>(table.inner.size()));
      }
      if (is_new) {
        table.inner.push_back(inner);
        table.pair_first.push_back(k);
      }
      table.third.push_back(at(i, 2));
      table.coefficients.push_back(coefficients[i]);
    }
    table.pair_first.push_back(count);
    table.outer_first.resize(outer_dim + 1, static_cast<int32_t>(table.inner.size()));
    return table;
  }

  int32_t pairs() const { return static_cast<int32_t>(inner.size()); }
};

// A path, with places in padded copies of rows.
template <typename Number>
struct CoupledPath {
  PathNumbers numbers;
  int64_t in_start, out_start, padded;
  SparseTable<Number> by_out;       // out, in, sh
  SparseTable<Number> by_harmonic;  // sh, out, in
};

template <typename Number>
struct Couplings {
  Components in, out;
  std::vector<CoupledPath<Number>> paths;
  int64_t harmonics, weights;  // widths of the rows of edges
  int32_t most_pairs = 0;

  Couplings(const xla::ffi::AnyBuffer& path_numbers, const xla::ffi::AnyBuffer& entries,
            const xla::ffi::AnyBuffer& coefficients, int64_t in_width, int64_t out_width,
            int64_t harmonics, int64_t weights)
      : in(kWidth<Number>, in_width),
        out(kWidth<Number>, out_width),
        harmonics(harmonics),
        weights(weights) {
    const auto* row = static_cast<const PathNumbers*>(path_numbers.untyped_data());
    const auto* own = static_cast<const int32_t*>(entries.untyped_data());
    const auto* values = static_cast<const Number*>(coefficients.untyped_data());
    const int64_t rows = path_numbers.element_count() / 9;
    for (int64_t i = 0; i < rows; ++i, ++row) {
      CoupledPath<Number> path{*row,
                               in.Add(row->in_start, row->channels, row->in_dim),
                               out.Add(row->out_start, row->channels, row->out_dim),
                               in.Padded(row->channels),
                               {},
                               {}};
      path.by_out = SparseTable<Number>::Of(own, values, row->entries, {2, 0, 1}, row->out_dim);
      path.by_harmonic = SparseTable<Number>::Of(own, values, row->entries, {1, 2, 0}, row->sh_dim);
      most_pairs = std::max(most_pairs, path.by_out.pairs());
      own += 3 * row->entries;
      values += row->entries;
      paths.push_back(std::move(path));
    }
  }
};

}  // namespace jaxgnn
