// What is still possible in a 9x9 Sudoku, and what follows from it.
#pragma once

#include <cstdint>

namespace jaxgnn {
namespace sudoku {

constexpr int kCells = 81;
constexpr int kDigits = 9;
constexpr int kBands = 3;
constexpr int kCellsOfBand = 27;

// A set of cells: lane b holds rows 3b to 3b + 2, with bit 9 * (row % 3) + column. Lane 3 is
// padding.
typedef uint32_t Cells __attribute__((vector_size(16)));

constexpr uint32_t kBand = (1u << kCellsOfBand) - 1;
constexpr uint32_t kRowStarts = 1u | 1u << 9 | 1u << 18;
constexpr uint32_t kRow = 511;

inline Cells AllOf(uint32_t bits) { return Cells{bits, bits, bits, bits}; }
inline Cells Every() { return AllOf(kBand); }
inline bool IsEmpty(Cells cells) { return (cells[0] | cells[1] | cells[2]) == 0; }
inline bool AreEqual(Cells a, Cells b) { return IsEmpty(a ^ b); }
inline int Count(Cells cells) {
  int count = 0;
  for (int band = 0; band < kBands; ++band) count += __builtin_popcount(cells[band]);
  return count;
}

inline uint32_t BitOf(int cell) { return 1u << cell % kCellsOfBand; }
inline bool Has(Cells cells, int cell) { return cells[cell / kCellsOfBand] & BitOf(cell); }
inline Cells Only(int cell) {
  const uint32_t bit = BitOf(cell), band = cell / kCellsOfBand;
  return Cells{band == 0 ? bit : 0, band == 1 ? bit : 0, band == 2 ? bit : 0, 0};
}

// The cell of rank `rank` in a set that has more than that.
inline int Nth(Cells cells, int rank) {
  int band = 0;
  for (; rank >= __builtin_popcount(cells[band]); ++band) rank -= __builtin_popcount(cells[band]);
  uint32_t bits = cells[band];
  for (; rank > 0; --rank) bits &= bits - 1;
  return band * kCellsOfBand + __builtin_ctz(bits);
}

// Whole rows that have any of `cells`.
inline Cells RowsOf(Cells cells) {
  const Cells low = AllOf(255 * kRowStarts), top = AllOf(256 * kRowStarts);
  const Cells starts = ((((cells & low) + low) | cells) & top) >> 8;
  return (starts << 9) - starts;
}

// The bits of groups of three, moved on by one or two places inside their group.
inline Cells TurnOnce(Cells x, int step, uint32_t first, uint32_t others) {
  return ((x & AllOf(others)) >> step) | ((x & AllOf(first)) << 2 * step);
}
inline Cells TurnTwice(Cells x, int step, uint32_t last, uint32_t others) {
  return ((x & AllOf(others)) << step) | ((x & AllOf(last)) >> 2 * step);
}

// Of a digit's cells those that some way to fill all three rows and boxes of the band leaves. A
// box's three cells of a row stand or fall together: rows and boxes make a 3x3 table, in which the
// digit takes three places without a row or a column in common.
inline Cells ByRowsAndBoxes(Cells cells) {
  constexpr uint32_t kBoxStarts = kRowStarts | kRowStarts << 3 | kRowStarts << 6;
  const Cells x = (cells | cells >> 1 | cells >> 2) & AllOf(kBoxStarts);
  const Cells next = x >> 9 | (x & AllOf(kRow)) << 18;
  const Cells last = x >> 18 | (x & AllOf(kRow | kRow << 9)) << 9;
  const auto once = [](Cells y) { return TurnOnce(y, 3, 7 * kRowStarts, 504 * kRowStarts); };
  const auto twice = [](Cells y) { return TurnTwice(y, 3, 448 * kRowStarts, 63 * kRowStarts); };
  const Cells kept = x & ((once(next) & twice(last)) | (twice(next) & once(last)));
  return cells & ((kept << 3) - kept);
}

// The same for the columns of a stack of boxes and the three bands.
inline Cells ByColumnsAndBands(Cells cells) {
  const Cells x = (cells | cells >> 9 | cells >> 18) & AllOf(kRow);
  const Cells next = Cells{x[1], x[2], x[0], 0};
  const Cells last = Cells{x[2], x[0], x[1], 0};
  const auto once = [](Cells y) { return TurnOnce(y, 1, 0111, 0666); };
  const auto twice = [](Cells y) { return TurnTwice(y, 1, 0444, 0333); };
  const Cells kept = x & ((once(next) & twice(last)) | (twice(next) & once(last)));
  return cells & (kept | kept << 9 | kept << 18);
}

// Cells by how many digits are possible there.
struct Tally {
  Cells some, several, many, more;  // at least 1, 2, 3, 4
};

// The digits that each cell can still have.
class Candidates {
 public:
  Candidates() {
    for (Cells& cells : cells_) cells = Every();
  }

  // The cells of each digit that are given; nothing has been concluded yet.
  explicit Candidates(const Cells (&given)[kDigits]) {
    Cells taken = AllOf(0);
    for (const Cells& cells : given) taken |= cells;
    for (int d = 0; d < kDigits; ++d) {
      cells_[d] = Every() & (given[d] | ~(taken | RowsOf(given[d])));
    }
  }

  Cells Of(int digit) const { return cells_[digit]; }
  void Forbid(int cell, int digit) { cells_[digit] &= ~Only(cell); }
  void Place(int cell, int digit) {
    for (int d = 0; d < kDigits; ++d) {
      if (d != digit) Forbid(cell, d);
    }
  }

  // Draws all conclusions from single cells, single places, and rows, columns and boxes that have
  // to share a digit, again and again. The order makes no difference to what is left in the end.
  // False if nothing can be.
  bool Propagate() {
    for (;;) {
      const Tally tally = Tell();
      if (!AreEqual(tally.some, Every())) return false;
      const Cells settled = tally.some & ~tally.several;
      Cells placed[kDigits], taken = AllOf(0), changed = AllOf(0);
      for (int d = 0; d < kDigits; ++d) {
        const Cells before = cells_[d];
        Cells cells = before & ((before & settled) | ~RowsOf(before & settled));
        cells = ByColumnsAndBands(ByRowsAndBoxes(cells));
        if (!AreEqual(RowsOf(cells), Every())) return false;
        placed[d] = cells & ~RowsOf(cells & (cells - AllOf(kRowStarts)));
        taken |= placed[d];
        changed |= cells ^ before;
        cells_[d] = cells;
      }
      for (int d = 0; d < kDigits; ++d) {
        const Cells cells = cells_[d] & (placed[d] | ~taken);
        changed |= cells ^ cells_[d];
        cells_[d] = cells;
      }
      if (IsEmpty(changed)) return true;
    }
  }

  Tally Tell() const {
    const Cells none = AllOf(0);
    Tally tally{none, none, none, none};
    for (const Cells& cells : cells_) {
      tally.more |= tally.many & cells;
      tally.many |= tally.several & cells;
      tally.several |= tally.some & cells;
      tally.some |= cells;
    }
    return tally;
  }

 private:
  Cells cells_[kDigits];
};

}  // namespace sudoku
}  // namespace jaxgnn
