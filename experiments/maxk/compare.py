"""Comparison of trivial methods, ReLU, and MaxK over a list of k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments._node_tables import comparison_table, trivial_scores
from experiments._node_training import Outcome
from experiments._options import check_alone
from experiments._runs import shown
from experiments._seeds import ONE_SEED, Repeats
from experiments.benchmarks._report import Row, append_rows
from experiments.maxk.config import TrainConfig, variants_of
from experiments.maxk.repeat import repeated
from jaxgnn._errors import bad_input
from jaxgnn.testing.timing import device_description
from jaxgnn.training import Table, plot_curves
from jaxgnn.training.plots import colours


@dataclass(frozen=True)
class Comparison:
    """The outcomes of a comparison.

    Attributes:
      outcomes: for ReLU, then for MaxK with each k, the outcome of each seed.
      trivial: name of a trivial method -> its test score for each seed.
      table: means, deviations and paired differences.
      picture: the curves of all variants.
    """

    outcomes: list[list[Outcome]]
    trivial: dict[str, list[float]]
    table: Table
    picture: Path


RESULTS = Path(__file__).parent / "results" / "accuracy.jsonl"


def compare(
    config: TrainConfig,
    ks: tuple[int, ...],
    repeats: Repeats = ONE_SEED,
    *,
    vmap: bool = False,
    commit_results: bool = False,
) -> Comparison:
    """Trains dense ReLU, then MaxK with each ``k``, with the same seeds and settings.

    Args:
      config: the options the runs share; its activation is set here.
      ks: kept entries per row of the MaxK runs; if empty, that of the options or of the recipe.
      repeats: seeds, and number of concurrent runs.
      vmap: whether the seeds of a variant are trained in one program.
      commit_results: whether to add the scores to those that are stored with the code.

    Raises:
      ValueError: if the options give a schedule of k, or an option or a data file is invalid.
    """
    on_one = {"--vmap": vmap, "--processes": repeats.processes > 1}
    check_alone(config, "compare", on_one)
    repeats.check("compare")
    variants = variants_of(config, ks)
    metric = config.recipe().metric
    trivial = trivial_scores(config, repeats.seeds, metric)
    outcomes = repeated(variants, repeats, vmap=vmap)
    if commit_results:
        append_rows(RESULTS, _rows(variants, repeats, outcomes, trivial))
    named = {f"{config.kind().upper()} {runs[0].label}": runs for runs in outcomes}
    table = comparison_table(config.data_name(), metric, named, trivial, baseline="ReLU")
    base = _base(config)
    picture = base / f"compare-{config.data_name()}-{config.kind()}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    curves = {runs[0].label: [run.history for run in runs] for runs in outcomes}
    plot_curves(curves, picture, title=_title(config, repeats))
    print(f"\n{table.text()}\ncurves: {shown(picture.absolute())}")
    return Comparison(outcomes, trivial, table, picture)


def _rows(
    variants: Sequence[TrainConfig],
    repeats: Repeats,
    outcomes: Sequence[Sequence[Outcome]],
    trivial: Mapping[str, Sequence[float]],
) -> list[Row]:
    """A row for each method, with its test scores over the seeds.

    Those of MaxK have the differences to ReLU too, in points.
    """
    first = variants[0]
    common: Row = {"experiment": "maxk", "data": first.data_name(), "seeds": list(repeats.seeds)}
    common |= {"metric": first.recipe().metric, **device_description()}
    if first.dataset == "synthetic":
        common["scale"] = first.scale
    rows: list[Row] = [
        {**common, "method": name, "k": None, "test": list(scores)}
        for name, scores in trivial.items()
    ]
    relu = [run.test for run in outcomes[0]]
    for variant, runs in zip(variants, outcomes, strict=True):
        ks, width, test = (
            variant.layer_ks(),
            variant.recipe().hidden_features,
            [r.test for r in runs],
        )
        row = {"model": variant.kind(), "method": variant.activation, "width": width}
        row |= {"k": None if ks is None else ks[0], "settings": variant.settings(), "test": test}
        row |= {"points": [100 * (one - base) for one, base in zip(test, relu, strict=True)]}
        rows.append({**common, **row, "ms_per_epoch": runs[0].ms_per_epoch})
    return rows


def sweep(
    config: TrainConfig, ks: tuple[int, ...], repeats: Repeats = ONE_SEED, *, vmap: bool = False
) -> Comparison:
    """Compares as ``compare`` does, and draws the score against k.

    Raises:
      ValueError: if there is no k or one is repeated, or as in ``compare``.
    """
    if not ks:
        raise bad_input("sweep", "--ks", "at least one k", "none")
    comparison = compare(config, ks, repeats, vmap=vmap)
    picture = _base(config) / f"sweep-{config.data_name()}-{config.kind()}.png"
    _draw_scores(config, ks, repeats, comparison, picture)
    print(f"{config.recipe().metric} against k: {shown(picture.absolute())}")
    return comparison


def _base(config: TrainConfig) -> Path:
    return Path("runs/maxk") if config.run is None else config.run


def _title(config: TrainConfig, repeats: Repeats) -> str:
    count = len(repeats.seeds)
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    return f"{config.data_name()}, {config.kind().upper()}, {seeds}"


def _draw_scores(
    config: TrainConfig,
    ks: tuple[int, ...],
    repeats: Repeats,
    comparison: Comparison,
    path: Path,
) -> None:
    """Score against k with standard deviations; ReLU and the best trivial method as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    relu, *maxk = ([100 * o.test for o in runs] for runs in comparison.outcomes)
    several, shades = len(repeats.seeds) > 1, colours(["ReLU", "MaxK"])
    axes.errorbar(
        ks,
        [np.mean(scores) for scores in maxk],
        yerr=[np.std(scores, ddof=1) for scores in maxk] if several else None,
        marker="o",
        capsize=3,
        color=shades["MaxK"],
        label="MaxK",
    )
    axes.axhline(float(np.mean(relu)), color=shades["ReLU"], label="ReLU")
    if several:
        spread = float(np.std(relu, ddof=1))
        middle = float(np.mean(relu))
        axes.axhspan(middle - spread, middle + spread, color=shades["ReLU"], alpha=0.15)
    name, scores = max(comparison.trivial.items(), key=lambda item: np.mean(item[1]))
    axes.axhline(100 * float(np.mean(scores)), color="0.5", linestyle="--", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_xlabel(f"k, kept of {config.recipe().hidden_features} features of a row")
    axes.set_ylabel(f"test {config.recipe().metric}, %")
    axes.set_title(_title(config, repeats))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, format="png")
