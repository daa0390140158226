"""Tables of node classifiers: trivial methods, and variants beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments._baselines import BaselineScore, baselines
from experiments._node_data import load
from experiments._node_training import Outcome, mean_of
from experiments._nodes import SCORES
from experiments._seeds import paired, summarize
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import Table, phase


def trivial_scores(config: Any, seeds: Sequence[int], metric: str) -> dict[str, list[float]]:
    """Scores of trivial methods on the test nodes of each seed, by name of the method.

    Args:
      config: options of a run, which name the dataset.
      seeds: a split of the dataset for each.
      metric: name of the score.
    """
    scores: dict[str, list[float]] = {}
    for seed in seeds:
        for name, score in baselines(load(replace(config, seed=seed)), SCORES[metric]).items():
            scores.setdefault(name, []).append(score.test)
    return scores


def trivial_table(dataset: NodeDataset, metric: str) -> Table:
    """Table of the scores of trivial methods on a dataset."""
    scores = baselines(dataset, SCORES[metric])
    return baselines_table("Trivial methods on the same split", metric, scores)


def baselines_table(title: str, metric: str, scores: Mapping[str, BaselineScore]) -> Table:
    """Table of the scores of methods by their names, in per cent."""
    rows = [
        (name, score.setting, 100 * score.validation, 100 * score.test)
        for name, score in scores.items()
    ]
    return Table(
        title=title,
        columns=("method", "chosen on validation", f"validation {metric}, %", f"test {metric}, %"),
        rows=tuple((*names, f"{a:.2f}", f"{b:.2f}") for *names, a, b in rows),
    )


def tables_beside(config: Any, dataset: NodeDataset) -> list[Table]:
    """Tables shown beside a run: trivial methods, unless no process reads all features."""
    if dataset.features_on_disk:
        print("trivial methods are left out: no process reads the features of all nodes")
        return []
    with phase("trivial methods", progress=config.progress):
        return [trivial_table(dataset, config.recipe().metric)]


def comparison_table(
    data: str,
    metric: str,
    outcomes: Mapping[str, Sequence[Outcome]],
    trivial: Mapping[str, Sequence[float]],
    *,
    baseline: str,
) -> Table:
    """A row for each trivial method and each variant; scores in per cent.

    Args:
      data: name of the dataset.
      metric: name of the score.
      outcomes: outcomes of each seed, by name of the variant. All are compared with the first.
      trivial: scores of each seed, by name of the trivial method.
      baseline: short name of the first variant.
    """
    rows: list[tuple[str | int | float, ...]] = [
        (name, "-", str(summarize([100 * score for score in scores])), "-", "-")
        for name, scores in trivial.items()
    ]
    first = next(iter(outcomes))
    compared_with = [100 * outcome.test for outcome in outcomes[first]]
    for name, runs in outcomes.items():
        scores = [100 * outcome.test for outcome in runs]
        pace = mean_of([outcome.ms_per_epoch for outcome in runs])
        rows.append(
            (
                name,
                f"{runs[0].parameters:,}",
                str(summarize(scores)),
                "-" if name == first else str(paired(scores, compared_with)),
                "-" if math.isnan(pace) else f"{pace:.1f}",
            )
        )
    return Table(
        title=f"{data}: test {metric}",
        columns=(
            "method",
            "parameters",
            f"test {metric}, %",
            f"against {baseline}, points",
            "ms an epoch",
        ),
        rows=tuple(rows),
        note="mean ± standard deviation (seeds); difference [95 % interval of Student's t] of the "
        "same seeds",
    )
