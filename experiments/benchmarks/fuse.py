"""Times networks of plain JAX, jraph and jraphx as they are, and rewritten by ``jaxgnn.fuse``.

``python -m experiments.benchmarks.fuse`` prints a line for each graph and network: milliseconds of
the function and all its gradients, unfused and fused, the ratio, and the ops that took over, and
appends them to ``fuse.jsonl``. Each line is printed as soon as it is measured; ``out of memory`` is
what did not fit. Where there is a version that is written with our ops, it is timed, too. The rows
also have the time that rewriting takes with either search. Edge lists are constants of all
programs. On the small graphs nothing may be slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments._plain_networks import NAMES, Edges, PlainNetwork, available, plain_network
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from experiments.benchmarks._workloads import Workload, like
from jaxgnn._errors import bad_input
from jaxgnn.fusion import Search, explain, fuse
from jaxgnn.fusion._search import has_egglog
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns

GRAPHS: dict[str, Workload] = {
    "empty": Workload("empty", 3_000, 0, dim=64),
    "tiny": Workload("tiny", 30, 64, dim=16),
    "molecules": Workload("molecules", 3_000, 6_400, dim=64),
    "sudoku": Workload("sudoku", 81 * 64, 1_620 * 64, dim=96),
    "uniform": Workload("uniform", 20_000, 1_000_000, dim=256),
    "flickr": like("flickr", dim=256),
    "reddit": like("reddit", dim=256),
}
# On a graph of a hundred million edges what has a bar there: each takes seconds to prepare.
_ON_REDDIT = (
    "jraph.GraphConvolution",
    "jraph.GAT",
    "jraphx.GCNConv",
    "jraphx.GATConv",
    "maxk",
)


@dataclass(frozen=True)
class FuseOptions(Output):
    """What is timed.

    Attributes:
      graphs: names among empty, tiny, molecules, sudoku, uniform, flickr and reddit; if left out
        tiny, molecules and uniform, and flickr in the place of uniform on a GPU.
      models: names of networks; all if left out, on reddit a few.
      budget: milliseconds of timing for each line.
      limit: seconds after which no further line is begun; those that are left out are named.
    """

    graphs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    budget: float = 1_000.0
    limit: float = 180.0

    def check(self) -> None:
        """Raises ValueError for a graph or a network that there is not."""
        for option, given, known in (
            ("--graphs", self.graphs, tuple(GRAPHS)),
            ("--models", self.models, NAMES),
        ):
            for name in given:
                if name not in known:
                    raise bad_input("fuse", option, f"among {', '.join(known)}", repr(name))


def _with_gradients(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    def total(*args: Any) -> Any:
        return jnp.sum(fn(*args) ** 2)

    return jax.value_and_grad(total, argnums=tuple(range(count)))


def _cases(options: FuseOptions) -> list[tuple[str, str]]:
    """The graphs and networks that are to be timed, graph by graph."""
    is_gpu = jax.default_backend() != "cpu"
    graphs = options.graphs or ("tiny", "molecules", "flickr" if is_gpu else "uniform")
    here = available()
    models = {g: options.models or (_ON_REDDIT if g == "reddit" else NAMES) for g in graphs}
    return [(g, name) for g in graphs for name in models[g] if name in here]


def _edges(workload: Workload) -> Edges:
    """A graph's edges, in an order of their own, as they come from a file."""
    if workload.edges == 0:
        none = jnp.zeros(0, jnp.int32)
        return Edges(none, none, workload.nodes)
    graph = workload.graph()
    order = np.random.default_rng(0).permutation(graph.num_edges)
    ends = graph.indices, graph.receivers()
    senders, receivers = (jnp.asarray(np.asarray(ids)[order]) for ids in ends)
    return Edges(senders, receivers, workload.nodes)


def rows_of(options: FuseOptions) -> Iterator[Row]:
    """Measures each network on each graph, and gives a row for each, until the time is over."""
    start = time.monotonic()
    made: tuple[str, Edges] | None = None
    for name, model in _cases(options):
        labels: Row = {"workload": name, "model": model}
        if time.monotonic() - start > options.limit:
            yield labels | {"left_out": True}
            continue
        workload = GRAPHS[name]
        if made is None or made[0] != name:
            made = name, _edges(workload)
        edges = made[1]
        labels |= {"edges": int(edges.senders.size), "dim": workload.dim}
        yield labels | _measured(plain_network(model, edges, workload.dim), options)


def _measured(network: PlainNetwork, options: FuseOptions) -> Row:
    arrays = network.arrays
    functions = {"plain": network.run, "fused": fuse(network.run)}
    if network.by_hand is not None:
        functions["hand"] = network.by_hand
    applied = explain(network.run, *arrays).findings.applied
    candidates = {
        name: Candidate(_with_gradients(function, len(arrays)), [arrays])
        for name, function in functions.items()
    }
    made = measure_in_turns(candidates, repeats=7, budget_ms=options.budget)
    named = dict.fromkeys(one.note.rpartition("-> ")[2] for one in applied)
    times = {f"{name}_ms": None if t is None else t.median_ms for name, t in made.items()}
    return {**times, "ops": list(named), **_rewriting_times(network)}


def _rewriting_times(network: PlainNetwork) -> Row:
    """Milliseconds that tracing and rewriting take, of a graph that is prepared already."""
    searches: tuple[Search, ...] = ("matcher", "egglog") if has_egglog() else ("matcher",)
    times = {}
    for search in searches:
        start = time.perf_counter()
        explain(network.run, *network.arrays, search=search)
        times[f"{search}_rewriting_ms"] = 1e3 * (time.perf_counter() - start)
    return times


def _time(ms: float | None) -> str:
    return "out of memory" if ms is None else f"{ms:.3f}"


def _line(row: Row) -> str:
    title = f"{row['workload']:9} {row['model']:24}"
    if row.get("left_out"):
        return f"{title} left out: the time was over"
    before, after = row["plain_ms"], row["fused_ms"]
    ratio = "" if before is None or after is None else f"{before / after:.2f}x"
    hand = f"; by hand {_time(row['hand_ms'])} ms" if "hand_ms" in row else ""
    named = ", ".join(row["ops"]) or "left to XLA"
    rewriting = f"; rewritten in {row['matcher_rewriting_ms']:.0f} ms"
    if "egglog_rewriting_ms" in row:
        rewriting += f", with egglog {row['egglog_rewriting_ms']:.0f}"
    return f"{title} {_time(before)} -> {_time(after)} ms {ratio:8} {named}{hand}{rewriting}"


def main(options: FuseOptions) -> None:
    """Prints and appends the rows."""
    options.check()
    device = device_description()
    print(device, flush=True)
    for row in rows_of(options):
        print(_line(row), flush=True)
        if not row.get("left_out"):
            append_rows(options.rows / "fuse.jsonl", [row | device])


if __name__ == "__main__":
    command(main, FuseOptions, __doc__)
