"""Command-line options of the Sudoku experiments."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from experiments.sudoku.recipes import Name, Recipe, recipe
from jaxgnn._errors import bad_input


@dataclass(frozen=True)
class GenerateConfig:
    """Options of making puzzles.

    Attributes:
      train: minimal puzzles to train on.
      test: puzzles of each level to hold out: 22, 23 and 24 givens, minimal, and 20 to 34 givens.
      seed: of all of them.
      threads: how many work on it; left out, all there are.
      out: folder for ``train.csv``, ``minimal.csv`` and ``mixed.csv``.
    """

    train: int = 100_000
    test: int = 200
    seed: int = 0
    threads: int | None = None
    out: Path = Path("runs/sudoku/data")


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run; those left out come from the recipe.

    Attributes:
      recipe: name of a set of hyper-parameters in ``experiments/sudoku/recipes.py``.
      data: folder that ``generate`` has written; left out, puzzles are made at the start.
      test: held-out puzzles of each level, where they are made.
      initial: a file of weights to begin with, as ``export`` writes it; their log is kept.
      features: width of the model.
      num_steps: number of steps of message passing in training.
      test_steps: number of steps of message passing in evaluation.
      warm_up: most steps in front of those of training, without gradients.
      batch_size: number of puzzles in a step.
      learning_rate: the highest.
      puzzles: to train on, where they are made.
      hard: exponent with which hard puzzles are drawn more often.
      fewest: lower bound of the givens that the curriculum ends with.
      curriculum: part of the training in which the lower bound falls.
      ema_decay: decay of the moving average of parameters.
      recompute_every: steps between stored states; 0 keeps all.
      dtype: dtype of the computation; parameters are float32.
      steps: number of steps of the optimiser.
      minutes: in the place of steps, time that these shall take, without compilation, evaluations
        and checkpoints: some steps are timed, and how many fit is kept in ``budget.json`` for
        when the run goes on.
      stop_after: minutes after which this call stops, with a checkpoint from which the same command
        goes on.
      checkpoint_minutes: between checkpoints, about.
      evaluations: during training.
      eval_puzzles: held-out ones that each of these looks at, of each kind.
      implementation: implementation of the ops; left out, the fastest.
      seed: seed of parameters, batches and puzzles.
      run: folder of the run; left out, a name made from the recipe below runs/sudoku.
      fresh: discard what the run folder holds, rather than resume from it.
      progress: show a progress bar.
    """

    recipe: Name = "tiny"
    data: Path | None = None
    test: int = 20
    initial: Path | None = None
    features: int | None = None
    num_steps: int | None = None
    test_steps: int | None = None
    warm_up: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    puzzles: int | None = None
    hard: float | None = None
    fewest: int | None = None
    curriculum: float | None = None
    ema_decay: float | None = None
    recompute_every: int | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    steps: int | None = None
    minutes: float | None = None
    stop_after: float | None = None
    checkpoint_minutes: float = 2.0
    evaluations: int = 4
    eval_puzzles: int = 300
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: int = 0
    run: Path | None = None
    fresh: bool = False
    progress: bool = True

    def settings(self) -> Recipe:
        """The recipe with the options that were given.

        Raises:
          ValueError: naming an option that is at fault.
        """
        given = {
            field.name: getattr(self, field.name)
            for field in fields(Recipe)
            if getattr(self, field.name, None) is not None
        }
        if self.recompute_every == 0:
            given["recompute_every"] = None
        settings = replace(recipe(self.recipe), **given)
        lowest = {"test_steps": 1, "warm_up": 0, "batch_size": 1, "puzzles": 1, "steps": 1}
        for name, bound in lowest.items():
            _require_at_least(name, bound, getattr(settings, name))
        if settings.hard < 1:
            raise bad_input("train", "--hard", "at least 1", settings.hard)
        if not 0 <= settings.curriculum <= 1:
            raise bad_input("train", "--curriculum", "from 0 to 1", settings.curriculum)
        if settings.warm_up and settings.network == "gated":
            raise bad_input("train", "--warm-up", "0 for this recipe", settings.warm_up)
        return settings

    def check(self) -> None:
        """Raises for invalid options that neither the model nor the loop would find.

        Raises:
          ValueError: naming the option.
        """
        self.settings()
        if self.steps is not None and self.minutes is not None:
            raise bad_input("train", "--minutes", "left out where --steps is given", self.minutes)
        for name in ("minutes", "stop_after", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise bad_input("train", _option(name), "positive", value)
        for name in ("test", "evaluations", "eval_puzzles"):
            _require_at_least(name, 1, getattr(self, name))

    def run_folder(self) -> Path:
        """Folder of the run."""
        return Path("runs") / "sudoku" / self.recipe if self.run is None else self.run


@dataclass(frozen=True)
class EvaluateConfig:
    """Options of measuring a trained network.

    Attributes:
      run: folder of its run; left out together with ``weights``, runs/sudoku/tiny.
      weights: a file of weights in the place of a run, as ``export`` writes it.
      data: folder that ``generate`` has written; left out, puzzles are made.
      puzzles: a file of puzzles in the place of these: lines of 81 characters, or with
        solutions as ``read_palm`` or ``read_kaggle`` read them.
      test: puzzles of each level, where they are made.
      steps: number of steps of message passing; left out, the number of the recipe.
      batch_size: number of puzzles at a time.
      seed: of the puzzles that are made.
      out: folder for the table and the picture; left out, that of the run.
    """

    run: Path | None = None
    weights: Path | None = None
    data: Path | None = None
    puzzles: Path | None = None
    test: int = 20
    steps: int | None = None
    batch_size: int = 256
    seed: int = 0
    out: Path | None = None


@dataclass(frozen=True)
class SolveConfig:
    """Options of solving one puzzle.

    Attributes:
      puzzle: 81 cells, row by row, with '.' or 0 where empty; or the name of a file with them.
      run: folder of a trained network's run.
      weights: a file of weights; left out together with ``run``, those that come with the library,
        or those of runs/sudoku/tiny where there are none.
      steps: number of steps of message passing.
    """

    puzzle: str
    run: Path | None = None
    weights: Path | None = None
    steps: int = 64


@dataclass(frozen=True)
class ExportConfig:
    """Options of writing the weights of a run into one file, beside its log.

    Attributes:
      run: folder of the run.
      out: the file, with the ending .npz; left out, ``weights.npz`` in the folder of the run.
        ``jaxgnn/pretrained/sudoku.npz`` is the one that comes with the library.
    """

    run: Path
    out: Path | None = None


@dataclass(frozen=True)
class CostConfig:
    """Options of measuring memory and time of a training step.

    Attributes:
      recipe: name of the recipe to measure.
      steps: number of steps of message passing.
      batches: puzzles in a step.
      features: width of the state; left out, that of the recipe.
      dtype: dtype of the computation; left out, that of the recipe.
      repeats: number of timed steps.
      out: folder for the table as JSON.
    """

    recipe: Name = "tiny"
    steps: tuple[int, ...] = (16, 32, 64)
    batches: tuple[int, ...] = (8, 16, 32)
    features: int | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    repeats: int = 3
    out: Path = Path("runs/sudoku")


def _require_at_least(name: str, lowest: int, value: int) -> None:
    if value < lowest:
        raise bad_input("train", _option(name), f"at least {lowest}", value)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
