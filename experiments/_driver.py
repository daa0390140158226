"""Drives the trainings of all experiments: one run in its folder, and a run for each seed.

An experiment gives what differs: its model, loss, batches and evaluation, its table and its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx
from jax.sharding import Mesh

from experiments._runs import discard
from experiments._seeds import Repeats, run_all, summarize
from experiments.benchmarks._report import Row, append_rows
from jaxgnn.testing.timing import device_description
from jaxgnn.training import FitResult, LoopConfig, RunFolder, Table, fit


class Training(NamedTuple):
    """Arguments of a training, all of which exist before a file is written.

    Attributes:
      model: the model with its initial parameters.
      optimizer: optimizer of its parameters.
      loss: function of the model, a batch and random streams, as for ``fit``.
      batches: batch of each step, as for ``fit``.
      first: a batch with which the loss is traced, to find errors before the training.
      loop: lengths and intervals.
      evaluate: function from the model to scores.
      mesh: devices that share each batch; None for one.
      unit: unit of the steps that are evaluated, for errors.
    """

    model: nnx.Module
    optimizer: optax.GradientTransformation
    loss: Callable[..., Any]
    batches: Any
    first: Any
    loop: LoopConfig
    evaluate: Callable[..., Mapping[str, float]]
    mesh: Mesh | None = None
    unit: str = "epoch"


def train_in_folder(
    config: Any, training: Training, may_change: Sequence[str]
) -> tuple[FitResult[Any], RunFolder]:
    """Trains a model in the folder of a run, or resumes it there.

    Args:
      config: options of the run.
      training: arguments of the training.
      may_change: options that a resumed run may change.

    Raises:
      ValueError: if the folder holds another run, or an argument is invalid.
      FloatingPointError: if a model is selected, and no evaluation was finite.
    """
    trace_loss(training.loss, training.model, training.first)
    run = open_run(config, may_change)
    result = fit(
        training.model,
        training.optimizer,
        training.loss,
        training.batches,
        config=training.loop,
        evaluate=training.evaluate,
        run=run,
        progress=config.progress,
        mesh=training.mesh,
    )
    if training.loop.select is not None and result.best is None:
        raise FloatingPointError(f"train: every evaluation was NaN; no {training.unit} is the best")
    return result, run


def trace_loss(loss: Callable[..., Any], model: nnx.Module, batch: Any, *static: Any) -> None:
    """Traces a loss with the batch of a step, to find errors before the training."""
    graphdef, state = nnx.split(model)

    def of_arrays(state: Any, batch: Any) -> jax.Array:
        return loss(nnx.merge(graphdef, state), batch, nnx.Rngs(0), *static)[0]

    jax.eval_shape(of_arrays, state, batch)


def open_run(config: Any, may_change: Sequence[str], *, stored: Any = None) -> RunFolder:
    """Opens the folder of a run, the first file that is written; ``--fresh`` empties it before.

    Args:
      config: options of the run, all of which are valid.
      may_change: options that a resumed run may change.
      stored: options to store and to compare; None for ``config``.
    """
    folder = config.run_folder()
    if config.fresh:
        discard(folder)
    return RunFolder(folder, config if stored is None else stored, may_change=may_change)


def in_own_folder(run: Any) -> Any:
    """The options of a run, with its own folder below the one given for all runs."""
    return run if run.run is None else replace(run, run=run.run / run.variant_name())


def train_variants(
    train: Callable[[Any], Any], variants: Iterable[Any], repeats: Repeats
) -> list[list[Any]]:
    """Trains each variant with each seed, each run in its own folder.

    Returns:
      For each variant the outcome of each seed.
    """
    runs = [in_own_folder(run) for variant in variants for run in repeats.of(variant)]
    outcomes, count = run_all(train, runs, repeats.processes), len(repeats.seeds)
    return [outcomes[start : start + count] for start in range(0, len(outcomes), count)]


def train_seeds(
    train: Callable[[Any], Any], config: Any, repeats: Repeats, *, command: str = "train"
) -> list[Any]:
    """Trains a run for each seed; several have folders of their own below the one given."""
    repeats.check(command)
    config.check()
    if len(repeats.seeds) > 1:
        return train_variants(train, [config], repeats)[0]
    return run_all(train, repeats.of(config), repeats.processes)


def finish_seeds(
    repeats: Repeats,
    table: Callable[[str], Table],
    rows: Sequence[Row] = (),
    results: Path | None = None,
) -> None:
    """Stores the rows of all seeds, and prints their table if there are several.

    Args:
      repeats: the seeds.
      table: returns the table, from the note below it.
      rows: a row for each method.
      results: file to which the rows are added, with the seeds and the device; None for none.
    """
    seeds = repeats.seeds
    if results is not None:
        common = {"seeds": list(seeds), **device_description()}
        append_rows(results, [{**row, **common} for row in rows])
    if len(seeds) > 1:
        note = "mean ± standard deviation (number of seeds), seeds"
        print(f"\n{table(f'{note} {" ".join(map(str, seeds))}').text()}")


def methods_table(
    title: str,
    columns: Mapping[str, int],
    methods: Mapping[str, Sequence[Sequence[float]]],
    note: str = "",
) -> Table:
    """Returns a table with a row for each method: means over the seeds, with their deviations.

    Args:
      title: title of the table.
      columns: number of decimals of each column, by its heading.
      methods: for each method the numbers of each column, those of all seeds.
      note: further information.
    """
    rows = [(method, *map(_mean, numbers, columns.values())) for method, numbers in methods.items()]
    return Table(title, ("method", *columns), tuple(rows), note)


def _mean(values: Sequence[float], digits: int) -> str:
    """The mean over the seeds as text, with its deviation if there are several."""
    summary = summarize(values, digits=digits)
    return str(summary) if summary.count > 1 else f"{summary.mean:,.{digits}f}"


def matrices(params: Any) -> Any:
    """Returns a mask of the parameters that decay: matrices, but not scales, gates or biases."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def warmed_adamw(
    learning_rate: float,
    steps: int,
    *,
    warm_up: int,
    last: float,
    b2: float,
    weight_decay: float,
    decayed: Callable[[Any], Any] = matrices,
) -> optax.GradientTransformation:
    """AdamW on clipped gradients; its rate rises from zero and then falls along a cosine.

    Args:
      learning_rate: the highest learning rate.
      steps: number of steps of the whole run.
      warm_up: number of steps in which the rate rises.
      last: the rate at the end, as a fraction of the highest.
      b2: decay of AdamW's average of squared gradients.
      weight_decay: weight decay of AdamW.
      decayed: function from the parameters to a mask of those that decay.
    """
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=learning_rate,
        warmup_steps=warm_up,
        decay_steps=steps,
        end_value=last * learning_rate,
    )
    adamw = optax.adamw(rate, b2=b2, weight_decay=weight_decay, mask=decayed)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)
