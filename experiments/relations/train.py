"""Training runs, from options to a picture of their curves."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from experiments._baselines import BaselineScore
from experiments._driver import (
    Training,
    finish_seeds,
    methods_table,
    train_in_folder,
    train_seeds,
)
from experiments._node_tables import baselines_table
from experiments._node_training import (
    Caption,
    Epochs,
    Outcome,
    SampledEpochs,
    SampledLoss,
    confusion_of,
    loop_of,
    optimizer_of,
    outcome_of,
    report_outcome,
)
from experiments._nodes import Loss, Scores, predict
from experiments._seeds import ONE_SEED, Repeats
from experiments.relations.beside import features_of, scores_beside
from experiments.relations.config import TrainConfig
from experiments.relations.data import batch_of, load, loader_of, papers_of
from experiments.relations.networks import make_network
from jaxgnn.training import jit_apply, phase

# Options that a resumed run may change.
_MAY_CHANGE = ("epochs", "run", "fresh", "progress", "checkpoint_every", "report")


class Trained(NamedTuple):
    """Results of a run.

    Attributes:
      outcome: those of the network.
      beside: the scores of methods that read neither authors nor venues, by name.
    """

    outcome: Outcome
    beside: dict[str, BaselineScore]


def train(config: TrainConfig) -> Trained:
    """Trains one network and writes its report, curves, metrics and checkpoints to the run folder.

    Raises:
      ValueError: if an option is invalid.
      FloatingPointError: if no evaluation was finite.
    """
    config.check()
    with phase("making the graph", progress=config.progress):
        dataset = load(config)
        papers = papers_of(dataset)
        batch = batch_of(dataset, papers)
    loss, epochs, first = Loss(config.input_dropout), Epochs(batch), batch
    if config.sample:
        loader = loader_of(config, dataset, batch)
        loss, epochs = SampledLoss(config.input_dropout), SampledEpochs(batch, loader)
        first = loader.batch(0, 0)
    model = make_network(config, dataset, batch.graph)
    with phase("methods without relations", progress=config.progress):
        beside = scores_beside(config, papers, features_of(batch, dataset.target))
    scores, scored = Scores(papers, config.metric), jit_apply(predict)
    training = Training(
        model,
        optimizer_of(config),
        loss,
        epochs,
        first,
        loop_of(config, epochs.num_steps),
        evaluate=lambda model: scores(scored(model, batch)),
    )
    result, run = train_in_folder(config, training, _MAY_CHANGE)
    caption = Caption(dataset.name, config.label(), config.label(), config.seed, config.metric)
    outcome = outcome_of(result, run, epochs, caption)
    table = baselines_table("Without authors and venues, same split", config.metric, beside)
    print(table.text())
    confusion = confusion_of(result, papers, batch)
    report_outcome(outcome, run, caption, config.report, tables=[table], confusion=confusion)
    return Trained(outcome, beside)


RESULTS = Path(__file__).parent / "results" / "relations.jsonl"


def train_all(
    config: TrainConfig, repeats: Repeats = ONE_SEED, *, commit_results: bool = False
) -> list[Trained]:
    """Trains a run for each seed, and prints their mean if there are several.

    Args:
      config: the options of the runs.
      repeats: the seeds, and number of concurrent runs.
      commit_results: whether to add the scores to those that are stored with the code.

    Raises:
      ValueError: if an option is invalid.
    """
    trained = train_seeds(train, config, repeats)
    scores = _test_scores(config, trained)
    title, column = "Test scores on the same split", f"test {config.metric}, %"
    percent = {name: [[100 * one for one in each]] for name, each in scores.items()}
    common = {"experiment": "relations", "papers": config.papers}
    finish_seeds(
        repeats,
        lambda note: methods_table(title, {column: 2}, percent, note),
        [{**common, "method": name, config.metric: each} for name, each in scores.items()],
        RESULTS if commit_results else None,
    )
    return trained


def _test_scores(config: TrainConfig, trained: list[Trained]) -> dict[str, list[float]]:
    """Test scores of each seed, by the name of the method: the network last."""
    beside = {name: [run.beside[name].test for run in trained] for name in trained[0].beside}
    return beside | {config.label(): [run.outcome.test for run in trained]}
