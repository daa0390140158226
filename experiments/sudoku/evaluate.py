"""How many puzzles a trained network solves, by givens and by difficulty: a table and a picture."""

from __future__ import annotations

import gzip
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from flax import nnx

from experiments._runs import shown
from experiments.sudoku.config import EvaluateConfig
from experiments.sudoku.data import make_data, read
from experiments.sudoku.measure import Measurement, measure
from experiments.sudoku.solve import DEFAULT_RUN, load_run
from jaxgnn._errors import bad_input
from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.pretrained import load_weights, sudoku_weights
from jaxgnn.training._files import write_json

_TEST_STEPS = 64
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


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
      kind: kind of the puzzles.
      level: their number of givens, or what it takes to solve them.
      count: number of puzzles.
      solved: part of which the answer behind the last step is the solution.
      ever_solved: part of which that of some step is.
      cells: part of the blank cells that is right.
      settled: median of the first step from which on the answer is the solution, of those solved;
        None if none is.
    """

    kind: str
    level: str
    count: int
    solved: float
    ever_solved: float
    cells: float
    settled: float | None


def evaluate(config: EvaluateConfig) -> list[Row]:
    """Measures a network, prints a table, and writes it and a picture.

    Raises:
      ValueError: if an option, a run or a file is at fault.
      FileNotFoundError: if there is no such file.
    """
    model, steps, folder = _network(config)
    kinds = _puzzles(config)
    rows = []
    for kind, puzzles in kinds.items():
        found = measure(model, puzzles, steps, config.batch_size)
        rows.append(_row(kind, "all", found, np.ones(len(puzzles), bool)))
        by_givens = {f"{g} givens": puzzles.givens == g for g in np.unique(puzzles.givens)}
        for level, chosen in (by_givens | _by_difficulty(puzzles)).items():
            rows.append(_row(kind, level, found, chosen))
    _print_table(rows, steps)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "evaluation.json", {"steps": steps, "rows": [asdict(row) for row in rows]})
    picture = folder / "evaluation.png"
    draw_rows(rows, steps, picture)
    print(f"table: {shown(folder / 'evaluation.json')}, picture: {shown(picture)}")
    return rows


def _network(config: EvaluateConfig) -> tuple[nnx.Module, int, Path]:
    """The network, its steps, and where to write."""
    if config.weights is not None and config.run is not None:
        raise bad_input("evaluate", "--weights", "left out where --run is given", config.weights)
    for option, value in (("--steps", config.steps), ("--batch-size", config.batch_size)):
        if value is not None and value < 1:
            raise bad_input("evaluate", option, "at least 1", value)
    run = config.run
    if run is None and config.weights is None and DEFAULT_RUN.exists():
        run = DEFAULT_RUN
    if run is not None:
        model, settings = load_run(run)
        return model, config.steps or settings.test_steps, config.out or run
    weights = config.weights or sudoku_weights()
    return load_weights(weights), config.steps or _TEST_STEPS, config.out or Path("runs/sudoku")


def _puzzles(config: EvaluateConfig) -> dict[str, Puzzles]:
    if config.puzzles is not None:
        return {config.puzzles.name: read_puzzles(config.puzzles)}
    folder = config.data
    data = make_data(1, config.test, config.seed) if folder is None else read(folder)
    return {"minimal": data.minimal, "mixed": data.mixed}


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


def _by_difficulty(puzzles: Puzzles) -> dict[str, np.ndarray]:
    """Which puzzles take what: singles, no guess, or so many."""
    rating = sudoku.difficulty(puzzles.puzzles)
    singles = rating.open == 0
    levels = {"singles": singles}
    for name, (low, high) in _GUESSES.items():
        levels[name] = ~singles & (rating.guesses >= low) & (rating.guesses <= high)
    return {name: chosen for name, chosen in levels.items() if chosen.any()}


def _row(kind: str, level: str, found: Measurement, chosen: np.ndarray) -> Row:
    found = found[chosen]
    settled = found.settled[found.solved]
    return Row(
        kind=kind,
        level=level,
        count=len(found.solved),
        solved=found.solved_part,
        ever_solved=found.ever_solved_part,
        cells=found.cells,
        settled=float(np.median(settled)) if settled.size else None,
    )


def _print_table(rows: list[Row], steps: int) -> None:
    print(f"behind {steps} steps, per cent; settled: median step")
    columns = f"{'puzzles':>9}  {'solved':>7}  {'at any step':>11}  {'cells':>7}  {'settled':>7}"
    kind = None
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            print(f"\n{kind:<16}{columns}")
        settled = "-" if row.settled is None else f"{row.settled:.0f}"
        print(
            f"{row.level:<16}{row.count:>9,}  {100 * row.solved:7.2f}  "
            f"{100 * row.ever_solved:11.2f}  {100 * row.cells:7.2f}  {settled:>7}"
        )


def draw_rows(rows: list[Row], steps: int, path: Path) -> None:
    """Draws parts solved by givens and by difficulty, and writes a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, kind in enumerate(dict.fromkeys(row.kind for row in rows)):
        own = [row for row in rows if row.kind == kind]
        givens = [row for row in own if row.level.endswith("givens")]
        others = [row for row in own if row.level in _DIFFICULTIES]
        options = {"label": kind, "color": f"C{index}", "marker": "o", "markersize": 3}
        numbers = [int(row.level.split()[0]) for row in givens]
        left.plot(numbers, [100 * row.solved for row in givens], **options)
        places = [_DIFFICULTIES.index(row.level) for row in others]
        right.plot(places, [100 * row.solved for row in others], **options)
    left.set_xlabel("givens")
    left.set_ylabel(f"% of puzzles solved at {steps} steps")
    right.set_xlabel("what it takes")
    names = [name.replace(" ", "\n") for name in _DIFFICULTIES]
    right.set_xticks(range(len(names)), names, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize="small")
    figure.savefig(path, format="png")
