"""Training runs, from options to a picture of their curves."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from experiments._baselines import BaselineScore
from experiments._node_tables import baselines_table
from experiments._node_training import (
    Caption,
    Epochs,
    Outcome,
    confusion_of,
    loop_of,
    optimizer_of,
    outcome_of,
    report_outcome,
    trace_loss,
)
from experiments._nodes import Loss, Scores, predict
from experiments._runs import discard, in_own_folder
from experiments._sampled_nodes import SampledEpochs, SampledLoss
from experiments._seeds import ONE_SEED, Repeats, run_all, summarize
from experiments.benchmarks._report import Row, append_rows
from experiments.relations.beside import features_of, scores_beside
from experiments.relations.config import TrainConfig
from experiments.relations.data import batch_of, load, loader_of, papers_of
from experiments.relations.networks import make_network
from jaxgnn.testing.timing import device_description
from jaxgnn.training import RunFolder, Table, fit, jit_apply, phase

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
    trace_loss(loss, model, first)
    with phase("methods without relations", progress=config.progress):
        beside = scores_beside(config, papers, features_of(batch, dataset.target))
    # All options are valid: only now are files written or removed.
    folder = config.run_folder()
    if config.fresh:
        discard(folder)
    run = RunFolder(folder, config, may_change=_MAY_CHANGE)
    scores, scored = Scores(papers, config.metric), jit_apply(predict)
    result = fit(
        model,
        optimizer_of(config),
        loss,
        epochs,
        config=loop_of(config, epochs.num_steps),
        evaluate=lambda model: scores(scored(model, batch)),
        run=run,
        progress=config.progress,
    )
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
    repeats.check("train")
    config.check()
    runs = repeats.of(config)
    if len(runs) > 1:
        runs = [in_own_folder(run) for run in runs]
    trained = run_all(train, runs, repeats.processes)
    found = _test_scores(config, trained)
    if commit_results:
        append_rows(RESULTS, _rows(config, repeats, found))
    if len(runs) > 1:
        print(f"\n{_table(config, repeats, found).text()}")
    return trained


def _test_scores(config: TrainConfig, trained: list[Trained]) -> dict[str, list[float]]:
    """Test scores of each seed, by the name of the method: the network last."""
    found = {name: [run.beside[name].test for run in trained] for name in trained[0].beside}
    return found | {config.label(): [run.outcome.test for run in trained]}


def _rows(config: TrainConfig, repeats: Repeats, found: dict[str, list[float]]) -> list[Row]:
    """A row for each method, with its score of each seed."""
    common = {"experiment": "relations", "papers": config.papers, "seeds": list(repeats.seeds)}
    common |= device_description()
    return [{**common, "method": name, config.metric: scores} for name, scores in found.items()]


def _table(config: TrainConfig, repeats: Repeats, found: dict[str, list[float]]) -> Table:
    """The scores over the seeds."""
    return Table(
        title="Test scores on the same split",
        columns=("method", f"test {config.metric}, %"),
        rows=tuple(
            (name, str(summarize([100 * score for score in scores])))
            for name, scores in found.items()
        ),
        note=f"mean ± standard deviation (seeds), seeds {' '.join(map(str, repeats.seeds))}",
    )
