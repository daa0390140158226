"""Plain residuals and hyper-connections side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments._runs import shown
from experiments.mhc.config import TrainConfig
from experiments.mhc.train import Outcome, train
from jaxgnn._errors import bad_input
from jaxgnn.datasets import TextDataset, pydoc_text
from jaxgnn.training import plot_curves

# Steps whose mean loss is a point of the picture; single ones differ more than the runs do.
_WINDOW = 10


def compare(config: TrainConfig, dataset: TextDataset | None = None) -> list[Outcome]:
    """Trains with residuals, then with hyper-connections: same seed, batches and settings.

    Args:
      config: the options the runs share.
      dataset: the text, if it is read already.

    Raises:
      ValueError: if there are no streams to compare, or an option is at fault.
    """
    config.check()
    if config.hyper_connections == 0:
        raise bad_input("compare", "--hyper-connections", "at least 1", 0)
    if dataset is None:
        dataset = pydoc_text(seed=config.seed)
    base = Path("runs/mhc") if config.run is None else config.run
    # Streams are all there is to recompute.
    plain = replace(config, hyper_connections=0, recompute_every=None)
    outcomes = [
        train(replace(variant, run=base / variant.run_name()), dataset)
        for variant in (plain, config)
    ]
    picture = base / f"compare-lm-seed{config.seed}.png"
    # The first fall, the same in all runs, would leave their differences no room.
    first = config.steps // 8
    curves = {outcome.label: _smooth(outcome.history)[first:] for outcome in outcomes}
    plot_curves(curves, picture)
    _print_table(outcomes)
    print(f"curves: {shown(picture.absolute())}")
    return outcomes


def _smooth(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Rows with the mean loss of the ``_WINDOW`` steps up to each, evaluations as they are."""
    losses = np.array([row["loss"] for row in history])
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    rows = []
    for i, row in enumerate(history):
        first = max(0, i + 1 - _WINDOW)
        mean = float(sums[i + 1] - sums[first]) / (i + 1 - first)
        others = {name: value for name, value in row.items() if name not in ("step", "loss")}
        rows.append({"step": row["step"], "training loss": mean, **others})
    return rows


def _print_table(outcomes: list[Outcome]) -> None:
    baseline = outcomes[0]
    print(
        f"\n{'run':>16}  {'parameters':>10}  {'training loss':>13}  {'validation loss':>15}"
        f"  {'difference':>10}  {'ms a step':>9}"
    )
    for outcome in outcomes:
        pace = "-" if outcome.ms_per_step is None else f"{outcome.ms_per_step:.0f}"
        difference = outcome.validation - baseline.validation
        print(
            f"{outcome.label:>16}  {outcome.parameters:10,}  {outcome.train:13.4f}"
            f"  {outcome.validation:15.4f}  {difference:+10.4f}  {pace:>9}"
        )
