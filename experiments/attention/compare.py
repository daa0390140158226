"""Comparison of networks and trivial methods, with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments._driver import train_variants
from experiments._node_tables import comparison_table, trivial_scores
from experiments._node_training import Outcome, train_in_one_program
from experiments._options import check_alone
from experiments._runs import shown
from experiments._seeds import ONE_SEED, Repeats
from experiments.attention.config import AttentionConfig, variants_of
from experiments.attention.recipes import MODELS, NAMES, Model
from experiments.attention.setup import PARTS
from experiments.attention.train import train
from jaxgnn.training import Table, plot_curves


@dataclass(frozen=True)
class Comparison:
    """The outcomes of a comparison.

    Attributes:
      outcomes: name of the network -> the outcome of each seed.
      trivial: name of a trivial method -> its test score for each seed.
      table: means, deviations and paired differences.
      picture: the curves of all networks.
    """

    outcomes: dict[str, list[Outcome]]
    trivial: dict[str, list[float]]
    table: Table
    picture: Path


def compare(
    config: AttentionConfig,
    models: Sequence[Model] = MODELS,
    repeats: Repeats = ONE_SEED,
    *,
    vmap: bool = False,
) -> Comparison:
    """Trains each network with the same seeds, each with its recipe for the dataset.

    Args:
      config: the options that the runs share; those that do not apply to a network are ignored for
        it, and ``model`` is set here.
      models: the networks; all are compared with the first.
      repeats: seeds, and number of concurrent runs.
      vmap: whether the seeds of a network are trained in one program.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    repeats.check("compare")
    check_alone(config, "compare", {"--vmap": vmap, "--processes": repeats.processes > 1})
    variants = variants_of(config, models)
    for variant in variants:
        print(f"settings: {variant.settings()}", flush=True)
    metric = variants[0].recipe().metric
    trivial = trivial_scores(config, repeats.seeds, metric)
    if vmap:
        trained = [train_in_one_program(PARTS, variant, repeats.seeds) for variant in variants]
    else:
        trained = train_variants(train, variants, repeats)
    outcomes = {NAMES[model]: runs for model, runs in zip(models, trained, strict=True)}
    first = next(iter(outcomes))
    table = comparison_table(config.data_name(), metric, outcomes, trivial, baseline=first)
    base = Path("runs/attention") if config.run is None else config.run
    picture = base / f"compare-{config.data_name()}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    count = len(repeats.seeds)
    title = f"{config.data_name()}, {count} seed{'s' * (count > 1)}"
    curves = {name: [run.history for run in runs] for name, runs in outcomes.items()}
    plot_curves(curves, picture, title=title)
    print(f"\n{table.text()}\ncurves: {shown(picture.absolute())}")
    return Comparison(outcomes, trivial, table, picture)
