// Solutions of a 9x9 Sudoku, one after another.
#pragma once

#include <cstdint>

#include "jaxgnn_ffi/sudoku_candidates.h"
#include "jaxgnn_ffi/sudoku_proof.h"

namespace jaxgnn {
namespace sudoku {

// Of the open cells those with the fewest candidates; four and more count alike.
inline Cells Fewest(const Tally& tally) {
  const Cells two = tally.several & ~tally.many, three = tally.many & ~tally.more;
  return !IsEmpty(two) ? two : !IsEmpty(three) ? three : tally.more;
}

// Guesses at the first cell, lowest digit first, and counts the guesses.
class InOrder {
 public:
  static constexpr int64_t kAny = INT64_MAX;

  InOrder() : InOrder(Candidates(), kAny, kAny, nullptr) {}

  // For a search from `root`. After `patience` guesses without a solution, guesses that no solution
  // has are skipped: the same solutions then come in the same order, but the number of guesses is
  // no longer that of the plain search. Gives up after `most` guesses without a solution, which
  // include those of the proofs.
  InOrder(const Candidates& root, int64_t patience, int64_t most, const int32_t* stop)
      : candidates_(root), patience_(patience), most_(most), stop_(stop) {}

  int64_t guesses() const { return guesses_; }
  bool HasGivenUp() const { return work_ > most_; }

  bool GivesUp() { return HasGivenUp() || IsSet(stop_); }
  int Choose(Cells cells) {
    ++guesses_;
    ++work_;
    return Nth(cells, 0);
  }
  void Arrange(int*, int) {}
  bool Admits(const Candidates& guess) {
    if (work_ < patience_) return true;
    Proof proof{work_, most_, stop_};
    // Where there is none at all, that is faster to prove than of each guess.
    if (root_ == Root::kUnknown) {
      root_ = proof.MayHaveSolution(candidates_) ? Root::kSolvable : Root::kRefuted;
    }
    return root_ == Root::kSolvable && proof.MayHaveSolution(guess);
  }
  // A solution was found; patience begins again.
  void Restart() {
    root_ = Root::kSolvable;
    work_ = 0;
  }

 private:
  enum class Root { kUnknown, kSolvable, kRefuted };

  const Candidates candidates_;
  const int64_t patience_, most_;
  const int32_t* const stop_;
  Root root_ = Root::kUnknown;
  int64_t guesses_ = 0, work_ = 0;
};

// Calls `visit(solution)` for one solution after another, until it returns true or `order` gives
// up; returns whether that happened. Where no conclusion can be drawn any more, `order` chooses a
// cell and the order of digits, and may skip guesses that have no solution.
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
    if (!order.Admits(guess)) continue;
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
  // Whether a digit occurs twice in a row, column or box.
  bool HasClash() const {
    for (const Cells& cells : of) {
      if (AreTwiceInAUnit(cells)) return true;
    }
    return false;
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
