"""Runs side by side: ReLU against MaxK, and MaxK over a list of k."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from experiments.maxk.config import TrainConfig
from experiments.maxk.data import load
from experiments.maxk.train import Outcome, train
from jaxgnn._errors import bad_input
from jaxgnn.training import plot_curves


def compare(config: TrainConfig, ks: tuple[int, ...]) -> list[Outcome]:
    """Trains dense ReLU, then MaxK with each ``k``, same seed and settings.

    Args:
      config: the options the runs share; its activation and k are set here.
      ks: kept entries per row of the MaxK runs; empty for the recipe's.

    Raises:
      ValueError: if the options give a schedule of k, or an option or a data file is at fault.
    """
    if config.k_schedule:
        raise bad_input("compare", "--k-schedule", "left out", config.k_schedule)
    ks = ks or (replace(config, activation="maxk").recipe().k,)
    dataset = load(config.dataset, config.data, scale=config.scale, seed=config.seed)
    # Without --run each run has the name that ``train`` would give it.
    base = Path("runs/maxk") if config.run is None else config.run
    variants = [replace(config, activation="relu", k=None)]
    variants += [replace(config, activation="maxk", k=(k,)) for k in ks]
    outcomes = []
    for variant in variants:
        name = replace(variant, run=None).run_folder().name
        outcomes.append(train(replace(variant, run=base / name), dataset))
    prefix = f"compare-{config.dataset}-{config.model}-seed{config.seed}"
    picture = base / f"{prefix}.png"
    plot_curves({outcome.label: outcome.history for outcome in outcomes}, picture)
    _print_table(outcomes, config.recipe().metric)
    print(f"curves: {picture}")
    return outcomes


def _print_table(outcomes: list[Outcome], metric: str) -> None:
    baseline = outcomes[0]
    print(f"\n{'run':>16}  {'test ' + metric:>14}  {'against ReLU':>12}  {'ms an epoch':>11}")
    for outcome in outcomes:
        difference = 100 * (outcome.test - baseline.test)
        pace = "-" if outcome.ms_per_epoch is None else f"{outcome.ms_per_epoch:.1f}"
        print(f"{outcome.label:>16}  {outcome.test:14.4f}  {difference:+8.2f} pts  {pace:>11}")
