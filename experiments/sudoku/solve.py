"""Solution of one puzzle by a trained network; export of a run's weights to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments._runs import shown
from experiments.sudoku.chosen import PATHS, chosen_network, load_run
from experiments.sudoku.config import ExportConfig, SolveConfig
from experiments.sudoku.networks import network_options
from jaxgnn._errors import bad_input, require_regular_file
from jaxgnn._sudoku import board_of
from jaxgnn.datasets.sudoku.solving import unique_solution
from jaxgnn.pretrained import SudokuAnswer, SudokuSolver, load_weights, save_weights
from jaxgnn.training.files import format_row, parse_json, read_json, read_steps

# Name of the log of a run's initial weights, in its folder.
EARLIER_LOG = "earlier.jsonl"
# Interval of rows in the exported log, besides those of evaluations.
_LOG_EVERY = 100


def solve(config: SolveConfig) -> SudokuAnswer:
    """Prints the network's answer to a puzzle and the network's name, and returns the answer.

    Raises:
      ValueError: if the puzzle is invalid, or has not exactly one solution.
    """
    effort = config.effort()
    board = board_of("solve", "puzzle", config.puzzle)
    unique_solution("solve", "puzzle", board)
    chosen = chosen_network("solve", config.run, config.weights)
    answer = SudokuSolver(chosen.model).solve(board, effort)
    print(answer)
    print(f"network: {chosen.name}")
    return answer


def export(config: ExportConfig) -> Path:
    """Writes the weights of a run, and beside them its log as ``<name>_training.jsonl``.

    The log begins with a line about the run: its options, versions and devices, and results.
    The log of its initial weights follows, if there is one.

    Returns:
      The file of weights.
    """
    model, settings = load_run(config.run, "export")
    out = config.run / "weights.npz" if config.out is None else config.out
    if out.suffix != ".npz":
        raise bad_input("export", "--out", "a file with the ending .npz", out)
    out.parent.mkdir(parents=True, exist_ok=True)
    # The dtype of the computation is chosen when the weights are loaded.
    save_weights(out, model, network_options(settings))
    load_weights(out)
    metrics = config.run / "metrics.jsonl"
    rows = read_steps(metrics)
    if not rows:
        raise ValueError(f"export: {metrics} has no rows")
    usual, last = min(map(len, rows)), rows[-1]["step"]
    kept = [
        row
        for row in rows
        if len(row) > usual or row["step"] % _LOG_EVERY == 0 or row["step"] in (1, last)
    ]
    lines = [json.dumps(_about(config.run)) + "\n", *map(format_row, kept)]
    log = log_of(out)
    log.write_text("".join(lines))
    print(f"{shown(out)}: {out.stat().st_size / 1e3:,.0f} kB, trained for {last:,.0f} steps")
    print(f"{shown(log)}: {len(lines):,} lines")
    return out


def log_of(weights: Path) -> Path:
    """Path of the log of a file of weights."""
    return weights.with_name(f"{weights.stem}_training.jsonl")


def _about(run: Path) -> dict[str, Any]:
    """Contents of the run's small files, by name, as far as they exist."""
    names = ("config", "budget", "result", "evaluation", "versions")
    files = {name: run / f"{name}.json" for name in names}
    # Versions are a list, one for each start.
    found: dict[str, Any] = {
        name: read_json(file, list if name == "versions" else dict, "what a run has written there")
        for name, file in files.items()
        if file.exists()
    }
    for name in PATHS:  # their locations are irrelevant
        found["config"].pop(name, None)
    if (run / EARLIER_LOG).exists():
        require_regular_file(run / EARLIER_LOG, "the rows of an earlier run")
        lines = (run / EARLIER_LOG).read_text(encoding="utf-8").splitlines()
        found["earlier"] = [
            parse_json(line, f"{run / EARLIER_LOG}, line {number}", dict, "an object")
            for number, line in enumerate(lines, start=1)
        ]
    return found
