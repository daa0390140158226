"""Command-line options of the Sudoku experiments."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from experiments._options import BatchDevices, Reporting, ReportOptions
from experiments._seeds import check_seeds
from experiments.sudoku.recipes import Name, Recipe, recipe
from jaxgnn._errors import bad_input
from jaxgnn._sudoku import SudokuEffort

# Minimum of each numeric option of a recipe.
_LEAST = {
    "features": 1,
    "num_steps": 1,
    "test_steps": 1,
    "warm_up": 0,
    "batch_size": 1,
    "puzzles": 1,
    "hard": 1,
    "fewest": 0,
    "steps": 1,
}


@dataclass(frozen=True)
class GenerateConfig:
    """Options of generating puzzles.

    Attributes:
      train: number of minimal puzzles to train on.
      test: number of held-out puzzles of each level: 22, 23 and 24 givens, minimal, and 20 to 34
        givens.
      seed: seed of all puzzles.
      threads: number of threads; by default all.
      out: folder for ``train.csv``, ``minimal.csv`` and ``mixed.csv``.
      progress: show progress on stderr.
    """

    train: int = 100_000
    test: int = 200
    seed: int = 0
    threads: int | None = None
    out: Path = Path("runs/sudoku/data")
    progress: bool = True

    def check(self) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the option.
        """
        for name, least in {"train": 1, "test": 1, "seed": 0}.items():
            require_at_least("generate", name, least, getattr(self, name))
        if self.threads is not None:
            require_at_least("generate", "threads", 1, self.threads)


@dataclass(frozen=True)
class TrainConfig(BatchDevices):
    """Options of one training run, by default those of the recipe.

    Attributes:
      recipe: name of a set of hyper-parameters in ``experiments/sudoku/recipes.py``.
      data: folder that ``generate`` has written; by default puzzles are generated at the start.
      test: number of held-out puzzles of each level, where they are generated.
      initial: file of weights to start from, as ``export`` writes it; their log is kept.
      features: width of the model.
      num_steps: number of steps of message passing in training.
      test_steps: number of steps of message passing in evaluation.
      warm_up: largest number of steps before those of training, without gradients.
      batch_size: number of puzzles in a step.
      learning_rate: the highest learning rate.
      puzzles: number of puzzles to train on, where they are generated.
      hard: exponent by which hard puzzles are drawn more often.
      fewest: lower bound of the givens at the end of the curriculum.
      curriculum: part of the training in which the lower bound falls.
      ema_decay: decay of the moving average of parameters.
      recompute_every: steps between stored states; 0 keeps all.
      dtype: dtype of the computation; parameters are float32.
      steps: number of steps of the optimiser.
      minutes: instead of steps, training time without compilation, evaluations and checkpoints.
        Some steps are timed, and the number that fits is stored in ``budget.json`` for resumed
        runs.
      stop_after: minutes after which this call stops with a checkpoint; the same command resumes
        from it.
      checkpoint_minutes: approximate minutes between checkpoints.
      evaluations: number of evaluations during training.
      eval_puzzles: number of held-out puzzles of each kind in an evaluation.
      implementation: implementation of the ops; by default the fastest.
      seed: seed of parameters, batches and puzzles.
      seeds: several seeds instead of one: a run of each, in a folder ``seed-<seed>`` below the
        folder of the run, and mean and deviation over them.
      run: folder of the run; by default named after the recipe, below runs/sudoku.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides ``report.html``.
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
    seeds: tuple[int, ...] = ()
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = field(default_factory=ReportOptions)

    def settings(self) -> Recipe:
        """The recipe with the options that were given.

        Raises:
          ValueError: naming an invalid option.
        """
        given = {
            option.name: getattr(self, option.name)
            for option in fields(Recipe)
            if getattr(self, option.name, None) is not None
        }
        if self.recompute_every == 0:
            given["recompute_every"] = None
        settings = replace(recipe(self.recipe), **given)
        for name, bound in _LEAST.items():
            require_at_least("train", name, bound, getattr(settings, name))
        if settings.recompute_every not in (None, "auto"):
            require_at_least("train", "recompute_every", 0, settings.recompute_every)
        if not settings.learning_rate > 0:
            raise bad_input("train", "--learning-rate", "positive", settings.learning_rate)
        if not 0 <= settings.ema_decay < 1:
            raise bad_input("train", "--ema-decay", "from 0 to below 1", settings.ema_decay)
        if settings.fewest > settings.most:
            expected = f"at most {settings.most}, the most givens of this recipe"
            raise bad_input("train", "--fewest", expected, settings.fewest)
        if not 0 <= settings.curriculum <= 1:
            raise bad_input("train", "--curriculum", "from 0 to 1", settings.curriculum)
        if settings.warm_up and settings.network == "gated":
            raise bad_input("train", "--warm-up", "0 for this recipe", settings.warm_up)
        return settings

    def check(self) -> None:
        """Raises an error for invalid options that neither the model nor the loop would find.

        Raises:
          ValueError: naming the option.
        """
        self.check_devices("train", self.settings().batch_size)
        if self.steps is not None and self.minutes is not None:
            raise bad_input("train", "--minutes", "left out where --steps is given", self.minutes)
        for name in ("minutes", "stop_after", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise bad_input("train", _option(name), "positive", value)
        for name, least in {"test": 1, "evaluations": 1, "eval_puzzles": 1, "seed": 0}.items():
            require_at_least("train", name, least, getattr(self, name))
        if self.seeds:
            check_seeds("train", self.seeds)

    def run_folder(self) -> Path:
        """Folder of the run."""
        return Path("runs") / "sudoku" / self.recipe if self.run is None else self.run


@dataclass(frozen=True)
class EvaluateConfig:
    """Options of measuring a trained network.

    Attributes:
      run: folder of its run; with neither this nor ``weights``, the weights that come with the
        library, as for ``solve``.
      weights: a file of weights instead of a run, as ``export`` writes it.
      data: folder that ``generate`` has written; by default puzzles are generated.
      puzzles: a file of puzzles instead of these: lines of 81 characters, or with
        solutions as ``read_palm`` or ``read_kaggle`` read them.
      test: number of puzzles of each level, where they are generated.
      steps: largest number of message passing steps for a puzzle, of all attempts together.
      attempt_steps: largest number of steps of one attempt.
      attempts: number of new attempts made at the same time.
      batch_size: number of puzzles at a time.
      seeds: seeds of generated puzzles and of the noise in new attempts; several give mean and
        deviation.
      out: folder for the table and the picture; by default that of the run.
      progress: show progress on stderr.
    """

    run: Path | None = None
    weights: Path | None = None
    data: Path | None = None
    puzzles: Path | None = None
    test: int = 20
    steps: int = SudokuEffort.steps
    attempt_steps: int = SudokuEffort.attempt_steps
    attempts: int = SudokuEffort.attempts
    batch_size: int = 64
    seeds: tuple[int, ...] = (0,)
    out: Path | None = None
    progress: bool = True

    def check(self) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the option.
        """
        for name in ("test", "batch_size"):
            require_at_least("evaluate", name, 1, getattr(self, name))
        if self.data is not None and self.puzzles is not None:
            raise bad_input("evaluate", "--puzzles", "left out where --data is given", self.puzzles)
        check_seeds("evaluate", self.seeds)
        effort_of("evaluate", self)

    def effort(self, seed: int) -> SudokuEffort:
        """Limits of the network's work on a puzzle."""
        return replace(effort_of("evaluate", self), seed=seed)


@dataclass(frozen=True)
class SolveConfig:
    """Options of solving one puzzle.

    Attributes:
      puzzle: 81 cells, row by row, with '.' or 0 where empty; or the name of a file with them.
      run: folder of a trained network's run.
      weights: a file of weights; with neither this nor ``run``, those that come with the library,
        or those of runs/sudoku/tiny if there are none.
      steps: largest number of message passing steps, of all attempts together.
      attempt_steps: largest number of steps of one attempt.
      attempts: number of new attempts made at the same time.
      seed: seed of the noise in new attempts.
    """

    puzzle: str
    run: Path | None = None
    weights: Path | None = None
    steps: int = SudokuEffort.steps
    attempt_steps: int = SudokuEffort.attempt_steps
    attempts: int = SudokuEffort.attempts
    seed: int = 0

    def effort(self) -> SudokuEffort:
        """Limits of the network's work on the puzzle.

        Raises:
          ValueError: naming an invalid option.
        """
        require_at_least("solve", "seed", 0, self.seed)
        return replace(effort_of("solve", self), seed=self.seed)


@dataclass(frozen=True)
class ExportConfig:
    """Options of writing the weights of a run into one file, beside its log.

    Attributes:
      run: folder of the run.
      out: the file, ending in .npz; by default ``weights.npz`` in the folder of the run.
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
      batches: numbers of puzzles in a step.
      features: width of the state; by default that of the recipe.
      dtype: dtype of the computation; by default that of the recipe.
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

    def check(self) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the option.
        """
        recipe(self.recipe)
        for name in ("steps", "batches"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                expected = "at least one number, each at least 1"
                raise bad_input("cost", _option(name), expected, " ".join(map(str, values)))
        for name in ("repeats", "features"):
            if getattr(self, name) is not None:
                require_at_least("cost", name, 1, getattr(self, name))


def effort_of(command: str, config: EvaluateConfig | SolveConfig) -> SudokuEffort:
    """Limits of the network's work on a puzzle, from the options of ``solve`` and ``evaluate``.

    Raises:
      ValueError: naming an invalid option.
    """
    for name in ("steps", "attempt_steps", "attempts"):
        require_at_least(command, name, 1, getattr(config, name))
    return SudokuEffort(config.steps, config.attempt_steps, config.attempts)


def require_at_least(command: str, name: str, least: int, value: int) -> None:
    """Raises unless an option's value is at least its minimum.

    Raises:
      ValueError: naming the command and the option.
    """
    if value < least:
        raise bad_input(command, _option(name), f"at least {least}", value)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
