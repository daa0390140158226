"""One training run or several, from options to a picture of their curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments._driver import (
    Training,
    finish_seeds,
    methods_table,
    train_in_folder,
    train_seeds,
)
from experiments._node_data import load
from experiments._options import check_alone
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats
from experiments._spread import MAY_CHANGE, place
from experiments.benchmarks._report import Row
from experiments.links.config import TrainConfig
from experiments.links.data import Links, links_of
from experiments.links.sampled import SampledLoss, loader_of
from experiments.links.setup import Loss, Scores, loop_of, make_model, optimizer_of
from experiments.links.trivial import trivial_scores
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import FitResult, RunFolder, Table, phase, plot_curves


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      test: test scores at the best validation epoch, by name.
      validation: validation scores at that epoch, by name.
      epoch: the epoch of that evaluation.
      ms_per_epoch: mean time of the steps of an epoch; None if the run was already complete.
      history: a row for each step.
      trivial: test scores of each method without a network, by its name.
    """

    test: dict[str, float]
    validation: dict[str, float]
    epoch: int
    ms_per_epoch: float | None
    history: list[dict[str, float]]
    trivial: dict[str, dict[str, float]]


def train(config: TrainConfig, dataset: NodeDataset | None = None) -> Outcome:
    """Trains one network and writes its report, curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data, if it is already loaded.

    Raises:
      ValueError: if an option or a data file is invalid.
      FloatingPointError: if no evaluation was finite.
    """
    config.check()
    config.check_devices("train")
    if dataset is None:
        with phase(f"reading {config.data_name()}", progress=config.progress):
            dataset = load(config)
    with phase("splitting the edges", progress=config.progress):
        links = links_of(config, dataset)
    with phase("trivial methods", progress=config.progress):
        trivial = trivial_scores(
            dataset, links.split.test, links.examinations["test"], config.hits_k
        )
    model = make_model(config, dataset.features.shape[1])
    steps = _steps(config, dataset, links)
    place(model, links.training.nodes.graph)
    training = Training(
        model,
        optimizer_of(config),
        steps.loss,
        steps.batches,
        steps.first,
        loop_of(config, steps.per_epoch),
        Scores(links.examinations, config.hits_k),
    )
    result, run = train_in_folder(config, training, MAY_CHANGE)
    outcome = _outcome(config, result, run, trivial, steps.per_epoch)
    _report(config, links, outcome, run)
    return outcome


RESULTS = Path(__file__).parent / "results" / "links.jsonl"


def train_all(
    config: TrainConfig, repeats: Repeats = ONE_SEED, *, commit_results: bool = False
) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Args:
      config: the options of the runs.
      repeats: the seeds, and number of concurrent runs.
      commit_results: whether to add the scores to those that are stored with the code.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    check_alone(config, "train", {"--processes": repeats.processes > 1})
    outcomes = train_seeds(train, config, repeats)
    finish_seeds(
        repeats,
        lambda note: _table(config, outcomes, note),
        _rows(config, outcomes),
        RESULTS if commit_results else None,
    )
    return outcomes


def _test_scores(config: TrainConfig, outcomes: list[Outcome]) -> dict[str, list[dict[str, float]]]:
    """Test scores of each seed, by the name of the method: those without a network first."""
    scores = {name: [outcome.trivial[name] for outcome in outcomes] for name in outcomes[0].trivial}
    scores[config.label()] = [outcome.test for outcome in outcomes]
    return scores


def _rows(config: TrainConfig, outcomes: list[Outcome]) -> list[Row]:
    """A row for each method, with the list of each score over the seeds."""
    common = {"experiment": "links", "data": config.data_name()}
    common |= {"read_validation": config.read_validation}
    return [
        {**common, "method": method, **{name: [s[name] for s in scores] for name in scores[0]}}
        for method, scores in _test_scores(config, outcomes).items()
    ]


def _table(config: TrainConfig, outcomes: list[Outcome], note: str) -> Table:
    """Scores of the network and of methods without one, over the seeds."""
    columns = dict.fromkeys(outcomes[0].test, 2)
    percent = {
        method: [[100 * each[name] for each in scores] for name in columns]
        for method, scores in _test_scores(config, outcomes).items()
    }
    return methods_table("Test scores on the same split, %", columns, percent, note)


class _Steps(NamedTuple):
    """Steps of a training.

    Attributes:
      loss: of a model, a batch and random streams.
      batches: for ``fit``, the batch of each step or a loader.
      first: the first batch.
      per_epoch: number of steps of an epoch.
    """

    loss: Loss | SampledLoss
    batches: Any
    first: Any
    per_epoch: int


def _steps(config: TrainConfig, dataset: NodeDataset, links: Links) -> _Steps:
    """Steps on the whole graph, or on batches of edges."""
    if config.sample:
        loader = loader_of(config, dataset, links)
        return _Steps(SampledLoss(config.input_dropout), loader, loader.batch(0, 0), len(loader))
    loss = Loss(config.input_dropout, config.negatives_per_edge, config.negatives == "source")
    return _Steps(loss, lambda _: links.training, links.training, 1)


def _outcome(
    config: TrainConfig,
    result: FitResult,
    run: RunFolder,
    trivial: dict[str, dict[str, float]],
    steps_per_epoch: int,
) -> Outcome:
    best = result.best
    assert best is not None
    title = f"{config.data_name()}, {config.label()}, seed {config.seed}"
    curves = {config.label(): result.history}
    plot_curves(curves, run.path / "curves.png", title=title, best={config.label(): best.step})
    by_part = {
        part: {
            name.removeprefix(f"{part} "): value
            for name, value in best.metrics.items()
            if name.startswith(f"{part} ")
        }
        for part in ("test", "validation")
    }
    epoch, pace = best.step // steps_per_epoch, result.ms_per_step
    run.write_json("result.json", {"metric": config.metric(), "epoch": epoch, **by_part})
    return Outcome(
        **by_part,
        epoch=epoch,
        ms_per_epoch=None if pace is None else pace * steps_per_epoch,
        history=result.history,
        trivial=trivial,
    )


def _report(config: TrainConfig, links: Links, outcome: Outcome, run: RunFolder) -> None:
    """Prints the result, and writes it to the report at the end."""
    split, metric = links.split, config.metric()
    counts = [
        f"{part.supervision.shape[1]:,} {name}"
        for name, part in (
            ("to train on", split.train),
            ("to validate by", split.validation),
            ("to test with", split.test),
        )
    ]
    print(f"{config.data_name()}: {split.num_nodes:,} nodes; pairs {', '.join(counts)}")
    pace = "" if outcome.ms_per_epoch is None else f", {outcome.ms_per_epoch:.1f} ms an epoch"
    best = f"best validation {metric} {outcome.validation[metric]:.4f} at epoch {outcome.epoch}"
    print(f"{config.label()}, seed {config.seed}: {best}{pace}")
    table = _table(config, [outcome], f"{config.candidates} candidates for the MRR; {best}")
    print(table.text())
    print(f"curves: {shown(run.path / 'curves.png')}")
    print(f"test {metric}: {outcome.test[metric]:.4f}")
    title = f"{config.data_name()}: {config.label()}, seed {config.seed}"
    finish(run.path, config.report, title=title, tables=[table])
