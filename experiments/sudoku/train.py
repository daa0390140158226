"""One training run, from options to a picture of its curves."""

from __future__ import annotations

import functools
import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._driver import open_run, trace_loss, warmed_adamw
from experiments._runs import finish, shown
from experiments._seeds import streams, summarize
from experiments.sudoku.config import TrainConfig
from experiments.sudoku.data import (
    Data,
    Drawn,
    Pool,
    draw,
    fewest_givens,
    held_out,
    make_data,
    read,
)
from experiments.sudoku.measure import Measurement, measure
from experiments.sudoku.networks import make_network, network_name, training_loss
from experiments.sudoku.recipes import Recipe
from experiments.sudoku.solve import EARLIER_LOG, log_of
from jaxgnn._errors import bad_input
from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.pretrained import load_weights
from jaxgnn.training import FitResult, LoopConfig, RunFolder, Table, fit, phase, plot_curves
from jaxgnn.training.files import read_json

# Options that a resumed run may change: they do not change the result.
_MAY_CHANGE = (
    "run",
    "fresh",
    "progress",
    "data",
    "stop_after",
    "checkpoint_minutes",
    "report",
    "devices",
)
_CALIBRATION_STEPS = 24
_EVALUATED_AT_ONCE = 256
_SOLVED = " puzzles"


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      finished: whether all of its steps are done.
      solved: share of the held-out puzzles of each kind that some step solves at the last
        evaluation, NaN if its answers were not finite; empty before the first.
      parameters: number of trained parameters.
      steps: number of steps done so far.
      ms_per_step: mean time of a step; None if none ran now.
      history: a row for each step.
      curves: path of the picture.
      report: path of the page.
    """

    finished: bool
    solved: dict[str, float]
    parameters: int
    steps: int
    ms_per_step: float | None
    history: list[dict[str, float]]
    curves: Path
    report: Path


def train_seeds(config: TrainConfig) -> list[Outcome]:
    """Trains a network, or one for each of ``config.seeds`` in its own folder.

    Prints mean and deviation of the solved shares if there are several.

    Returns:
      The outcomes, one for each seed.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    config.check()
    if not config.seeds:
        return [train(config)]
    folder = config.run_folder()
    outcomes = []
    for seed in config.seeds:
        print(f"seed {seed}")
        run = folder / f"seed-{seed}"
        outcomes.append(train(replace(config, seed=seed, seeds=(), run=run)))
    kinds = [kind for kind in outcomes[0].solved if all(kind in o.solved for o in outcomes)]
    rows = [(kind, str(summarize([100 * o.solved[kind] for o in outcomes]))) for kind in kinds]
    columns = ("held-out puzzles", "solved %, mean ± deviation (seeds)")
    print(Table("Over the seeds", columns, tuple(rows)).text())
    return outcomes


def train(config: TrainConfig, data: Data | None = None) -> Outcome:
    """Trains one network and writes its curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      data: the puzzles, if they already exist.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    config.check()
    settings, seeds = config.settings(), streams(config.seed)
    if data is None:
        data = _data(config, settings, seeds.split)
    pool = _Pool(data.train, settings, None if config.devices == 1 else seeds.training)
    model = make_network(settings, seeds.parameters, config.implementation)
    if config.initial is not None:
        _begin_with(model, config.initial)
    loss_fn = functools.partial(training_loss, recipe=settings)
    trace_loss(loss_fn, model, pool(1, 1))
    run = open_run(config, _MAY_CHANGE)
    if config.initial is not None and log_of(config.initial).exists():
        shutil.copyfile(log_of(config.initial), run.path / EARLIER_LOG)
    steps, seconds = _budget(config, settings, model, loss_fn, pool, run)
    result = fit(
        model,
        _optimizer(settings, steps),
        loss_fn,
        lambda step: pool(step, steps),
        config=_loop(config, settings, steps, seconds, seeds.training),
        evaluate=_Evaluation(data, config.eval_puzzles, settings),
        run=run,
        progress=config.progress,
        mesh=config.mesh(),
    )
    return _report(config, settings, result, run, data)


def _begin_with(model: nnx.Module, weights: Path) -> None:
    """Sets the parameters of a network to those of a file.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not a file of weights, or they belong to another network.
    """
    loaded = load_weights(weights)
    found, wanted = (nnx.state(m, nnx.Param) for m in (loaded, model))
    shapes = [jax.tree.map(jnp.shape, nnx.to_pure_dict(state)) for state in (found, wanted)]
    if type(loaded) is not type(model) or shapes[0] != shapes[1]:
        expected = f"weights of the recipe's {type(model).__name__} and its width"
        raise bad_input("train", "--initial", expected, f"{type(loaded).__name__} in {weights}")
    nnx.update(model, found)


def _data(config: TrainConfig, settings: Recipe, seed: int) -> Data:
    if config.data is not None:
        with phase(f"reading {config.data}", progress=config.progress):
            return read(config.data)
    start = time.monotonic()
    data = make_data(settings.puzzles, config.test, seed, progress=config.progress)
    print(f"made {len(data.train):,} puzzles in {time.monotonic() - start:.0f} s")
    return data


class _Pool:
    """The training puzzles on the device, with the curriculum's bound at each step.

    Args:
      puzzles: all training puzzles.
      settings: the recipe.
      drawn_by: None if a step draws its boards from all puzzles; else the seed of the training.
        The same boards are then drawn before the step, so that devices can share them.
    """

    def __init__(self, puzzles: Puzzles, settings: Recipe, drawn_by: int | None = None):
        self._drawn_by = drawn_by
        self._draw = jax.jit(functools.partial(_drawn, settings))
        self._boards = jnp.array(puzzles.puzzles), jnp.array(puzzles.solutions)
        self._settings = settings

    def __call__(self, step: int, steps: int) -> Pool | Drawn:
        fewest = np.float32(fewest_givens(self._settings, step, steps))
        pool = Pool(*self._boards, jnp.asarray(fewest))
        return pool if self._drawn_by is None else self._draw(pool, self._drawn_by, step)


def _drawn(settings: Recipe, pool: Pool, seed: int, step: int) -> Drawn:
    """The boards that ``training_loss`` would draw in a step of a training with this seed."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return draw(nnx.Rngs(key).batch(), pool, settings)


def _optimizer(settings: Recipe, steps: int) -> optax.GradientTransformation:
    options: dict[str, Any] = {"b2": 0.99, "weight_decay": settings.weight_decay, "last": 0.01}
    warm_up = max(1, min(500, steps // 20))
    return warmed_adamw(settings.learning_rate, max(steps, 2), warm_up=warm_up, **options)


def _budget(config, settings, model, loss_fn, pool: _Pool, run: RunFolder) -> tuple[int, float]:
    """Steps of the whole run, and approximate seconds of a step; NaN if unknown.

    With minutes given, steps are timed once. The number is stored with the run, because its
    schedule ends with it.
    """
    if config.minutes is None:
        return settings.steps, math.nan
    file = run.path / "budget.json"
    if not file.exists():
        loop = LoopConfig(steps=_CALIBRATION_STEPS + 1, log_every=_CALIBRATION_STEPS)
        loop = replace(loop, ema_decay=settings.ema_decay)
        options = {"config": loop, "progress": False, "mesh": config.mesh()}
        optimizer = _optimizer(settings, settings.steps)
        with phase("compiling, and timing some steps", progress=config.progress):
            timed = fit(model, optimizer, loss_fn, lambda step: pool(step, 1), **options)
        assert timed.ms_per_step is not None
        seconds = timed.ms_per_step / 1e3
        steps = max(1, round(60 * config.minutes / seconds))
        run.write_json(file.name, {"steps": steps, "seconds_per_step": seconds})
    budget = read_json(file, dict, "an object, the budget of the run")
    numbers = (int, float)
    if any(not isinstance(budget.get(name), numbers) for name in ("steps", "seconds_per_step")):
        raise ValueError(f"{file}: expected numbers for steps and seconds_per_step, got {budget}")
    print(f"{budget['steps']:,} steps of {1e3 * budget['seconds_per_step']:.1f} ms")
    return budget["steps"], budget["seconds_per_step"]


def _loop(
    config: TrainConfig, settings: Recipe, steps: int, seconds: float, seed: int
) -> LoopConfig:
    every = max(1, steps // config.evaluations)
    # If the time of a step is unknown, checkpoints coincide with evaluations.
    minutes = config.checkpoint_minutes
    saving = every if math.isnan(seconds) else max(1, round(60 * minutes / seconds))
    return LoopConfig(
        steps=steps,
        eval_every=every,
        checkpoint_every=saving,
        seed=seed,
        ema_decay=settings.ema_decay,
        max_seconds=None if config.stop_after is None else 60 * config.stop_after,
        examples_per_step=settings.batch_size,
        examples="puzzles",
    )


class _Evaluation:
    """Shares of held-out puzzles solved after some step, and of their cells after the last."""

    def __init__(self, data: Data, count: int, settings: Recipe):
        kinds = held_out(data, settings)
        self._puzzles = {name: puzzles[:count] for name, puzzles in kinds.items()}
        self._num_steps = settings.test_steps

    def __call__(self, model: nnx.Module) -> dict[str, float]:
        found: dict[str, Measurement] = {
            name: measure(model, puzzles, self._num_steps, _EVALUATED_AT_ONCE)
            for name, puzzles in self._puzzles.items()
        }
        cells = {f"{name} cells": m.cells for name, m in found.items()}
        return cells | {name + _SOLVED: m.solved_part for name, m in found.items()}


def _report(
    config: TrainConfig, settings: Recipe, result: FitResult, run: RunFolder, data: Data
) -> Outcome:
    curves = run.path / "curves.png"
    plot_curves({settings.network: result.history}, curves)
    evaluated = [row for row in result.history if any(name.endswith(_SOLVED) for name in row)]
    last = evaluated[-1] if evaluated else {}
    names = [name for name in last if name.endswith(_SOLVED)]
    solved = {name.removesuffix(_SOLVED): last[name] for name in names}
    parameters = sum(p.size for p in jax.tree.leaves(nnx.state(result.model, nnx.Param)))
    steps, ms_per_step = len(result.history), result.ms_per_step
    numbers = {
        "finished": result.finished,
        "parameters": parameters,
        "steps": steps,
        "ms_per_step": ms_per_step,
    }
    run.write_json("result.json", numbers | last)
    if ms_per_step is not None:
        pace = 1e3 * settings.batch_size / ms_per_step
        print(f"{ms_per_step:.1f} ms a step, {pace:,.0f} puzzles a second")
    state = "finished" if result.finished else "not finished: the same command goes on"
    print(f"{parameters:,} parameters, {steps:,} steps, {state}")
    table = _held_out_table(config, settings, last, solved, data)
    print(table.text())
    print(f"curves: {shown(curves)}")
    title = f"Sudoku, {network_name(settings)} ({config.recipe}), seed {config.seed}"
    report = finish(run.path, config.report, title=title, tables=[table])
    print(f"to measure it: python -m experiments.sudoku evaluate --run {shown(run.path)}")
    return Outcome(
        finished=result.finished,
        solved=solved,
        parameters=parameters,
        steps=steps,
        ms_per_step=ms_per_step,
        history=result.history,
        curves=curves,
        report=report,
    )


def _held_out_table(
    config: TrainConfig,
    settings: Recipe,
    last: dict[str, float],
    solved: dict[str, float],
    data: Data,
) -> Table:
    """Table of held-out puzzles solved by the network, by singles and by exact search."""
    puzzles = held_out(data, settings)
    rows = []
    for kind, part in solved.items():
        boards = puzzles[kind].puzzles[: config.eval_puzzles]
        singles = np.mean(sudoku.difficulty(boards).open == 0)
        search = np.mean(sudoku.solve(boards)[0] == 1)
        cells = last[f"{kind} cells"]
        parts = (f"{100 * value:.2f}" for value in (singles, part, search, cells))
        rows.append((kind, len(boards), *parts))
    columns = ("puzzles", "count", "singles %", "network %", "search %", "cells %")
    steps = f"{settings.test_steps} steps"
    note = f"The network within {steps}, without new attempts; cells are those after the last step."
    return Table("Held-out puzzles, solved", columns, tuple(rows), note)
