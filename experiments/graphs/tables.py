"""Results of runs, and tables of scores of trivial methods and networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments._node_training import mean_of
from experiments._seeds import paired, summarize
from experiments.graphs.task import Task
from jaxgnn.training import Table

_AGAINST = "bag of nodes"


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: names the run in tables and pictures.
      task: the task and its score.
      parameters: number of trained parameters.
      test: the score of the test graphs at the best validation epoch.
      validation: the score of the validation graphs there.
      epoch: the epoch of that evaluation.
      step: the step of that evaluation; an epoch has one step for each batch.
      ms_per_epoch: mean time of the training steps of an epoch; None if the run was already
        complete.
      history: a row for each step.
      trivial: the test score of each method without a network, by its name.
    """

    label: str
    task: Task
    parameters: int
    test: float
    validation: float
    epoch: int
    step: int
    ms_per_epoch: float | None
    history: list[dict[str, float]]
    trivial: dict[str, float]


def scores_table(data: str, outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """A row for each trivial method and each network, over the same seeds.

    Args:
      data: name of the dataset.
      outcomes: the outcome of each seed, by the name of the network.
    """
    first = next(iter(outcomes.values()))
    task, count = first[0].task, len(first)
    scores = {
        name: [run.trivial[name] * task.percent for run in first] for name in first[0].trivial
    }
    networks = {name: [run.test * task.percent for run in runs] for name, runs in outcomes.items()}
    against = scores.get(_AGAINST)

    def summary(values: Sequence[float]) -> str:
        return str(summarize(values, digits=task.digits))

    def margin(values: Sequence[float]) -> str:
        if against is None:
            return "-"
        return str(paired(values, against, digits=task.digits))

    rows = [(name, "-", summary(values), "-", "-") for name, values in scores.items()]
    for name, values in networks.items():
        pace = mean_of([run.ms_per_epoch for run in outcomes[name]])
        shown = "-" if math.isnan(pace) else f"{pace:.1f}"
        parameters = f"{outcomes[name][0].parameters:,}"
        rows.append((name, parameters, summary(values), margin(values), shown))
    note = "mean ± standard deviation (seeds); margin [95 % interval of Student's t]"
    return Table(
        title=f"{data}: test {task.metric}",
        columns=(
            "method",
            "parameters",
            f"test {task.unit}",
            f"against {_AGAINST}" + ("" if task.is_error else ", points"),
            "ms an epoch",
        ),
        rows=tuple(rows),
        note=note if count > 1 else "one seed",
    )
