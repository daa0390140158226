"""Comparison of networks and trivial methods, with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments._driver import train_variants
from experiments._runs import shown
from experiments._seeds import ONE_SEED, Repeats
from experiments.graphs.config import MODELS, NAMES, GraphsConfig, Model, variants_of
from experiments.graphs.tables import Outcome, scores_table
from experiments.graphs.train import train
from jaxgnn.training import Table, plot_curves


@dataclass(frozen=True)
class Comparison:
    """The outcomes of a comparison.

    Attributes:
      outcomes: name of the network -> the outcome of each seed.
      table: means, deviations and margins.
      picture: the curves of all networks.
    """

    outcomes: dict[str, list[Outcome]]
    table: Table
    picture: Path


def compare(
    config: GraphsConfig, models: Sequence[Model] = MODELS, repeats: Repeats = ONE_SEED
) -> Comparison:
    """Trains each network with the same seeds, and prints a table and the path of a picture.

    Args:
      config: the options that the runs share; ``model`` is set here.
      models: the networks.
      repeats: seeds, and number of concurrent runs.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    repeats.check("compare")
    variants = variants_of(config, models)
    names = [NAMES[model] for model in models]
    trained = train_variants(train, variants, repeats)
    outcomes, count = dict(zip(names, trained, strict=True)), len(repeats.seeds)
    base = Path("runs/graphs") if config.run is None else config.run
    picture = base / f"compare-{config.data_name()}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    title = f"{config.data_name()}, {count} seed{'s' * (count > 1)}"
    curves = {name: [run.history for run in made] for name, made in outcomes.items()}
    plot_curves(curves, picture, title=title)
    table = scores_table(config.data_name(), outcomes)
    print(f"\n{table.text()}\ncurves: {shown(picture.absolute())}")
    return Comparison(outcomes, table, picture)
