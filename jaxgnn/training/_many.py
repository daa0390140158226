"""Trains models of one structure in one program, a run for each seed."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxgnn._errors import bad_input

from ._arguments import check_training
from ._config import Best, LoopConfig, describe_selection, is_better
from ._step import (
    LossFn,
    ModelState,
    PyTree,
    TrainState,
    make_update,
    merge_model,
    owned,
    split_model,
    start_state,
)
from .files import Row
from .progress import Progress


@dataclasses.dataclass(frozen=True)
class ManyResult:
    """The result of one run of ``fit_many``.

    Attributes:
      history: One row a step: ``step``, ``loss``, the metrics of ``loss_fn``, and at evaluations
        those of ``score``.
      best: The best evaluation by ``LoopConfig.select``; None without it, or if the metric was
        never finite.
      ms_per_step: Mean milliseconds of a step of this run without the first, including
        evaluations: the time of all runs divided by their number. None if there was only one step.
      selection: One line about the best evaluation: its step, the metric and its value, and why it
        was selected; None without ``LoopConfig.select``.
    """

    history: list[Row]
    best: Best | None
    ms_per_step: float | None
    selection: str | None = None


def fit_many(
    models: Sequence[nnx.Module],
    optimizer: optax.GradientTransformation,
    loss_fn: LossFn,
    shared: PyTree,
    own: PyTree,
    *,
    seeds: Sequence[int],
    config: LoopConfig,
    predict: Callable[[Any, PyTree], jax.Array],
    score: Callable[[int, np.ndarray], Mapping[str, float]],
    progress: bool = True,
) -> list[ManyResult]:
    """Trains several models at once, vectorised by ``jax.vmap``, with a single compilation.

    Intended for small models and repeated experiments. Every step uses the same data, all of it.
    Each run has its own parameters, random numbers and part of the data, and equals the run of
    ``fit`` with the same seed, up to the rounding of sums. Nothing is written or can be resumed.

    Args:
      models: A model for each run, in the mode to train in, all of the same structure.
      optimizer: Any optax transformation.
      loss_fn: ``loss_fn(model, (shared, own), rngs) -> (loss, metrics)`` of one run.
      shared: Pytree of arrays that all runs read, such as the graph and its features.
      own: Pytree of arrays [runs, ...]; each run reads its own entry, such as its training nodes.
      seeds: Seed of the random numbers of each run.
      config: Steps, ``eval_every``, ``log_every``, ``select`` and ``select_mode`` are read;
        ``patience`` must be None, since all runs do all steps.
      predict: ``predict(model, shared)`` of one model in evaluation mode, compiled: an array.
      score: ``score(run, predictions) -> {name: value}`` for the run with that index, on the
        host.
      progress: Whether to report on stderr.

    Returns:
      The result of each run.

    Raises:
      ValueError: An argument is not of its kind; the numbers of models, seeds and parts differ, the
        models differ in structure, or ``config.select`` is not among the metrics.
      FloatingPointError: A loss is NaN or infinite; the message names the seed and the step.
    """
    functions = {"loss_fn": loss_fn, "predict": predict, "score": score}
    for model in models:
        check_training("fit_many", model, optimizer, config, functions)
    if config.patience is not None:
        raise bad_input("fit_many", "config.patience", "None", config.patience)
    graphdef, states = _start(models, optimizer, own, seeds)
    update = make_update(graphdef, optimizer, loss_fn)
    state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))

    def step_of_one(state: TrainState, shared: PyTree, own: PyTree, key: jax.Array):
        return update(state, (shared, own), key, ())

    def predictions_of_one(arrays: ModelState, shared: PyTree) -> jax.Array:
        model = merge_model(graphdef, arrays)
        model.eval()
        return predict(model, shared)

    step = jax.jit(jax.vmap(step_of_one, in_axes=(0, None, 0, 0)), donate_argnums=0)
    evaluate = jax.jit(jax.vmap(predictions_of_one, in_axes=(0, None)))
    shared, own = owned(shared), owned(own)
    records = _Records(config, seeds, score)
    with Progress(0, config.steps, enabled=progress) as bar:
        bar.begin("compiling")
        for number in range(1, config.steps + 1):
            state, values = step(state, shared, own, keys)
            last = number == config.steps
            due = last or (config.eval_every > 0 and number % config.eval_every == 0)
            predictions = evaluate(state.model, shared) if due else None
            records.pending.append((number, values, predictions))
            if last or number == 1 or number % config.log_every == 0:
                records.read()
                bar.update(number, records.mean_row(), records.ms_per_step)
    return records.results()


def _start(
    models: Sequence[nnx.Module],
    optimizer: optax.GradientTransformation,
    own: PyTree,
    seeds: Sequence[int],
) -> tuple[nnx.GraphDef, list[TrainState]]:
    """The common structure of the models, and the initial state of each."""
    counts = {len(models), len(seeds), *(len(leaf) for leaf in jax.tree.leaves(own))}
    if len(counts) != 1 or not models:
        raise ValueError(
            f"fit_many: own: expected a part for each of {len(seeds)} seeds and as many models, "
            f"got {len(models)} models and parts of {sorted(counts)}"
        )
    parts = [split_model(model) for model in models]
    graphdef = parts[0][0]
    differing = [run for run, (other, _) in enumerate(parts) if other != graphdef]
    if differing:
        raise ValueError(
            f"fit_many: models: expected one structure, but model {differing[0]} differs from "
            "model 0"
        )
    return graphdef, [start_state(arrays, optimizer) for _, arrays in parts]


class _Records:
    """Rows, best evaluations and times of all runs."""

    def __init__(
        self,
        config: LoopConfig,
        seeds: Sequence[int],
        score: Callable[[int, np.ndarray], Mapping[str, float]],
    ):
        self._config, self._seeds, self._score = config, seeds, score
        self._histories: list[list[Row]] = [[] for _ in seeds]
        self._best: list[Best | None] = [None] * len(seeds)
        # Steps whose values, and predictions if they are evaluated, are still on the device.
        self.pending: list[tuple[int, dict[str, jax.Array], jax.Array | None]] = []
        self._first: float | None = None
        self._seconds = 0.0
        self._timed = 0

    def read(self) -> None:
        """Waits for the pending steps, and computes their rows."""
        for step, values, predictions in self.pending:
            values, predictions = jax.device_get((values, predictions))
            for run, history in enumerate(self._histories):
                row = {"step": step, **{name: float(v[run]) for name, v in values.items()}}
                if not math.isfinite(row["loss"]):
                    raise FloatingPointError(
                        f"fit_many: the loss of seed {self._seeds[run]} is {row['loss']} at step "
                        f"{step}"
                    )
                history.append(row)
                if predictions is None:
                    continue
                scores = self._score(run, predictions[run]).items()
                metrics = {name: float(value) for name, value in scores}
                row |= metrics
                best = self._best[run]
                if is_better("fit_many", self._config, metrics, best, "score gave"):
                    self._best[run] = Best(step, metrics)
        now = time.perf_counter()
        if self._first is None:
            self._first = now
        else:
            self._seconds = now - self._first
            self._timed += len(self.pending)
        self.pending.clear()

    @property
    def ms_per_step(self) -> float | None:
        """Mean milliseconds of a step of one run, without the first step."""
        if not self._timed:
            return None
        return 1e3 * self._seconds / self._timed / len(self._seeds)

    def mean_row(self) -> Row:
        """The mean over the runs of each number of their last rows."""
        rows = [history[-1] for history in self._histories]
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

    def results(self) -> list[ManyResult]:
        return [
            ManyResult(
                history,
                best,
                self.ms_per_step,
                describe_selection(
                    self._config, best, sum(self._config.select in row for row in history)
                ),
            )
            for history, best in zip(self._histories, self._best, strict=True)
        ]
