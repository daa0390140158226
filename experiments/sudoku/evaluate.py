"""Evaluation of a trained network by givens and difficulty: a table and a picture."""

from __future__ import annotations

import gzip
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from experiments._runs import shown
from experiments._seeds import summarize
from experiments.sudoku.chosen import Chosen, chosen_network
from experiments.sudoku.config import EvaluateConfig
from experiments.sudoku.data import make_held_out, read
from experiments.sudoku.outcome import DIFFICULTIES, Others, Outcome, Row, by_line, mean_row
from experiments.sudoku.progress import Counts
from jaxgnn.datasets import sudoku
from jaxgnn.datasets.formats.file_errors import naming, require_file
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.pretrained import solve_sudokus
from jaxgnn.training import Table, phase
from jaxgnn.training.files import write_json

# Number of puzzles of a file that are listed individually.
_LISTED = 10


def evaluate(config: EvaluateConfig) -> list[Row]:
    """Measures a network, prints a table, and writes it and a picture.

    A puzzle counts as solved if the answer has its givens and every digit once in each row, column
    and box, and is the solution that an exact search finds.

    Returns:
      The rows of the table; for several seeds the means.

    Raises:
      ValueError: if an option, a run or a file is invalid.
      FileNotFoundError: if there is no such file.
    """
    config.check()
    with phase("reading the network", progress=config.progress):
        chosen = chosen_network("evaluate", config.run, config.weights)
    print(f"network: {chosen.name}")
    outcomes = [_outcomes(config, chosen, seed) for seed in config.seeds]
    if config.puzzles is not None and len(outcomes[0][0].puzzles) <= _LISTED:
        print(_listed([of_seed[0] for of_seed in outcomes]).text())
    by_seed = [[row for o in of_seed for row in o.rows()] for of_seed in outcomes]
    rows = [mean_row(same) for same in by_line(by_seed)]
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


def _outcomes(config: EvaluateConfig, chosen: Chosen, seed: int) -> list[Outcome]:
    """The outcomes of each kind of puzzles, for one seed."""
    outcomes = []
    for kind, puzzles in _puzzles(config, seed).items():
        with phase(f"solving {len(puzzles):,} by search, {kind}", progress=config.progress):
            others = Others(puzzles)
        count = Counts(f"{kind}, compiling and solving", len(puzzles), progress=config.progress)
        found = solve_sudokus(
            chosen.model,
            puzzles.puzzles,
            config.effort(seed),
            batch_size=config.batch_size,
            progress=count,
        )
        outcomes.append(Outcome(kind, puzzles, found, others))
    return outcomes


def _listed(outcomes: list[Outcome]) -> Table:
    """A row for each puzzle, with its outcomes over all seeds."""
    rows = []
    for place, puzzle in enumerate(outcomes[0].puzzles.puzzles):
        steps = [int(o.found.steps[place]) for o in outcomes if o.solved[place]]
        restarts = [int(o.found.restarts[place]) for o in outcomes]
        rows.append(
            (
                sudoku.to_line(puzzle),
                f"{len(steps)} of {len(outcomes)}",
                f"{np.median(steps):.0f}" if steps else "–",
                f"{np.mean(restarts):.1f}",
            )
        )
    columns = ("puzzle", "solved, seeds", "median step", "restarts, mean")
    return Table(outcomes[0].kind, columns, tuple(rows))


def _as_json(row: Row) -> dict:
    return {k: None if v != v else v for k, v in asdict(row).items()}


def _table(rows: list[Row], config: EvaluateConfig) -> Table:
    seeds = len(config.seeds)
    seconds = seeds * sum(row.seconds for row in rows if row.level == "all")
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
        "places of digits, filled in as long as there are any. Search: the library's exact solver. "
        f"The network's steps took {seconds:.1f} s."
    )
    return Table("Solved puzzles", columns, lines, note)


def _seeds_table(by_seed: list[list[Row]]) -> Table:
    """Mean and deviation over the seeds, for each kind as a whole."""
    rows = []
    for same in by_line(by_seed):
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
    """Reads a published file with the reader that fits its first line.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file and an invalid line.
    """
    require_file(file, "lines of puzzles")
    return _reader(file)(file)


def _reader(file: Path):
    opened = gzip.open if file.suffix == ".gz" else open
    with naming(file, "lines of puzzles"), opened(file, "rb") as lines:
        first = lines.readline(1000)
    if first.startswith(b"quizzes"):
        return sudoku.read_kaggle
    return sudoku.read_palm if b"," in first else sudoku.read_lines


def draw_rows(rows: list[Row], network: str, seeds: int, path: Path) -> None:
    """Draws the solved shares by givens and by difficulty, and writes a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    count = sum(row.count for row in rows if row.level == "all")
    what = f"{count:,} puzzles, {seeds} seed{'s' if seeds > 1 else ''}"
    figure.suptitle(f"{network}: {what}")
    left, right = figure.subplots(1, 2, sharey=True)
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for index, kind in enumerate(kinds):
        own = [row for row in rows if row.kind == kind]
        givens = [row for row in own if row.level.endswith("givens")]
        others = [row for row in own if row.level in DIFFICULTIES]
        numbers = [int(row.level.split()[0]) for row in givens]
        places = [DIFFICULTIES.index(row.level) for row in others]
        for name, label, style in (
            ("solved", "all attempts", "-"),
            ("first", "one attempt", "--"),
            ("singles", "singles alone", ":"),
        ):
            options = {"label": f"{kind}, {label}", "color": f"C{index}", "linestyle": style}
            # Each kind's lines are wider than those drawn over them.
            wider = len(kinds) - 1 - index
            options |= {"marker": "o", "markersize": 3 + 3 * wider, "linewidth": 1.5 + 2 * wider}
            left.plot(numbers, [100 * getattr(row, name) for row in givens], **options)
            right.plot(places, [100 * getattr(row, name) for row in others], **options)
    left.set_xlabel("givens")
    left.set_ylabel("puzzles solved (%)")
    right.set_xlabel("what it takes")
    names = [name.replace(" ", "\n") for name in DIFFICULTIES]
    right.set_xticks(range(len(names)), names, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, format="png")
