// Makes, solves and rates 9x9 Sudokus: plain C functions, called by jaxgnn/_ffi/sudoku.py.
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/sudoku_candidates.h"
#include "jaxgnn_ffi/sudoku_proof.h"
#include "jaxgnn_ffi/sudoku_search.h"
#include "jaxgnn_ffi/sudoku_singles.h"

namespace jaxgnn {
namespace sudoku {
namespace {

// A stream of random numbers (SplitMix64) that depends on a seed and the index of a puzzle alone.
class Random {
 public:
  Random(uint64_t seed, uint64_t index) : state_(Mix(Mix(seed + kStep) + index)) {}

  // Uniform in [0, count), to a part in 2^32.
  int Below(int count) {
    state_ += kStep;
    return static_cast<int>((Mix(state_) >> 32) * count >> 32);
  }
  void Shuffle(int* items, int count) {
    for (int i = count - 1; i > 0; --i) std::swap(items[i], items[Below(i + 1)]);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  static uint64_t Mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  uint64_t state_;
};

// Guesses at any of the cells, digits in any order. From an empty board that takes some 40 guesses
// as a rule; but one board in a thousand has early guesses that only very many later ones refute.
struct AtRandom {
  Random& random;
  int guesses_left = 100;

  bool GivesUp() { return guesses_left-- == 0; }
  int Choose(Cells cells) { return Nth(cells, random.Below(Count(cells))); }
  void Arrange(int* digits, int count) { random.Shuffle(digits, count); }
  bool Admits(const Candidates&) { return true; }
};

Board RandomGrid(Random& random) {
  Board grid;
  for (bool found = false; !found;) {
    AtRandom order{random};
    Search(Candidates(), order, [&](const Candidates& solution) {
      grid = Board(solution);
      return found = true;
    });
  }
  return grid;
}

// Givens of a solution, of which alone they are givens.
class Puzzle {
 public:
  Puzzle(const Board& solution, Random& random)
      : random_(random), solution_(solution), given_(solution) {
    solution.Write(numbers_);
    Minimise();
  }

  int count() const { return count_; }
  void Write(int8_t* numbers) const { given_.Write(numbers); }

  // Takes away in random order every given that the others do without. One that is needed stays
  // needed when others go, so each is looked at once.
  void Minimise() {
    int order[kCells], count = 0;
    for (int cell = 0; cell < kCells; ++cell) {
      if (IsGiven(cell)) order[count++] = cell;
    }
    random_.Shuffle(order, count);
    for (int i = 0; i < count; ++i) {
      Take(order[i]);
      if (HasSolutionOtherThanAt(order[i], [](const Candidates&) {})) Give(order[i]);
    }
  }

  // Gives one cell in place of another, both at random, if that can be; the result need not be
  // minimal.
  //
  // A solution that differs where the given was taken rules out all cells in which it agrees with
  // ours: none of them would tell the two apart.
  bool Exchange() {
    Cells open = Every();
    for (const Cells& cells : given_.of) open &= ~cells;
    const int taken = Nth(Every() & ~open, random_.Below(count_));
    Take(taken);
    while (!IsEmpty(open)) {
      const int cell = Nth(open, random_.Below(Count(open)));
      Give(cell);
      const bool found = HasSolutionOtherThanAt(taken, [&](const Candidates& other) {
        for (int d = 0; d < kDigits; ++d) open &= ~(other.Of(d) & solution_.of[d]);
      });
      if (!found) return true;
      Take(cell);
    }
    Give(taken);
    return false;
  }

  // Exchanges givens for as long as one or another becomes superfluous by it. False if there are
  // more than `most` even so, or when stopped.
  bool WalkDownTo(int most, const int32_t* stop) {
    for (int vain = 0; count_ > most && vain < kVainExchanges && !IsSet(stop); ++vain) {
      const int before = count_;
      if (Exchange()) Minimise();
      if (count_ < before) vain = 0;
    }
    return count_ <= most;
  }

 private:
  // After so many a fresh grid is the better bet.
  static constexpr int kVainExchanges = 300;

  int DigitAt(int cell) const { return numbers_[cell] - 1; }
  bool IsGiven(int cell) const { return Has(given_.of[DigitAt(cell)], cell); }
  void Take(int cell) {
    given_.of[DigitAt(cell)] &= ~Only(cell);
    --count_;
  }
  void Give(int cell) {
    given_.of[DigitAt(cell)] |= Only(cell);
    ++count_;
  }

  template <typename Visit>
  bool HasSolutionOtherThanAt(int cell, const Visit& visit) const {
    Candidates candidates(given_.of);
    candidates.Forbid(cell, DigitAt(cell));
    InOrder order;
    return Search(candidates, order, [&](const Candidates& solution) {
      visit(solution);
      return true;
    });
  }

  Random& random_;
  const Board solution_;
  Board given_;
  int8_t numbers_[kCells];
  int count_ = kCells;
};

// Minimal puzzles with at most this many givens are too rare to wait for.
constexpr int kRare = 21;

// Writes nothing when stopped.
void Generate(Random& random, int most, bool exactly, const int32_t* stop, int8_t* numbers,
              int8_t* solution) {
  while (!IsSet(stop)) {
    const Board grid = RandomGrid(random);
    Puzzle puzzle(grid, random);
    if (most <= kRare && !puzzle.WalkDownTo(most, stop)) continue;
    if (exactly ? puzzle.count() != most : puzzle.count() > most) continue;
    puzzle.Write(numbers);
    grid.Write(solution);
    return;
  }
}

// Calls `body(i)` for each i in [0, count), in any order, on so many threads, unless it is stopped.
template <typename Body>
void ParallelFor(int threads, int64_t count, const int32_t* stop, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i; !IsSet(stop) && (i = next.fetch_add(1)) < count;) body(i);
  };
  std::vector<std::thread> helpers;
  try {
    for (int t = 1; t < threads && t < count; ++t) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // The system has no more threads: those there are do it all.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace
}  // namespace sudoku
}  // namespace jaxgnn

#pragma GCC visibility push(default)

extern "C" {

// All functions return soon after another thread sets `*stop`, a number that is 0 before; what
// they have written then is not to be read.

// Puzzle i, of the stream `first + i` of the seed, is minimal and has at most `most[i]` givens, or
// so many if `exactly`. Writes 81 numbers for each puzzle and each solution.
void jaxgnn_sudoku_generate(uint64_t seed, int64_t first, int64_t count, const int8_t* most,
                            int32_t exactly, int32_t threads, const int32_t* stop, int8_t* puzzles,
                            int8_t* solutions) {
  namespace sudoku = jaxgnn::sudoku;
  sudoku::ParallelFor(threads, count, stop, [&](int64_t i) {
    sudoku::Random random(seed, static_cast<uint64_t>(first + i));
    int8_t *puzzle = puzzles + i * sudoku::kCells, *solution = solutions + i * sudoku::kCells;
    sudoku::Generate(random, most[i], exactly != 0, stop, puzzle, solution);
  });
}

// Looks for up to `limit` solutions of each of `count` boards. Writes how many it found, or -1
// where it gave up; the solutions, [count, limit, 81]; and the guesses that all of it took.
// `patience` and `most` are those of the search.
void jaxgnn_sudoku_solve(int64_t count, const int8_t* boards, int32_t limit, int64_t patience,
                         int64_t most, int32_t threads, const int32_t* stop, int32_t* found,
                         int8_t* solutions, int64_t* guesses) {
  namespace sudoku = jaxgnn::sudoku;
  sudoku::ParallelFor(threads, count, stop, [&](int64_t i) {
    const sudoku::Board board(boards + i * sudoku::kCells);
    found[i] = 0;
    guesses[i] = 0;
    if (board.HasClash()) return;
    const sudoku::Candidates candidates(board.of);
    sudoku::InOrder order(candidates, patience, most, stop);
    sudoku::Search(candidates, order, [&](const sudoku::Candidates& solution) {
      const int64_t place = i * limit + found[i];
      sudoku::Board(solution).Write(solutions + place * sudoku::kCells);
      order.Restart();
      return ++found[i] == limit;
    });
    guesses[i] = order.guesses();
    if (order.HasGivenUp()) found[i] = -1;
  });
}

// Fills each of `count` boards by naked and hidden singles. Writes how many rounds that took, and
// how many cells were open after them.
void jaxgnn_sudoku_singles(int64_t count, const int8_t* boards, int32_t threads,
                           const int32_t* stop, int32_t* rounds, int32_t* open) {
  namespace sudoku = jaxgnn::sudoku;
  sudoku::ParallelFor(threads, count, stop, [&](int64_t i) {
    sudoku::Singles singles(boards + i * sudoku::kCells);
    rounds[i] = singles.Fill();
    open[i] = singles.open();
  });
}

}  // extern "C"

#pragma GCC visibility pop
