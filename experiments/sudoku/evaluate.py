"""How many puzzles a trained network solves, by givens and by difficulty: a table and a picture."""

from __future__ import annotations

import gzip
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments._runs import shown
from experiments._seeds import summarize
from experiments.sudoku.chosen import Chosen, chosen_network
from experiments.sudoku.config import EvaluateConfig
from experiments.sudoku.data import make_held_out, read
from experiments.sudoku.progress import Counts
from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.pretrained import SudokuEffort, SudokuSolutions, solve_sudokus
from jaxgnn.training import Table, phase
from jaxgnn.training._files import write_json

# What it takes to solve a puzzle: guesses of a search from and to; those that need none are told
# apart by whether singles suffice.
_GUESSES = {
    "no guess": (0, 0),
    "1-2 guesses": (1, 2),
    "3-5 guesses": (3, 5),
    "6-10 guesses": (6, 10),
    "11+ guesses": (11, 10**9),
}
_DIFFICULTIES = ("singles", *_GUESSES)
# Puzzles of a file that are listed one by one.
_LISTED = 10


@dataclass(frozen=True)
class Row:
    """A line of the table: one kind and level of puzzles.

    Parts are of all puzzles of the line, from 0 to 1.

    Attributes:
      kind: kind of the puzzles.
      level: their number of givens, or what it takes to solve them.
      count: number of puzzles.
      singles: part that is solved by filling in cells with one candidate and only places of digits.
      search: part of which an exact search finds the solution and that there is no other.
      first: part that the first attempt of the network solves.
      solved: part that some attempt of the network solves.
      cells: part of the blank cells that is right in the end.
      steps: median step of its attempt after which a solved puzzle was solved; NaN if none is.
      restarts: mean number of new attempts.
      most_restarts: the largest number of new attempts at a puzzle.
      seconds: for all puzzles of the kind, steps of the network without compilation.
    """

    kind: str
    level: str
    count: int
    singles: float
    search: float
    first: float
    solved: float
    cells: float
    steps: float
    restarts: float
    most_restarts: int
    seconds: float


def evaluate(config: EvaluateConfig) -> list[Row]:
    """Measures a network, prints a table, and writes it and a picture.

    A puzzle counts as solved if the answer has its givens and every digit once in each row, column
    and box, and is the solution that an exact search finds.

    Returns:
      The rows of the table; of several seeds the means.

    Raises:
      ValueError: if an option, a run or a file is at fault.
      FileNotFoundError: if there is no such file.
    """
    config.check()
    with phase("reading the network", progress=config.progress):
        chosen = chosen_network("evaluate", config.run, config.weights)
    print(f"network: {chosen.name}")
    by_seed = [_rows(config, chosen, seed) for seed in config.seeds]
    rows = [_mean(same) for same in _by_line(by_seed)]
    print(_table(rows, config).text())
    if len(config.seeds) > 1:
        print(_seeds_table(by_seed).text())
    folder = config.out or chosen.run or Path("runs/sudoku")
    folder.mkdir(parents=True, exist_ok=True)
    effort = {name: getattr(config, name) for name in ("steps", "attempt_steps", "attempts")}
    result = {
        "network": chosen.name,
        **effort,
        "seeds": list(config.seeds),
        "rows": [_as_json(row) for row in rows],
        "rows_by_seed": [[_as_json(row) for row in rows] for rows in by_seed],
    }
    write_json(folder / "evaluation.json", result)
    picture = folder / "evaluation.png"
    draw_rows(rows, chosen.name, len(config.seeds), picture)
    print(f"table: {shown(folder / 'evaluation.json')}, picture: {shown(picture)}")
    return rows


def _rows(config: EvaluateConfig, chosen: Chosen, seed: int) -> list[Row]:
    rows = []
    for kind, puzzles in _puzzles(config, seed).items():
        with phase(f"solving {len(puzzles):,} by search, {kind}", progress=config.progress):
            others = _Others(puzzles)
        count = Counts(f"{kind}, compiling and solving", len(puzzles), progress=config.progress)
        effort = config.effort(seed)
        found = solve_sudokus(
            chosen.model, puzzles.puzzles, effort, batch_size=config.batch_size, progress=count
        )
        outcome = _Outcome(puzzles, found, others)
        if config.puzzles is not None and len(puzzles) <= _LISTED:
            print(outcome.listed(kind, effort).text())
        rows.append(outcome.row(kind, "all", np.ones(len(puzzles), bool)))
        by_givens = {f"{g} givens": puzzles.givens == g for g in np.unique(puzzles.givens)}
        for level, chosen_ones in (by_givens | others.by_difficulty()).items():
            rows.append(outcome.row(kind, level, chosen_ones))
    return rows


class _Others:
    """What the trivial baseline and the exact search, the ceiling, make of the same puzzles."""

    def __init__(self, puzzles: Puzzles):
        self.rating = sudoku.difficulty(puzzles.puzzles)
        self.singles = self.rating.open == 0
        found, solutions = sudoku.solve(puzzles.puzzles)
        self.solutions = solutions[:, 0]
        self.search = found == 1

    def by_difficulty(self) -> dict[str, np.ndarray]:
        """Which puzzles take what: singles, no guess, or so many; without levels of none."""
        levels = {"singles": self.singles}
        for name, (low, high) in _GUESSES.items():
            guesses = self.rating.guesses
            levels[name] = ~self.singles & (guesses >= low) & (guesses <= high)
        return {name: chosen for name, chosen in levels.items() if chosen.any()}


class _Outcome:
    """The network's answers to puzzles, checked against the exact search."""

    def __init__(self, puzzles: Puzzles, found: SudokuSolutions, others: _Others):
        self._puzzles, self._found, self._others = puzzles, found, others
        # Of a puzzle with several solutions any of them counts.
        agrees = (found.digits == others.solutions).all(axis=1) | ~others.search
        kept = ((puzzles.puzzles == 0) | (puzzles.puzzles == found.digits)).all(axis=1)
        without_conflict = [not sudoku.conflicts(board) for board in found.digits]
        full = (found.digits > 0).all(axis=1)
        self.solved = found.solved & agrees & kept & full & np.array(without_conflict, bool)

    def row(self, kind: str, level: str, chosen: np.ndarray) -> Row:
        """The line of the puzzles that are chosen, [count] bool."""
        found, puzzles = self._found, self._puzzles[chosen]
        solved, steps = self.solved[chosen], found.steps[chosen]
        restarts = found.restarts[chosen]
        blank = puzzles.puzzles == 0
        right = (found.digits[chosen] == puzzles.solutions) & blank
        return Row(
            kind=kind,
            level=level,
            count=len(puzzles),
            singles=float(self._others.singles[chosen].mean()),
            search=float(self._others.search[chosen].mean()),
            first=float((solved & (restarts == 0)).mean()),
            solved=float(solved.mean()),
            cells=float(right.sum() / max(1, blank.sum())),
            steps=float(np.median(steps[solved])) if solved.any() else math.nan,
            restarts=float(restarts.mean()),
            most_restarts=int(restarts.max()),
            seconds=found.seconds,
        )

    def listed(self, kind: str, effort: SudokuEffort) -> Table:
        """Each puzzle by itself."""
        found = self._found
        rows = tuple(
            (sudoku.to_line(puzzle), int(step) if solved else "not solved", int(restarts))
            for puzzle, solved, step, restarts in zip(
                self._puzzles.puzzles, self.solved, found.steps, found.restarts, strict=True
            )
        )
        title = f"{kind}, seed {effort.seed}"
        return Table(title, ("puzzle", "solved at step", "restarts"), rows)


def _by_line(by_seed: list[list[Row]]) -> list[list[Row]]:
    """The rows of each line of the table, one for each seed that has such puzzles."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in (row for rows in by_seed for row in rows):
        lines.setdefault((row.kind, row.level), []).append(row)
    return list(lines.values())


def _mean(rows: list[Row]) -> Row:
    """One row in the place of those of several seeds; other puzzles may make other counts."""
    numbers = [field.name for field in fields(Row) if field.type == "float"]
    means: dict[str, Any] = {
        name: float(np.mean([getattr(row, name) for row in rows])) for name in numbers
    }
    most = max(row.most_restarts for row in rows)
    return replace(rows[0], **means, count=sum(row.count for row in rows), most_restarts=most)


def _as_json(row: Row) -> dict:
    return {k: None if v != v else v for k, v in asdict(row).items()}


def _table(rows: list[Row], config: EvaluateConfig) -> Table:
    seeds = len(config.seeds)
    columns = (
        "puzzles",
        "level",
        "count",
        "singles %",
        "one attempt %",
        "solved %",
        "search %",
        "cells %",
        "median step",
        "restarts, mean",
        "most",
    )
    lines = tuple(
        (
            row.kind,
            row.level,
            row.count,
            *(f"{100 * part:.2f}" for part in (row.singles, row.first, row.solved, row.search)),
            f"{100 * row.cells:.2f}",
            "–" if math.isnan(row.steps) else f"{row.steps:.0f}",
            f"{row.restarts:.2f}",
            row.most_restarts,
        )
        for row in rows
    )
    note = (
        f"Up to {config.attempt_steps} steps an attempt, {config.steps:,} for a puzzle in all; "
        f"{seeds} seed{'s' if seeds > 1 else ''}. Singles: cells with one candidate and only "
        "places of digits, filled in as long as there are any. Search: the library's exact solver."
    )
    return Table("Solved puzzles", columns, lines, note)


def _seeds_table(by_seed: list[list[Row]]) -> Table:
    """Mean and deviation over the seeds, of each kind as a whole."""
    rows = []
    for same in _by_line(by_seed):
        if same[0].level == "all":
            parts = {name: [100 * getattr(row, name) for row in same] for name in _OVER_SEEDS}
            rows.append((same[0].kind, *(str(summarize(values)) for values in parts.values())))
    columns = ("puzzles", *(f"{label} %" for label in _OVER_SEEDS.values()))
    return Table("Over the seeds: mean ± deviation (number)", columns, tuple(rows))


_OVER_SEEDS = {"singles": "singles", "first": "one attempt", "solved": "solved"}


def _puzzles(config: EvaluateConfig, seed: int) -> dict[str, Puzzles]:
    if config.puzzles is not None:
        with phase(f"reading {config.puzzles}", progress=config.progress):
            return {config.puzzles.name: read_puzzles(config.puzzles)}
    if config.data is not None:
        with phase(f"reading {config.data}", progress=config.progress):
            data = read(config.data)
        return {"minimal": data.minimal, "mixed": data.mixed}
    minimal, mixed = make_held_out(config.test, seed, progress=config.progress)
    return {"minimal": minimal, "mixed": mixed}


def read_puzzles(file: Path) -> Puzzles:
    """Reads a published file by whatever reader its first line is for.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file and a line that is not right.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}: expected lines of puzzles")
    return _reader(file)(file)


def _reader(file: Path):
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rb") as lines:
        first = lines.readline(1000)
    if first.startswith(b"quizzes"):
        return sudoku.read_kaggle
    return sudoku.read_palm if b"," in first else sudoku.read_lines


def draw_rows(rows: list[Row], network: str, seeds: int, path: Path) -> None:
    """Draws parts solved by givens and by difficulty, and writes a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    figure.suptitle(f"Puzzles solved by {network}, {seeds} seed{'s' if seeds > 1 else ''}")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, kind in enumerate(dict.fromkeys(row.kind for row in rows)):
        own = [row for row in rows if row.kind == kind]
        givens = [row for row in own if row.level.endswith("givens")]
        others = [row for row in own if row.level in _DIFFICULTIES]
        numbers = [int(row.level.split()[0]) for row in givens]
        places = [_DIFFICULTIES.index(row.level) for row in others]
        for name, label, style in (
            ("solved", "all attempts", "-"),
            ("first", "one attempt", "--"),
            ("singles", "singles alone", ":"),
        ):
            options = {"label": f"{kind}, {label}", "color": f"C{index}", "linestyle": style}
            options |= {"marker": "o", "markersize": 3}
            left.plot(numbers, [100 * getattr(row, name) for row in givens], **options)
            right.plot(places, [100 * getattr(row, name) for row in others], **options)
    left.set_xlabel("givens")
    left.set_ylabel("puzzles solved (%)")
    right.set_xlabel("what it takes")
    names = [name.replace(" ", "\n") for name in _DIFFICULTIES]
    right.set_xticks(range(len(names)), names, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, format="png")
