"""Accuracy of graph networks by depth and by connections of the layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from experiments._baselines import baselines
from experiments._node_data import load
from experiments._nodes import SCORES
from experiments._options import PAGE_ALONE
from experiments._runs import discard, finish, shown
from experiments._seeds import paired, summarize
from experiments.maxk.repeat import train_in_one_program
from experiments.mhc.config import DeepConfig, Method
from jaxgnn._errors import require_regular_file
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import RunFolder, Table, phase
from jaxgnn.training.plots import colours

# Methods that each method is compared with, seed by seed.
_REFERENCES: dict[str, tuple[Method, ...]] = {"mhc": ("residuals", "gcnii")}


@dataclass(frozen=True)
class DeepOutcome:
    """Results of one method at one depth.

    Attributes:
      method: connections of the layers.
      depth: number of convolutions.
      parameters: number of trained parameters.
      test: test score of each seed at its best validation epoch.
      validation: validation score of each seed at that epoch.
      ms_per_epoch: milliseconds of an epoch of one seed; None if there was only one epoch.
    """

    method: Method
    depth: int
    parameters: int
    test: tuple[float, ...]
    validation: tuple[float, ...]
    ms_per_epoch: float | None


def deep(config: DeepConfig) -> list[DeepOutcome]:
    """Trains every depth with every method, with the same seeds and settings.

    Each outcome is written to ``outcomes.jsonl`` of the run folder as soon as it exists, and is not
    trained again when the same command is repeated.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    config.check()
    variants = [(depth, method) for depth in config.depths for method in config.methods]
    for depth, method in variants:
        config.variant(depth, method).check()
    with phase(f"reading {config.dataset}", progress=config.progress):
        seeds = [replace(config.variant(1, "plain"), seed=seed) for seed in config.seeds]
        data = [load(run) for run in seeds]
    if config.fresh:
        discard(config.run)
    run = RunFolder(config.run, config, may_change=("run", "fresh", "progress"))
    log = run.path / "outcomes.jsonl"
    outcomes = _read(log)
    for depth, method in variants:
        if any((o.depth, o.method) == (depth, method) for o in outcomes):
            continue
        with phase(f"{depth} layers, {config.label(method)}", progress=config.progress):
            outcomes.append(_train(config, depth, method, data))
        with log.open("a") as file:
            file.write(json.dumps(asdict(outcomes[-1])) + "\n")
    metric = config.variant(1, "plain").recipe().metric
    tables = [_scores_table(config, outcomes, metric), _trivial_table(data, metric)]
    tables += [_differences_table(config, outcomes)] if len(config.seeds) > 1 else []
    picture = run.path / "depth.png"
    _draw(config, outcomes, metric, picture)
    for table in tables:
        print(f"\n{table.text()}")
    print(f"picture: {shown(picture)}")
    title = f"{data[0].name}: depth, {len(config.seeds)} seeds"
    finish(run.path, PAGE_ALONE, title=title, tables=tables, pictures=[picture])
    return outcomes


def _train(
    config: DeepConfig, depth: int, method: Method, data: Sequence[NodeDataset]
) -> DeepOutcome:
    runs = train_in_one_program(
        config.variant(depth, method),
        config.seeds,
        datasets=data,
        label=config.label(method),
    )
    return DeepOutcome(
        method=method,
        depth=depth,
        parameters=runs[0].parameters,
        test=tuple(run.test for run in runs),
        validation=tuple(run.validation for run in runs),
        ms_per_epoch=runs[0].ms_per_epoch,
    )


def _read(log: Path) -> list[DeepOutcome]:
    """Reads the stored outcomes, except an incomplete last line."""
    if not log.exists():
        return []
    require_regular_file(log, "the outcomes of runs")
    text = log.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        log.write_text(whole)
    rows = [json.loads(line) for line in whole.splitlines()]
    return [
        DeepOutcome(**row | {name: tuple(row[name]) for name in ("test", "validation")})
        for row in rows
    ]


def _by_depth(outcomes: Sequence[DeepOutcome], method: Method) -> dict[int, DeepOutcome]:
    return {outcome.depth: outcome for outcome in outcomes if outcome.method == method}


def _per_cent(scores: Sequence[float]) -> list[float]:
    return [100 * score for score in scores]


def _scores_table(config: DeepConfig, outcomes: Sequence[DeepOutcome], metric: str) -> Table:
    """Mean and deviation of every depth and method, with parameters and time."""
    rows = [
        (
            depth,
            config.label(method),
            f"{outcome.parameters:,}",
            str(summarize(_per_cent(outcome.test))),
            "-" if outcome.ms_per_epoch is None else f"{outcome.ms_per_epoch:.1f}",
        )
        for depth in config.depths
        for method in config.methods
        if (outcome := _by_depth(outcomes, method).get(depth))
    ]
    return Table(
        title=f"{config.dataset}: test {metric}, {config.model.upper()}, {config.activation}",
        columns=("layers", "method", "parameters", f"test {metric}, %", "ms an epoch"),
        rows=tuple(rows),
        note="mean ± standard deviation (seeds) at the best validation epoch of each seed",
    )


def _differences_table(config: DeepConfig, outcomes: Sequence[DeepOutcome]) -> Table:
    """Paired differences between methods and their references."""
    pairs = [
        (method, other)
        for method in config.methods
        for other in _REFERENCES.get(method, ())
        if other in config.methods
    ]
    rows = []
    for depth in config.depths:
        for method, other in pairs:
            ours, theirs = (_by_depth(outcomes, name)[depth].test for name in (method, other))
            difference = paired(_per_cent(ours), _per_cent(theirs))
            name = f"{config.label(method)} − {config.label(other)}"
            verdict = "decided" if difference.decided else "not decided"
            rows.append((depth, name, str(difference), verdict))
    return Table(
        title="Paired differences",
        columns=("layers", "difference", "points", "sign"),
        rows=tuple(rows),
        note="difference [95 % interval of Student's t] (seeds)",
    )


def _trivial_table(data: Sequence[NodeDataset], metric: str) -> Table:
    """Scores of methods without a network on the same nodes."""
    scores: dict[str, list[float]] = {}
    for dataset in data:
        for name, score in baselines(dataset, SCORES[metric]).items():
            scores.setdefault(name, []).append(100 * score.test)
    return Table(
        title="Trivial methods",
        columns=("method", f"test {metric}, %"),
        rows=tuple((name, str(summarize(values))) for name, values in scores.items()),
    )


def _draw(config: DeepConfig, outcomes: Sequence[DeepOutcome], metric: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    shades = colours(config.label(method) for method in config.methods)
    for place, method in enumerate(config.methods):
        found = _by_depth(outcomes, method)
        depths = [depth for depth in config.depths if depth in found]
        scores = [_per_cent(found[depth].test) for depth in depths]
        spread = [np.std(s, ddof=1) for s in scores] if len(config.seeds) > 1 else None
        axes.errorbar(
            # Shifted sideways, so that no method hides another.
            [depth * 1.02**place for depth in depths],
            [np.mean(s) for s in scores],
            yerr=spread,
            marker="o",
            capsize=3,
            color=shades[config.label(method)],
            label=config.label(method),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(config.depths, [str(depth) for depth in config.depths])
    axes.minorticks_off()
    axes.set_xlabel("layers")
    axes.set_ylabel(f"test {metric}, %")
    count = len(config.seeds)
    axes.set_title(f"{config.dataset}, {config.model.upper()}, {count} seed{'s' * (count > 1)}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, format="png")
