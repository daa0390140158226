"""Training runs, from options to a picture of their curves."""

from __future__ import annotations

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
from experiments.relations.beside import table_beside
from experiments.relations.config import TrainConfig
from experiments.relations.data import batch_of, load, loader_of, papers_of
from experiments.relations.networks import make_network
from jaxgnn.training import RunFolder, fit, jit_apply, phase

# Options that a resumed run may change.
_MAY_CHANGE = ("epochs", "run", "fresh", "progress", "checkpoint_every", "report")


def train(config: TrainConfig) -> Outcome:
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
        beside = table_beside(config, dataset, papers, batch)
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
    print(beside.text())
    confusion = confusion_of(result, papers, batch)
    report_outcome(outcome, run, caption, config.report, tables=[beside], confusion=confusion)
    return outcome


def train_all(config: TrainConfig, repeats: Repeats = ONE_SEED) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Raises:
      ValueError: if an option is invalid.
    """
    repeats.check("train")
    config.check()
    runs = repeats.of(config)
    if len(runs) > 1:
        runs = [in_own_folder(run) for run in runs]
    outcomes = run_all(train, runs, repeats.processes)
    if len(runs) > 1:
        scores = summarize([100 * outcome.test for outcome in outcomes])
        print(f"{config.label()}, seeds {' '.join(map(str, repeats.seeds))}")
        print(f"test {config.metric}: {scores} %")
    return outcomes
