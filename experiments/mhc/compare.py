"""Comparison of plain residuals and hyper-connections, also at equal parameters and equal time."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from experiments._driver import train_variants
from experiments._runs import shown
from experiments._seeds import ONE_SEED, Repeats, paired, streams, summarize
from experiments._text import ngram_loss
from experiments.mhc.config import TrainConfig
from experiments.mhc.train import Outcome, make_model, train
from jaxgnn._errors import bad_input
from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets import TextDataset, pydoc_text
from jaxgnn.training import Table, plot_curves

# Number of steps averaged in a point of the picture; single steps vary more than the runs differ.
_WINDOW = 10
# Context lengths, in bytes, of the n-gram baselines.
_ORDERS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Comparison:
    """The outcomes of a comparison.

    Attributes:
      outcomes: for each variant, the one with streams last, the outcomes of all seeds.
      table: losses, paired differences, parameters and time.
    """

    outcomes: list[list[Outcome]]
    table: Table


def compare(
    config: TrainConfig,
    repeats: Repeats = ONE_SEED,
    *,
    time_ratio: float = 1.7,
    dataset: TextDataset | None = None,
) -> Comparison:
    """Trains with residuals, also wider or longer, then with hyper-connections.

    All runs of a seed have the same text and the same batches in the same order.

    Args:
      config: the options of the run with hyper-connections.
      repeats: seeds, and number of concurrent runs.
      time_ratio: time of a step with hyper-connections relative to a plain step; the plain run of
        equal time trains longer by this factor.
      dataset: the text, if it is already read; else its split is that of each seed.

    Raises:
      ValueError: if there are no streams to compare, or an option is invalid.
    """
    config.check()
    repeats.check("compare")
    if config.hyper_connections == 0:
        raise bad_input("compare", "--hyper-connections", "at least 1", 0)
    if not 0 < time_ratio < math.inf:
        raise bad_input("compare", "--time-ratio", "finite and above 0", time_ratio)
    base = Path("runs/mhc") if config.run is None else config.run
    variants = variants_of(config, time_ratio)
    work = train if dataset is None else functools.partial(train, dataset=dataset)
    outcomes = train_variants(work, [replace(variant, run=base) for variant in variants], repeats)
    texts = [dataset or pydoc_text(seed=streams(seed).split) for seed in repeats.seeds]
    table = _table(variants, outcomes, texts)
    picture = base / "compare-lm.png"
    _draw(config, outcomes, repeats, picture)
    print(f"\n{table.text()}\ncurves: {shown(picture.absolute())}")
    return Comparison(outcomes, table)


def variants_of(config: TrainConfig, time_ratio: float) -> list[TrainConfig]:
    """Distinct variants: plain, with equal parameters, with equal time, and with streams."""
    # Recomputation applies only to streams.
    plain = replace(config, hyper_connections=0, recompute_every=None)
    wide = replace(plain, features=_equal_width(config))
    longer = replace(plain, steps=round(exact_fraction(time_ratio) * config.steps))
    return list(dict.fromkeys([plain, wide, longer, config]))


def _equal_width(config: TrainConfig) -> int:
    """The width at which a plain model's number of parameters is closest to one with streams."""
    wanted = _num_parameters(config)
    plain = replace(config, hyper_connections=0, recompute_every=None)
    # Heads have even widths.
    widths = range(config.features, 4 * config.features, 2 * config.num_heads)
    counts = {width: _num_parameters(replace(plain, features=width)) for width in widths}
    return min(counts, key=lambda width: abs(counts[width] - wanted))


def _num_parameters(config: TrainConfig) -> int:
    model = nnx.eval_shape(lambda: make_model(config))
    return sum(math.prod(p.shape) for p in jax.tree.leaves(nnx.state(model, nnx.Param)))


def _draw(
    config: TrainConfig, outcomes: Sequence[list[Outcome]], repeats: Repeats, path: Path
) -> None:
    # The initial fall, the same in all runs, would dominate the axis.
    first = config.steps // 8
    curves = {runs[0].label: [_smooth(run.history)[first:] for run in runs] for runs in outcomes}
    count = len(repeats.seeds)
    title = f"help of Python, language model, {count} seed{'s' * (count > 1)}"
    labels = {"loss": "cross entropy, nats a byte"}
    plot_curves(curves, path, title=title, axis_labels=labels)


def _smooth(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Replaces the loss by the mean of the last ``_WINDOW`` steps; evaluations are unchanged."""
    losses = np.array([row["loss"] for row in history])
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    rows = []
    for i, row in enumerate(history):
        first = max(0, i + 1 - _WINDOW)
        mean = float(sums[i + 1] - sums[first]) / (i + 1 - first)
        others = {name: value for name, value in row.items() if name not in ("step", "loss")}
        rows.append({"step": row["step"], "training loss": mean, **others})
    return rows


def _table(
    variants: Sequence[TrainConfig],
    outcomes: Sequence[list[Outcome]],
    texts: Sequence[TextDataset],
) -> Table:
    """A row for each n-gram baseline and each variant; losses in nats a byte."""
    ours = [outcome.validation for outcome in outcomes[-1]]
    rows: list[tuple[str, ...]] = []
    for order in _ORDERS:
        losses = [ngram_loss(text, order) for text in texts]
        name = f"counts, {order} byte{'s' * (order != 1)} of context"
        rows.append((name, "-", "-", "-", str(summarize(losses, digits=3)), "-"))
    for variant, runs in zip(variants, outcomes, strict=True):
        losses = [run.validation for run in runs]
        times = [run.ms_per_step for run in runs if run.ms_per_step is not None]
        seconds = f"{np.mean(times) * variant.steps / 1000:.0f}" if times else "-"
        difference = "-" if runs is outcomes[-1] else str(paired(ours, losses, digits=3))
        losses_text = str(summarize(losses, digits=3))
        parameters = f"{runs[0].parameters:,}"
        rows.append(
            (runs[0].label, parameters, str(variant.steps), seconds, losses_text, difference)
        )
    return Table(
        title="Validation loss, nats a byte",
        columns=("model", "parameters", "steps", "seconds", "loss", "mHC less this one"),
        rows=tuple(rows),
        note="mean ± standard deviation (seeds); difference [95 % interval of Student's t] of the "
        "same seeds, below zero where mHC is better",
    )
