"""Random streams of a seed, and statistics over several seeds.

A result depends on the seed: on the training nodes, the initial parameters and dropout.
Experiments repeat with several seeds, and compare variants seed by seed.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from experiments._command import INTERRUPTED
from jaxgnn._errors import bad_input

# Confidence level of the interval of a paired difference.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Repeats:
    """Options of commands that repeat a run with several seeds.

    Attributes:
      seeds: one run for each, or one of each variant; a seed fixes the data split, the initial
        parameters and the random draws of training, each by a separate random stream.
      processes: number of runs at the same time, each in its own process.
    """

    seeds: tuple[int, ...] = (0,)
    processes: int = 1

    def check(self, command: str) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the command and the option.
        """
        check_seeds(command, self.seeds)
        if self.processes < 1:
            raise bad_input(command, "--processes", "at least 1", self.processes)

    def of[C](self, config: C) -> list[C]:
        """The options of a run for each seed, from the options that all runs share."""
        return [replace(config, seed=seed) for seed in self.seeds]  # pyrefly: ignore


@dataclass(frozen=True)
class Streams:
    """Seeds of the three independent random streams of a run.

    Attributes:
      split: seed of the data split, which selects training nodes or texts.
      parameters: seed of the parameters' initial values.
      training: seed of the random draws of training, such as dropout and batches.
    """

    split: int
    parameters: int
    training: int


def streams(seed: int) -> Streams:
    """Derives the seeds of a run's streams from ``seed``; that of the split is ``seed`` itself."""
    parameters, training = (
        # 31 bits, because a JAX key takes no larger integer without x64.
        int(child.generate_state(1)[0] >> 1)
        for child in np.random.SeedSequence(seed).spawn(2)
    )
    return Streams(seed, parameters, training)


def check_seeds(command: str, seeds: Sequence[int], option: str = "--seeds") -> None:
    """Raises unless there is at least one seed, none is negative and none is repeated.

    Raises:
      ValueError: naming the command and the option.
    """
    if not seeds:
        raise bad_input(command, option, "at least one seed", "none")
    if min(seeds) < 0:
        raise bad_input(command, option, "seeds of at least 0", min(seeds))
    repeated = [seed for i, seed in enumerate(seeds) if seed in seeds[:i]]
    if repeated:
        raise bad_input(command, option, "each seed once", f"{repeated[0]} twice")


# The default of commands.
ONE_SEED = Repeats()


@dataclass(frozen=True)
class Summary:
    """Mean and spread of a number over several runs.

    Attributes:
      mean: mean over the runs.
      std: standard deviation of a run, with n - 1 in its denominator; NaN for a single run.
      count: number of runs.
      digits: decimals of ``str``.
    """

    mean: float
    std: float
    count: int
    digits: int = 2

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.mean:.{self.digits}f} (1)"
        return f"{self.mean:.{self.digits}f} ± {self.std:.{self.digits}f} ({self.count})"


@dataclass(frozen=True)
class Paired:
    """Mean difference between two variants that ran with the same seeds.

    Attributes:
      difference: mean over the seeds of a variant's number less the baseline's.
      low: lower end of the 95 % interval of Student's t; NaN for a single seed.
      high: upper end of it.
      count: number of seeds.
      digits: decimals of ``str``.
    """

    difference: float
    low: float
    high: float
    count: int
    digits: int = 2

    @property
    def decided(self) -> bool:
        """Whether the interval excludes zero: the difference is statistically significant."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        mean, low, high = (
            f"{value:+.{self.digits}f}" for value in (self.difference, self.low, self.high)
        )
        return f"{mean} (1)" if self.count == 1 else f"{mean} [{low}, {high}] ({self.count})"


def summarize(values: Sequence[float], *, digits: int = 2) -> Summary:
    """Mean and standard deviation of a number over runs.

    Raises:
      ValueError: there are no values.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1 or not numbers.size:
        raise bad_input("summarize", "values", "one number for each of some runs", values)
    std = float(numbers.std(ddof=1)) if numbers.size > 1 else math.nan
    return Summary(float(numbers.mean()), std, numbers.size, digits)


def paired(values: Sequence[float], baseline: Sequence[float], *, digits: int = 2) -> Paired:
    """Compares two variants seed by seed.

    Args:
      values: a number for each seed.
      baseline: the baseline's number for each of the same seeds, in the same order.
      digits: decimals of the result's ``str``.

    Raises:
      ValueError: the lengths differ, or there are no values.
    """
    from scipy import stats

    a, b = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if a.ndim != 1 or a.shape != b.shape or not a.size:
        raise bad_input("paired", "values", f"one for each of {b.size} seeds", f"{a.size}")
    differences, count = a - b, a.size
    mean = float(differences.mean())
    if count == 1:
        return Paired(mean, math.nan, math.nan, 1, digits)
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    reach = float(stats.t.ppf((1 + _CONFIDENCE) / 2, count - 1)) * error
    return Paired(mean, mean - reach, mean + reach, count, digits)


def run_all(work: Callable[[Any], Any], variants: Sequence[Any], processes: int = 1) -> list[Any]:
    """Runs each variant of an experiment, one after another or in several processes.

    Args:
      work: function at the top level of a module, so that a new process can import it.
      variants: its argument for each run.
      processes: number of processes; on a GPU each gets an equal part of the memory.

    Returns:
      The result of each, in the order of ``variants``.
    """
    if min(processes, len(variants)) < 2:
        return [work(variant) for variant in variants]
    # Threads of XLA do not survive a fork.
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_start_worker, initargs=(processes,)
    )
    with pool:
        return list(pool.map(work, variants))


def _start_worker(processes: int) -> None:
    """Limits this process to its part of the GPU's memory, and lets Ctrl-C end it without a word.

    It must run before the GPU is used. The process that started it reports the interrupt.
    """
    import os

    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / processes:.3f}")
