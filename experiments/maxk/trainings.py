"""The command ``train``: one seed or several, with scores of trivial methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments._driver import train_seeds
from experiments._node_data import load_for_run
from experiments._node_tables import tables_beside
from experiments._node_training import Outcome
from experiments._options import check_alone
from experiments._seeds import ONE_SEED, Repeats, check_seeds, summarize
from experiments.maxk.compare import compare
from experiments.maxk.config import TrainConfig
from experiments.maxk.repeat import train_in_one_program
from experiments.maxk.serving import check_export
from experiments.maxk.train import train
from jaxgnn.training import Table


def train_all(
    config: TrainConfig,
    repeats: Repeats = ONE_SEED,
    *,
    table_seeds: Sequence[int] = (),
    vmap: bool = False,
    export: Path | None = None,
) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Args:
      config: the options of the runs.
      repeats: the seeds, and number of concurrent runs.
      table_seeds: if there are any, ReLU, MaxK and trivial methods are first compared over these
        seeds, and the table is added to the report of the run of a single seed.
      vmap: whether all seeds are trained in one program.
      export: file to which the best model of the one run is exported, or None.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    repeats.check("train")
    config.check()
    on_one = {
        "--processes": repeats.processes > 1,
        "--table-seeds": bool(table_seeds),
        "--vmap": vmap,
        "--export": export is not None,
    }
    check_alone(config, "train", on_one)
    if export is not None:
        check_export(config, export, is_one_run=len(repeats.seeds) == 1 and not vmap)
    print(f"settings: {config.settings()}", flush=True)
    tables, pictures = [], []
    if table_seeds:
        check_seeds("train", table_seeds, "--table-seeds")
        # Outside the folder of the run, which --fresh removes.
        beside = config.run_folder().with_name(f"{config.run_folder().name}-table")
        shared = replace(config, run=beside)
        comparison = compare(shared, (), Repeats(tuple(table_seeds)), vmap=True)
        tables.append(comparison.table)
        pictures.append(comparison.picture)
    if vmap:
        outcomes = train_in_one_program(config, repeats.seeds)
    elif len(repeats.seeds) == 1:
        run = replace(config, seed=repeats.seeds[0])
        return [_train_beside_trivial(run, tables, pictures, export)]
    else:
        outcomes = train_seeds(_train_beside_trivial, config, repeats)
    metric = config.recipe().metric
    scores = summarize([100 * outcome.test for outcome in outcomes])
    print(f"{outcomes[0].label}, seeds {' '.join(map(str, repeats.seeds))}")
    print(f"test {metric}: {scores} %")
    return outcomes


def _train_beside_trivial(
    config: TrainConfig,
    tables: Sequence[Table] = (),
    pictures: Sequence[Path] = (),
    export: Path | None = None,
) -> Outcome:
    dataset = load_for_run(config)
    shown = [*tables_beside(config, dataset), *tables]
    return train(config, dataset, tables=shown, pictures=pictures, export=export)
