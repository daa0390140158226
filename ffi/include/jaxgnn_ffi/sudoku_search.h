// Solutions of a 9x9 Sudoku, one after another.
#pragma once

#include "jaxgnn_ffi/sudoku_candidates.h"

namespace jaxgnn {
namespace sudoku {

// Of the open cells those with the fewest candidates; four and more count alike.
inline Cells Fewest(const Tally& tally) {
  const Cells two = tally.several & ~tally.many, three = tally.many & ~tally.more;
  return !IsEmpty(two) ? two : !IsEmpty(three) ? three : tally.more;
}

// Guesses at the first cell, lowest digit first, and counts the guesses.
struct InOrder {
  int64_t guesses = 0;

  bool GivesUp() { return false; }
  int Choose(Cells cells) {
    ++guesses;
    return Nth(cells, 0);
  }
  void Arrange(int*, int) {}
};

// Calls `visit(solution)` for one solution after another, until it returns true or `order` gives
// up; returns whether that happened. Where no conclusion can be drawn any more, `order` chooses a
// cell and the order of digits.
template <typename Order, typename Visit>
bool Search(Candidates candidates, Order& order, const Visit& visit) {
  if (!candidates.Propagate()) return false;
  const Tally tally = candidates.Tell();
  if (IsEmpty(tally.several)) return visit(candidates);
  if (order.GivesUp()) return true;
  const int cell = order.Choose(Fewest(tally));
  int digits[kDigits], count = 0;
  for (int d = 0; d < kDigits; ++d) {
    if (Has(candidates.Of(d), cell)) digits[count++] = d;
  }
  order.Arrange(digits, count);
  for (int i = 0; i < count; ++i) {
    Candidates guess = candidates;
    guess.Place(cell, digits[i]);
    if (Search(guess, order, visit)) return true;
  }
  return false;
}

// Cells of each digit on a board of 81 numbers, 0 where a cell is empty.
struct Board {
  Cells of[kDigits];

  Board() {
    for (Cells& cells : of) cells = AllOf(0);
  }
  explicit Board(const int8_t* numbers) : Board() {
    for (int cell = 0; cell < kCells; ++cell) {
      if (numbers[cell] > 0) of[numbers[cell] - 1] |= Only(cell);
    }
  }
  explicit Board(const Candidates& solution) {
    for (int d = 0; d < kDigits; ++d) of[d] = solution.Of(d);
  }
  void Write(int8_t* numbers) const {
    for (int cell = 0; cell < kCells; ++cell) numbers[cell] = 0;
    for (int d = 0; d < kDigits; ++d) {
      for (int cell = 0; cell < kCells; ++cell) {
        if (Has(of[d], cell)) numbers[cell] = static_cast<int8_t>(d + 1);
      }
    }
  }
};

}  // namespace sudoku
}  // namespace jaxgnn
