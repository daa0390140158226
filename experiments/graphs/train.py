"""One training run or several, from options to a picture of their curves."""

from __future__ import annotations

from experiments._driver import Training, train_in_folder, train_seeds
from experiments._nodes import num_parameters
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats
from experiments.graphs.config import GraphsConfig
from experiments.graphs.data import Batches, load
from experiments.graphs.networks import GraphNetwork
from experiments.graphs.setup import Loss, Scores, loop_of, optimizer_of
from experiments.graphs.tables import Outcome, scores_table
from experiments.graphs.task import Task, task_of
from experiments.graphs.trivial import trivial_scores
from jaxgnn.datasets import GraphsDataset
from jaxgnn.training import FitResult, RunFolder, phase, plot_curves

# Options that a resumed run may change: they do not change the result. The learning rate falls to
# zero at the last epoch, so that another number of epochs is another run.
_MAY_CHANGE = ("run", "fresh", "progress", "data", "checkpoint_every", "report", "devices")


def train(config: GraphsConfig, dataset: GraphsDataset | None = None) -> Outcome:
    """Trains one network and writes its report, curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data with its split, if it is loaded already.

    Raises:
      ValueError: if an option or a data file is invalid.
      FloatingPointError: if no evaluation was finite.
    """
    config.check()
    if dataset is None:
        with phase(f"reading {config.data_name()}", progress=config.progress):
            dataset = load(config)
    task = task_of(dataset, config.metric)
    with phase("trivial methods", progress=config.progress):
        trivial = trivial_scores(dataset, task)
    with phase("preparing batches", progress=config.progress):
        batches = Batches.of(
            dataset, config.batch_size, config.epochs, config.seed, devices=config.devices
        )
        scores = Scores(dataset, batches, task)
    training = Training(
        GraphNetwork(config, dataset, task.outputs),
        optimizer_of(config, batches),
        Loss(task),
        batches,
        batches(1),
        loop_of(config, batches, task),
        scores,
        config.mesh(),
    )
    result, run = train_in_folder(config, training, _MAY_CHANGE)
    outcome = _outcome(config, task, batches, result, trivial)
    _report(config, dataset, outcome, run)
    return outcome


def train_all(config: GraphsConfig, repeats: Repeats = ONE_SEED) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    outcomes = train_seeds(train, config, repeats)
    if len(outcomes) > 1:
        table = scores_table(config.data_name(), {config.label(): outcomes})
        print(f"\n{table.text()}")
    return outcomes


def _outcome(
    config: GraphsConfig,
    task: Task,
    batches: Batches,
    result: FitResult,
    trivial: dict[str, float],
) -> Outcome:
    best, pace = result.best, result.ms_per_step
    assert best is not None
    return Outcome(
        label=config.label(),
        task=task,
        parameters=num_parameters(result.model),
        test=best.metrics[f"test {task.metric}"],
        validation=best.metrics[f"validation {task.metric}"],
        epoch=best.step // batches.per_epoch,
        step=best.step,
        ms_per_epoch=None if pace is None else pace * batches.per_epoch,
        history=result.history,
        trivial=trivial,
    )


def _report(config: GraphsConfig, dataset: GraphsDataset, outcome: Outcome, run: RunFolder) -> None:
    """Draws the curves, prints the result, and writes it to the report at the end."""
    data, metric, label = config.data_name(), outcome.task.metric, config.label()
    title = f"{data}: {label}, seed {config.seed}"
    curves = run.path / "curves.png"
    plot_curves({label: outcome.history}, curves, title=title, best={label: outcome.step})
    numbers = {name: getattr(outcome, name) for name in ("test", "validation", "epoch")}
    run.write_json("result.json", {"metric": metric, **numbers, "trivial": outcome.trivial})
    parts = [f"{getattr(dataset, part).size:,} {part}" for part in ("train", "validation", "test")]
    print(f"{data}: {dataset.num_graphs:,} graphs: {', '.join(parts)}")
    pace = "" if outcome.ms_per_epoch is None else f", {outcome.ms_per_epoch:.1f} ms an epoch"
    reached = f"best validation {metric} {outcome.validation:.4f} at epoch {outcome.epoch}"
    print(f"{label}, seed {config.seed}: {reached}{pace}")
    table = scores_table(data, {label: [outcome]})
    print(table.text())
    print(f"curves: {shown(curves)}")
    print(f"test {metric}: {outcome.test:.4f}")
    finish(run.path, config.report, title=title, tables=[table])
