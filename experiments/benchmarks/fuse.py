"""Times networks of plain JAX, jraph and jraphx, unmodified and rewritten by ``jaxgnn.fuse``.

``python -m experiments.benchmarks.fuse`` prints a line for each graph and network: milliseconds of
the function and all its gradients, unfused and fused, the ratio, and the ops that were inserted. It
appends the lines to ``fuse.jsonl``. Each line is printed as soon as it is measured. ``out of
memory`` marks a program that did not fit, with the bytes that XLA planned for it. A version written
with our ops is timed too, where it exists. The rows also have the time of rewriting with either
search, and the seconds of each stage, from the graph to the last measurement.

Longer edge lists are arguments of all compiled programs, fused and unfused, as in
``jaxgnn.fuse.jit``. XLA would evaluate constants at compile time, for minutes on a large graph.

The work runs in a separate process. A stage that takes longer than a second is printed by name. A
network that exceeds ``--case-limit`` is stopped, even while XLA compiles; its line names the stage,
and the next network follows. On the small graphs fusing must not slow anything down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments._plain_networks import NAMES, Edges, PlainNetwork, available, plain_network
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Output, Row, append_rows
from experiments.benchmarks._watched import Begun, Device, Measured, Stopped, Watched
from experiments.benchmarks._workloads import Workload, forget_graphs, like
from jaxgnn._errors import bad_input
from jaxgnn.fusion import explain, fuse
from jaxgnn.fusion.program.constants import opened
from jaxgnn.testing.timing import (
    Candidate,
    device_description,
    is_out_of_memory,
    measure_in_turns,
)

GRAPHS: dict[str, Workload] = {
    "empty": Workload("empty", 3_000, 0, dim=64),
    "tiny": Workload("tiny", 30, 64, dim=16),
    "molecules": Workload("molecules", 3_000, 6_400, dim=64),
    "sudoku": Workload("sudoku", 81 * 64, 1_620 * 64, dim=96),
    "uniform": Workload("uniform", 20_000, 1_000_000, dim=256),
    "flickr": like("flickr", dim=256),
    "reddit": like("reddit", dim=256),
}
# Networks with a target. Only these run on a graph of a hundred million edges, because each takes
# seconds to prepare.
_ON_REDDIT = (
    "jraph.GraphConvolution",
    "jraph.GAT",
    "jraphx.GCNConv",
    "jraphx.GATConv",
    "maxk",
)
_PATIENCE = 1.0  # seconds of a stage before it is printed


@dataclass(frozen=True)
class FuseOptions(Output):
    """Settings of a run.

    Attributes:
      graphs: names among empty, tiny, molecules, sudoku, uniform, flickr and reddit; by default
        tiny, molecules and uniform, with flickr instead of uniform on a GPU.
      models: names of networks; by default all, and a few on reddit.
      budget: milliseconds of timing for each line.
      limit: seconds after which everything is stopped; cases that did not run are named.
      case_limit: seconds after which one network on one graph is stopped, and the next one begins;
        the first one of a process also builds the graph.
    """

    graphs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    budget: float = 1_000.0
    limit: float = 180.0
    case_limit: float = 90.0

    def check(self) -> None:
        """Raises ValueError for an unknown graph or network, or a limit that is not positive."""
        for option, given, known in (
            ("--graphs", self.graphs, tuple(GRAPHS)),
            ("--models", self.models, NAMES),
        ):
            for name in given:
                if name not in known:
                    raise bad_input("fuse", option, f"among {', '.join(known)}", repr(name))
        for option, seconds in (("--limit", self.limit), ("--case-limit", self.case_limit)):
            if not seconds > 0:
                raise bad_input("fuse", option, "more than 0 seconds", seconds)


# -- in the process that measures --------------------------------------------------------------


def measurements(options: FuseOptions, done: int) -> Iterator[Device | Begun | Measured]:
    """Measures each network on each graph, except the first ``done`` of them.

    Yields:
      The device with all cases; then for each case its stages, as they begin, and its row.
    """
    yield Device(device_description(), _cases(options))
    made: tuple[str, Edges] | None = None
    for name, model in _cases(options)[done:]:
        workload, stages = GRAPHS[name], Stages()
        if made is None or made[0] != name:
            yield stages.begin("making the graph")
            made = name, _edges(workload)
        edges = made[1]
        yield stages.begin("drawing parameters")
        network = plain_network(model, edges, workload.dim)
        labels = {"edges": int(edges.senders.size), "dim": workload.dim}
        row = yield from _measured(network, options, stages)
        yield Measured({"workload": name, "model": model} | labels | row | stages.end())


@dataclass
class Stages:
    """Seconds of the stages of a case.

    Attributes:
      seconds: seconds of the finished stages.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _running: tuple[str, float] | None = None

    def begin(self, stage: str) -> Begun:
        """Ends the current stage, and begins another one."""
        self.end()
        self._running = stage, time.perf_counter()
        return Begun(stage)

    def end(self) -> Row:
        """Ends the current stage; returns the seconds of all, for a row."""
        if self._running is not None:
            stage, start = self._running
            self.seconds[stage] = time.perf_counter() - start
            self._running = None
        return {"stages": dict(self.seconds)}


def _cases(options: FuseOptions) -> list[tuple[str, str]]:
    """The graphs and networks to time, graph by graph."""
    is_gpu = jax.default_backend() != "cpu"
    graphs = options.graphs or ("tiny", "molecules", "flickr" if is_gpu else "uniform")
    here = available()
    models = {g: options.models or (_ON_REDDIT if g == "reddit" else NAMES) for g in graphs}
    return [(g, name) for g in graphs for name in models[g] if name in here]


def _edges(workload: Workload) -> Edges:
    """A graph's edges in random order, as they might come from a file."""
    if workload.edges == 0:
        none = jnp.zeros(0, jnp.int32)
        return Edges(none, none, workload.nodes)
    graph = workload.graph()
    ends = graph.indices, graph.receivers()
    if jax.default_backend() == "cpu":
        order = np.random.default_rng(0).permutation(graph.num_edges)
        shuffled = [jnp.asarray(np.asarray(ids)[order]) for ids in ends]
    else:
        order = jax.random.permutation(jax.random.key(0), graph.num_edges)
        shuffled = [jnp.asarray(ids)[order] for ids in ends]
    forget_graphs()
    senders, receivers = jax.block_until_ready(shuffled)
    return Edges(senders, receivers, workload.nodes)


def _with_gradients(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
    def total(*args: Any) -> Any:
        return jnp.sum(fn(*args) ** 2)

    return jax.value_and_grad(total, argnums=tuple(range(count)))


def _measured(network: PlainNetwork, options: FuseOptions, stages: Stages) -> Iterator[Begun | Any]:
    """Yields the stages of a network, then its row."""
    functions = {"fused": fuse(network.run), "plain": network.run}
    if network.by_hand is not None:
        functions["hand"] = network.by_hand
    yield stages.begin("preparing the graph and rewriting")
    applied = explain(network.run, *network.arrays).findings.applied
    yield stages.begin("rewriting again")
    row = _rewriting_times(network)
    ops = dict.fromkeys(one.note.rpartition("-> ")[2] for one in applied)
    candidates: dict[str, Candidate] = {}
    for name, function in functions.items():
        made = yield from _compiled(name, function, network.arrays, stages)
        row[f"{name}_bytes"] = made.planned
        row[f"{name}_ms"] = None
        if made.candidate is not None:
            candidates[name] = made.candidate
    yield stages.begin("measuring")
    times = measure_in_turns(candidates, repeats=7, budget_ms=options.budget)
    row |= {f"{name}_ms": None if t is None else t.median_ms for name, t in times.items()}
    row |= {f"{name}_least_ms": t.min_ms for name, t in times.items() if t is not None}
    return row | {"ops": list(ops)}


class _Compiled(NamedTuple):
    """A program, and the bytes that XLA plans for it with its arguments.

    ``candidate`` is None if that exceeds the memory, ``planned`` if XLA failed before planning.
    """

    candidate: Candidate | None
    planned: int | None


def _compiled(
    name: str, function: Callable[..., Any], arrays: tuple[Any, ...], stages: Stages
) -> Iterator[Begun | Any]:
    """Compiles a function and its gradients, with the edge list as arguments."""
    planned = None
    try:
        yield stages.begin(f"tracing {name}")
        parts = opened(jax.jit(_with_gradients(function, len(arrays))).trace(*arrays))
        args = (parts.constants, *arrays)
        yield stages.begin(f"compiling {name}")
        analysis: Any = jax.jit(parts.run).lower(*args).compile().memory_analysis()
        planned = (
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            + analysis.temp_size_in_bytes
        )
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return _Compiled(None, planned)
    return _Compiled(Candidate(parts.run, [args]) if _fits(planned) else None, planned)


def _fits(planned: int) -> bool:
    """Whether memory may suffice; always on a GPU, which reports an error, unlike a host."""
    if jax.default_backend() != "cpu":
        return True
    return planned < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rewriting_times(network: PlainNetwork) -> Row:
    """Milliseconds for tracing and rewriting, with a graph that is already prepared."""
    start = time.perf_counter()
    explain(network.run, *network.arrays)
    return {"matcher_rewriting_ms": 1e3 * (time.perf_counter() - start)}


# -- in the process that prints ----------------------------------------------------------------


@dataclass
class _Watch:
    """State of the other process: its stage, since when, and its deadline.

    Attributes:
      over: time at which everything is stopped, of ``time.monotonic``.
      case_limit: seconds for a case.
      began: start of the case, or of the process before its first case.
      has_started: whether the process has started; its start counts for no case.
      stage: the current stage.
      is_printed: whether the stage was printed.
    """

    over: float
    case_limit: float
    began: float = field(default_factory=time.monotonic)
    has_started: bool = False
    stage: str = "starting"
    is_printed: bool = False

    def deadline(self) -> float:
        """The time at which the case is stopped."""
        return min(self.over, self.began + self.case_limit) if self.has_started else self.over

    def next_case(self) -> None:
        """Starts the clock of another case."""
        self.began, self.has_started = time.monotonic(), True
        self.stage, self.is_printed = "starting", False

    def hears(self, message: Begun | None) -> None:
        """Stores a stage that begins; with None, prints the current stage if it lasts."""
        if message is not None:
            self.stage, self.is_printed = message.stage, False
        elif not self.is_printed:
            print(f"  {time.monotonic() - self.began:5.1f} s  {self.stage}", flush=True)
            self.is_printed = True


def rows_of(options: FuseOptions) -> Iterator[Row]:
    """Yields a row for each case, as soon as it is measured; a stopped one names its stage.

    After a case that was stopped, a new process continues with the next one.
    """
    over = time.monotonic() + options.limit
    device: Device | None = None
    done = 0
    while device is None or (done < len(device.cases) and time.monotonic() < over):
        watch = _Watch(over, options.case_limit)
        with Watched(measurements, options, done) as process:
            try:
                for message in process.messages(watch.deadline, _PATIENCE):
                    if isinstance(message, Device):
                        device = message
                        watch.next_case()
                    elif isinstance(message, Measured) and device is not None:
                        done += 1
                        watch.next_case()
                        yield message.row | device.description
                    else:
                        watch.hears(message)
            except Stopped as reason:
                if device is None:
                    expected = f"enough for a process to start ({reason})"
                    raise bad_input("fuse", "--limit", expected, options.limit) from reason
                yield _left_out(device.cases[done], f"while {watch.stage}: {reason}")
                done += 1
    for case in device.cases[done:]:
        yield _left_out(case, "the time was over")


def _left_out(case: tuple[str, str], reason: str) -> Row:
    graph, model = case
    return {"workload": graph, "model": model, "left_out": reason}


def _time(row: Row, name: str) -> str:
    if (ms := row[f"{name}_ms"]) is not None:
        return f"{ms:.3f}"
    planned = row[f"{name}_bytes"]
    return "out of memory" if planned is None else f"out of memory ({planned / 1e9:.3g} GB)"


def _line(row: Row) -> str:
    title = f"{row['workload']:9} {row['model']:24}"
    if "left_out" in row:
        return f"{title} left out {row['left_out']}"
    before, after = row["plain_ms"], row["fused_ms"]
    ratio = "" if before is None or after is None else f"{before / after:.2f}x"
    hand = f"; by hand {_time(row, 'hand')} ms" if "hand_ms" in row else ""
    named = ", ".join(row["ops"]) or "left to XLA"
    rewriting = f"; rewritten in {row['matcher_rewriting_ms']:.0f} ms"
    long = [f"{k} {v:.1f} s" for k, v in row["stages"].items() if v >= _PATIENCE]
    stages = f"; {', '.join(long)}" if long else ""
    times = f"{_time(row, 'plain')} -> {_time(row, 'fused')} ms {ratio:8}"
    return f"{title} {times} {named}{hand}{rewriting}{stages}"


def main(options: FuseOptions) -> None:
    """Prints and appends the rows."""
    options.check()
    named = False
    for row in rows_of(options):
        if not named and "device" in row:
            print(row["device"], flush=True)
            named = True
        print(_line(row), flush=True)
        if "left_out" not in row:
            append_rows(options.rows / "fuse.jsonl", [row])


if __name__ == "__main__":
    command(main, FuseOptions, __doc__)
