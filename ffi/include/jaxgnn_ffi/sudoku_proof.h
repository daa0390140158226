// Whether a 9x9 Sudoku has a solution, by a search that is fast where the digits clash.
#pragma once

#include <cstdint>

#include "jaxgnn_ffi/sudoku_candidates.h"

namespace jaxgnn {
namespace sudoku {

// Rows, columns and boxes as sets of cells.
struct UnitCells {
  static constexpr int kUnits = 27;
  Cells of[kUnits];

  UnitCells() {
    for (int i = 0; i < 9; ++i) {
      of[i] = of[18 + i] = AllOf(0);
      of[i][i / 3] = kRow << 9 * (i % 3);
      of[9 + i] = AllOf(kRowStarts << i);
      of[18 + i][i / 3] = 7 * kRowStarts << 3 * (i % 3);
    }
  }
  static const UnitCells& Get() {
    static const UnitCells units;
    return units;
  }
};

inline bool AreTwiceInAUnit(Cells cells) {
  for (const Cells& unit : UnitCells::Get().of) {
    if (Count(cells & unit) > 1) return true;
  }
  return false;
}

// Whether the caller has asked for an end, by a number that is not 0; null never asks.
inline bool IsSet(const int32_t* stop) {
  return stop != nullptr && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

// Searches for any solution: guesses at the cell with the fewest digits, or at the digit with the
// fewest places in a row, column or box. Its order differs from that of the solver, which defines
// the difficulty of a puzzle and the order of its solutions.
struct Proof {
  int64_t& work;  // counts guesses
  const int64_t most;
  const int32_t* const stop;

  // False only if there is no solution. True without one after `most` guesses, or when stopped.
  bool MayHaveSolution(Candidates candidates) {
    if (!candidates.Propagate()) return false;
    const Tally tally = candidates.Tell();
    const Cells settled = tally.some & ~tally.several;
    for (int d = 0; d < kDigits; ++d) {
      // Two cells of a unit may be settled at once.
      if (AreTwiceInAUnit(candidates.Of(d) & settled)) return false;
    }
    if (IsEmpty(tally.several)) return true;
    if (++work > most || IsSet(stop)) return true;
    const Choice choice = Choose(candidates, tally);
    const Cells cells = choice.cell < 0 ? choice.places : Only(choice.cell);
    for (int d = 0; d < kDigits; ++d) {
      if (choice.cell < 0 && d != choice.digit) continue;
      for (Cells left = cells & candidates.Of(d); !IsEmpty(left); left &= ~Only(Nth(left, 0))) {
        Candidates guess = candidates;
        guess.Place(Nth(left, 0), d);
        if (MayHaveSolution(guess)) return true;
      }
    }
    return false;
  }

 private:
  // One cell with all of its digits; or, where `cell` is negative, one digit with its places.
  struct Choice {
    int cell;
    int digit;
    Cells places;
  };

  static Choice Choose(const Candidates& candidates, const Tally& tally) {
    const Cells two = tally.several & ~tally.many, three = tally.many & ~tally.more;
    if (!IsEmpty(two)) return {Nth(two, 0), 0, two};
    const bool are_three = !IsEmpty(three);
    Choice best{Nth(are_three ? three : tally.more, 0), 0, three};
    int fewest = are_three ? 3 : kDigits;  // four and more in a cell count alike
    for (const Cells& unit : UnitCells::Get().of) {
      for (int d = 0; d < kDigits; ++d) {
        const Cells places = candidates.Of(d) & unit;
        const int count = Count(places);
        if (count < 2 || count >= fewest) continue;
        fewest = count;
        best = {-1, d, places};
        if (fewest == 2) return best;
      }
    }
    return best;
  }
};

}  // namespace sudoku
}  // namespace jaxgnn
