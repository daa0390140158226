// How far naked and hidden singles alone solve a 9x9 Sudoku: the measure of an easy puzzle.
#pragma once

#include <cstdint>

namespace jaxgnn {
namespace sudoku {

// Cells by row, column and box.
struct Units {
  int cells[27][9];

  Units() {
    for (int i = 0; i < 9; ++i) {
      for (int j = 0; j < 9; ++j) {
        cells[i][j] = 9 * i + j;
        cells[9 + i][j] = 9 * j + i;
        cells[18 + i][j] = 9 * (3 * (i / 3) + j / 3) + 3 * (i % 3) + j % 3;
      }
    }
  }
  static const Units& Get() {
    static const Units units;
    return units;
  }
};

class Singles {
 public:
  explicit Singles(const int8_t* numbers) {
    for (int cell = 0; cell < 81; ++cell) {
      digits_[cell] = 511;
      found_[cell] = static_cast<uint16_t>(numbers[cell] > 0 ? 1 << (numbers[cell] - 1) : 0);
    }
    PlaceFound();
  }

  // Fills at once all cells that have one candidate, or the only place of a digit in some unit, and
  // does so again until there are none. Returns how often there were some.
  int Fill() {
    for (int rounds = 0;; ++rounds) {
      if (!Find()) return rounds;
      PlaceFound();
    }
  }
  int open() const { return open_; }

 private:
  bool Find() {
    bool any = false;
    for (int cell = 0; cell < 81; ++cell) {
      const uint16_t digits = digits_[cell];
      found_[cell] = (digits & (digits - 1)) == 0 ? digits : 0;
      any |= found_[cell] != 0;
    }
    for (const auto& unit : Units::Get().cells) {
      uint16_t once = 0, twice = 0;
      for (int cell : unit) {
        twice |= once & digits_[cell];
        once |= digits_[cell];
      }
      for (int cell : unit) {
        const uint16_t single = digits_[cell] & once & ~twice;
        if (single != 0) found_[cell] = single & -single;  // two in one cell are a contradiction
        any |= single != 0;
      }
    }
    return any;
  }

  // A filled cell has no candidates left.
  void PlaceFound() {
    for (const auto& unit : Units::Get().cells) {
      uint16_t placed = 0;
      for (int cell : unit) placed |= found_[cell];
      for (int cell : unit) digits_[cell] &= ~placed;
    }
    for (int cell = 0; cell < 81; ++cell) {
      if (found_[cell] == 0) continue;
      digits_[cell] = found_[cell] = 0;
      --open_;
    }
  }

  uint16_t digits_[81];
  uint16_t found_[81];
  int open_ = 81;
};

}  // namespace sudoku
}  // namespace jaxgnn
