"""Tables of scores of trivial methods and networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from experiments._node_training import mean_of
from experiments._seeds import paired, summarize
from jaxgnn.training import Table

if TYPE_CHECKING:
    from experiments.graphs.train import Outcome

_AGAINST = "bag of nodes"


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
