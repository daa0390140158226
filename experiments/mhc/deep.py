"""Accuracy of graph networks against their depth, with and without hyper-connections."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments._runs import shown
from experiments.maxk.data import load
from experiments.maxk.train import Outcome, train
from experiments.mhc.config import DeepConfig
from jaxgnn._errors import bad_input

# Outcomes by number of streams (0 for the published network), then by depth.
Outcomes = dict[int, dict[int, Outcome]]


def deep(config: DeepConfig) -> Outcomes:
    """Trains every depth with every number of streams, same seed and settings.

    Args:
      config: the options of the run.

    Raises:
      ValueError: if an option is at fault.
    """
    for name, values, lowest in (("depths", config.depths, 1), ("streams", config.streams, 0)):
        if not values or min(values) < lowest or len(set(values)) < len(values):
            expected = f"different numbers of at least {lowest}"
            raise bad_input("deep", f"--{name}", expected, values)
    dataset = load("digits", None, scale="", seed=config.seed)
    outcomes: Outcomes = {streams: {} for streams in config.streams}
    for depth in config.depths:
        for streams in config.streams:
            print(f"\n{depth} layers, {_label(streams)}")
            outcomes[streams][depth] = train(config.variant(depth, streams), dataset)
    picture = config.run / f"deep-digits-{config.model}-seed{config.seed}.png"
    _plot(config, outcomes, picture)
    _print_table(outcomes)
    print(f"picture: {shown(picture.absolute())}")
    return outcomes


def _label(streams: int) -> str:
    names = {0: "no residuals", 1: "residuals"}
    return names.get(streams, f"mHC n = {streams}")


def _plot(config: DeepConfig, outcomes: Outcomes, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    for streams, by_depth in outcomes.items():
        accuracies = [100 * outcome.test for outcome in by_depth.values()]
        axes.plot(list(by_depth), accuracies, marker="o", label=_label(streams))
    axes.set_xscale("log", base=2)
    axes.set_xticks(config.depths, [str(depth) for depth in config.depths])
    axes.set_ylim(0, 102)
    axes.set_xlabel("layers")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(f"digits, MaxK {config.model.upper()}, {config.epochs} epochs")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, format="png")


def _print_table(outcomes: Outcomes) -> None:
    print(f"\n{'test accuracy':>13}" + "".join(f"  {_label(n):>12}" for n in outcomes))
    for depth in next(iter(outcomes.values())):
        row = "".join(f"  {by_depth[depth].test:12.4f}" for by_depth in outcomes.values())
        print(f"{depth:>4} layers  {row}")
    for streams, by_depth in outcomes.items():
        # Unlike Python's maximum, NumPy's is NaN if any value is NaN.
        best, deepest = np.max([o.test for o in by_depth.values()]), max(by_depth)
        lost = 100 * (best - by_depth[deepest].test)
        print(f"{_label(streams)}: {deepest} layers are {lost:.1f} points below its best")
