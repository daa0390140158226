"""Times neighbour sampling on the device: sampled edges a second, relabelling included.

``python -m experiments.benchmarks.sample_on_device`` makes a graph of the size of ogbn-products on
the device, with ``--graph papers`` one of ogbn-papers100M, and samples batches of it: each by
itself, and several at the same time. Capacities are measured first, as loaders do it. Each line has
the milliseconds of a batch, the edges a second, the bytes of the program's own memory and of its
results, and the seconds of its compilation. Where pylibcugraph is installed, its sampler takes
turns with ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._cugraph import CuGraph, Sources
from experiments.benchmarks._random_graph import SIZES, DeviceGraph, random_graph
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn._errors import bad_input
from jaxgnn.sampling import DeviceSample, Relabelling, sample_on_device
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns

Method = Literal["neighbour", "labor"]

SEED = 5
_MEASURED_BATCHES = 8
_INPUTS = 4  # sets of seeds that calls take in turns

COLUMNS = (
    Column("graph", "graph", 9),
    Column("fan-outs", lambda row: ",".join(map(str, row["fanouts"])), 9),
    Column("method", "method", 10),
    Column("candidate", "candidate", 12),
    Column("variant", lambda row: row.get("relabelling") or row["sources"], 7),
    Column("batches", "in_flight", 8, "d"),
    Column("ms/batch", "ms_per_batch", 9, ".3f"),
    Column("edges/batch", "edges_per_batch", 12, ",.0f"),
    Column("M edges/s", "million_edges_per_s", 10, ",.0f"),
    Column("own MB", lambda row: _megabytes(row, "temporary_bytes"), 8, ",.0f"),
    Column("result MB", lambda row: _megabytes(row, "result_bytes"), 9, ",.0f"),
    Column("compile s", "compile_s", 9, ".1f"),
)


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      graph: "products", "papers", or "small".
      fanouts: neighbours that each hop draws.
      batch_size: seeds of a batch.
      in_flight: numbers of batches that one call samples.
      relabelling: how local ids are found: "sort", "marks", or both.
      method: "neighbour" or "labor".
      repeats: number of timings of each.
    """

    graph: str = "products"
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 1024
    in_flight: tuple[int, ...] = (1, 4, 16)
    relabelling: tuple[Relabelling, ...] = get_args(Relabelling)
    method: Method = "neighbour"
    repeats: int = 7

    def __post_init__(self):
        super().__post_init__()
        if self.graph not in SIZES:
            raise bad_input("sampling", "--graph", f"one of {', '.join(SIZES)}", self.graph)
        if self.batch_size < 1 or self.repeats < 1 or min(self.in_flight, default=0) < 1:
            raise bad_input("sampling", "numbers", "positive", self)


class Program(NamedTuple):
    """A compiled sampler, its options, and the seconds of its compilation."""

    compiled: Any
    relabelling: Relabelling
    in_flight: int
    compile_s: float


@dataclass(frozen=True, eq=False)
class Workload:
    """Batches of one graph, with a capacity that holds them.

    Attributes:
      graph: the graph.
      fanouts: neighbours that each hop draws.
      method: "neighbour" or "labor".
      nodes: slots for nodes, see ``sample_on_device``.
      edges: slots for the edges of each hop.
      candidates: slots for the edges that "labor" chooses from in each hop.
      edges_per_batch: mean number of sampled edges.
    """

    graph: DeviceGraph
    fanouts: tuple[int, ...]
    method: Method
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    candidates: tuple[int, ...]
    edges_per_batch: float = 0.0

    @classmethod
    def measured(
        cls,
        graph: DeviceGraph,
        fanouts: tuple[int, ...],
        batch_size: int,
        method: Method = "neighbour",
    ) -> Workload:
        """Samples some batches with room for any, and takes their largest sizes plus a tenth."""
        nodes, edges = [batch_size], []
        for fanout in fanouts:
            edges.append(nodes[-1] * fanout)
            nodes.append(min(nodes[-1] + edges[-1], max(graph.num_nodes, batch_size)))
        most, factor = graph.indices.shape[0], 2 * (1 + graph.indices.shape[0] // graph.num_nodes)
        while True:
            candidates = tuple(min(most, rows * factor) for rows in nodes[:-1])
            widest = cls(graph, fanouts, method, tuple(nodes), tuple(edges), candidates)
            run = jax.jit(widest.sizes())
            drawn = [
                jax.device_get(run(*graph, *arrays))
                for arrays in batches(graph, batch_size, 1, _MEASURED_BATCHES)
            ]
            if not np.any([each[3] for each in drawn]):
                break
            factor *= 2  # nodes of many edges are found more often
        of_nodes, of_edges, of_candidates = (
            np.max([each[i] for each in drawn], axis=(0, 1)) for i in range(3)
        )
        return cls(
            graph,
            fanouts,
            method,
            (batch_size, *map(_padded, of_nodes[1:], nodes[1:])),
            tuple(map(_padded, of_edges, edges)),
            tuple(map(_padded, of_candidates, candidates)),
            float(np.mean([each[1].sum() for each in drawn])),
        )

    def sampler(self, relabelling: Relabelling) -> Callable[..., DeviceSample]:
        """A function of the graph's arrays, seeds [batches, seeds] and steps [batches]."""

        def sample(indptr, indices, seeds, steps):
            def one(seeds, step):
                return sample_on_device(
                    indptr,
                    indices,
                    seeds,
                    self.fanouts,
                    nodes=self.nodes,
                    edges=self.edges,
                    candidates=self.candidates,
                    method=self.method,
                    seed=SEED,
                    epoch=0,
                    step=step,
                    relabelling=relabelling,
                )

            if seeds.shape[0] > 1:
                return jax.vmap(one)(seeds, steps)
            return jax.tree.map(lambda leaf: leaf[None], one(seeds[0], steps[0]))

        return sample

    def sizes(self) -> Callable[..., Any]:
        """As ``sampler``, but the function returns the numbers of all alone."""

        def counted(*arrays):
            sample = self.sampler("sort")(*arrays)
            return sample.num_nodes, sample.num_edges, sample.num_candidates, sample.overflow

        return counted

    def program(self, relabelling: Relabelling, in_flight: int) -> Program:
        """Compiles the sampler of several batches at a time."""
        arrays = next(batches(self.graph, self.nodes[0], in_flight, 1))
        begin = time.perf_counter()
        compiled = jax.jit(self.sampler(relabelling)).lower(*self.graph, *arrays).compile()
        return Program(compiled, relabelling, in_flight, time.perf_counter() - begin)


def batches(
    graph: DeviceGraph, batch_size: int, in_flight: int, count: int
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Random distinct seeds of several batches at a time, and the numbers of their steps."""
    rng = np.random.default_rng(0)
    for i in range(count):
        seeds = [rng.choice(graph.num_nodes, batch_size, replace=False) for _ in range(in_flight)]
        steps = np.arange(i * in_flight, (i + 1) * in_flight, dtype=np.int32)
        yield jnp.asarray(np.stack(seeds), jnp.int32), jnp.asarray(steps)


def time_in_turns(
    workload: Workload, programs: Sequence[Program], peer: CuGraph | None, repeats: int
) -> Iterator[Row]:
    """Times programs of as many batches each, and a peer, in turns; yields the fields of rows."""
    graph, batch_size, in_flight = workload.graph, workload.nodes[0], programs[0].in_flight
    drawn = list(batches(graph, batch_size, in_flight, _INPUTS))
    common = {"fanouts": workload.fanouts, "method": workload.method, "in_flight": in_flight}
    common |= {"batch_size": batch_size}
    inputs = [(*graph, *arrays) for arrays in drawn]
    candidates: dict[str, Candidate] = {}
    about: dict[str, Row] = {}
    for program in programs:
        name = program.relabelling
        candidates[name] = Candidate(program.compiled, inputs, jit=False)
        about[name] = _facts(program, inputs) | {"edges_per_batch": workload.edges_per_batch}
    if peer is not None:
        for sources in get_args(Sources):
            candidates[sources], edges = peer.candidate(sources, [seeds for seeds, _ in drawn])
            about[sources] = {"candidate": "pylibcugraph", "sources": sources}
            about[sources] |= {"edges_per_batch": edges} | peer.versions
    for name, timing in measure_in_turns(candidates, repeats=repeats).items():
        if timing is None:
            print(f"no row of {name}, {in_flight} batches: out of memory")
            continue
        ms = timing.median_ms / in_flight
        speed = about[name]["edges_per_batch"] / ms / 1e3
        yield common | about[name] | {"ms_per_batch": ms, "million_edges_per_s": speed}


def main(options: Options) -> None:
    """Prints the table, and appends its rows to ``sample_on_device.jsonl``."""
    device = device_description()
    graph = jax.block_until_ready(random_graph(options.graph))
    num_edges = graph.indices.shape[0]
    print(f"{device['device']}: {graph.num_nodes:,} nodes, {num_edges:,} edges, ", end="")
    print(f"{graph.nbytes / 1e9:.2f} GB")
    workload = Workload.measured(graph, tuple(options.fanouts), options.batch_size, options.method)
    print(f"slots for nodes {workload.nodes}, for edges {workload.edges}")
    peer = cugraph_here(workload)
    print(header(COLUMNS))
    rows: list[Row] = []
    for in_flight in options.in_flight:
        programs = [workload.program(how, in_flight) for how in options.relabelling]
        for timed in time_in_turns(workload, programs, peer, options.repeats):
            row = {"op": "sample_on_device", "graph": options.graph, "nodes": graph.num_nodes}
            row |= {"edges": num_edges, **device} | timed
            print(line(row, COLUMNS), flush=True)
            rows.append(row)
    append_rows(options.rows / "sample_on_device.jsonl", rows)


def cugraph_here(workload: Workload) -> CuGraph | None:
    """The graph in pylibcugraph, with checked samples; None, with a reason, if there is none."""
    if workload.method != "neighbour":
        return None
    try:
        if jax.default_backend() != "gpu":
            raise NotImplementedError("it needs a GPU")
        peer = CuGraph(workload.graph, workload.fanouts)
        seeds, _ = next(batches(workload.graph, workload.nodes[0], 2, 1))
        peer.check(seeds)
    except Exception as error:  # an error in another library costs only its rows
        print(f"no rows of pylibcugraph: {error}", flush=True)
        return None
    return peer


def _facts(program: Program, inputs: Sequence[tuple]) -> Row:
    memory = program.compiled.memory_analysis()
    return {
        "candidate": "jaxgnn",
        "relabelling": program.relabelling,
        "temporary_bytes": memory.temp_size_in_bytes,
        "result_bytes": memory.output_size_in_bytes,
        "compile_s": program.compile_s,
        "overflows": sum(bool(program.compiled(*each).overflow.any()) for each in inputs),
    }


def _megabytes(row: Row, key: str) -> float | None:
    return row[key] / 1e6 if key in row else None


def _padded(size: int, most: int) -> int:
    return min(-(-int(size * 1.1) // 128) * 128, most)


if __name__ == "__main__":
    command(main, Options, __doc__)
