"""Times published graph networks in plain JAX as they are, and rewritten by ``jaxgnn.fuse``.

``python -m experiments.benchmarks.fuse_real`` prints a line for each network at the size of its
publication: milliseconds forward and with gradients, as written and rewritten, the seconds that
tracing and the first rewrite take, and the rules that applied. Rows are appended to
``fuse_real.jsonl``. Edge lists are arguments of both programs, as by ``jaxgnn.fuse.jit``.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments._plain_networks import Edges, PlainNetwork
from experiments._real_networks import NAMES, Shape, real_network
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn._errors import bad_input
from jaxgnn.fusion import explain, fuse
from jaxgnn.fusion.program.constants import opened
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns


@dataclass(frozen=True)
class Case:
    """A network at a size.

    Attributes:
      network: a name of ``experiments._real_networks``.
      nodes: number of nodes.
      edges: number of edges.
      shape: width, blocks and dtype.
    """

    network: str
    nodes: int
    edges: int
    shape: Shape


CASES: tuple[Case, ...] = (
    Case("graphcast", 40_962, 327_660, Shape(256, 4)),
    Case("graphcast", 40_962, 327_660, Shape(512, 4, "bfloat16")),
    Case("gns", 20_000, 473_180, Shape(128, 5)),
    Case("graph network", 50_000, 1_000_000, Shape(128, 1)),
    Case("painn", 10_000, 486_434, Shape(128, 3)),
    Case("cfconv", 10_000, 500_000, Shape(128, 1)),
    Case("nequip", 10_000, 240_000, Shape(32, 2)),
    Case("molecules", 2_600, 5_600, Shape(256, 5)),
    Case("potential", 10_000, 200_000, Shape(64, 2)),
)


@dataclass(frozen=True)
class RealOptions(Output):
    """Options of the benchmark.

    Attributes:
      networks: names of networks; all if left out.
      divide: number by which nodes and edges are divided, for a quick look.
      budget: milliseconds of timing for each line.
    """

    networks: tuple[str, ...] = ()
    divide: int = 1
    budget: float = 500.0

    def check(self) -> None:
        """Raises ValueError for an unknown network, and for a divisor below 1."""
        for name in self.networks:
            if name not in NAMES:
                raise bad_input("fuse_real", "--networks", f"among {', '.join(NAMES)}", repr(name))
        if self.divide < 1:
            raise bad_input("fuse_real", "--divide", "at least 1", self.divide)


def network_of(case: Case, divide: int = 1) -> PlainNetwork:
    """Builds the network of a case, with uniformly random edges sorted by receiver."""
    rng = np.random.default_rng(0)
    nodes, edges = max(case.nodes // divide, 2), max(case.edges // divide, 2)
    senders, receivers = rng.integers(0, nodes, (2, edges), dtype=np.int32)
    ends = jnp.asarray(senders), jnp.asarray(np.sort(receivers))
    return real_network(case.network, Edges(*ends, nodes), case.shape)


def _gradient(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    def total(*arrays: Any) -> Any:
        return jnp.sum(function(*arrays).astype(jnp.float32) ** 2)

    return jax.value_and_grad(total, argnums=tuple(range(count)))


def measured(case: Case, options: RealOptions) -> Row:
    """Times one network, as it is written and as ``fuse`` rewrites it."""
    network = network_of(case, options.divide)
    row: Row = {"network": case.network, "nodes": case.nodes, "edges": case.edges}
    row |= dataclasses.asdict(case.shape) | {"divide": options.divide}
    for name, run in (
        ("tracing_s", lambda: jax.make_jaxpr(network.run)(*network.arrays)),
        ("first_rewrite_s", lambda: explain(network.run, *network.arrays)),
        ("rewrite_s", lambda: explain(network.run, *network.arrays)),
    ):
        start = time.perf_counter()
        made: Any = run()
        row[name] = time.perf_counter() - start
    row["rules"] = dict(collections.Counter(one.rule for one in made.findings.applied))
    for direction in ("forward", "gradient"):
        candidates = {}
        for which, function in (("written", network.run), ("rewritten", fuse(network.run))):
            if direction == "gradient":
                function = _gradient(function, len(network.arrays))
            parts = opened(jax.jit(function).trace(*network.arrays))
            candidates[which] = Candidate(parts.run, [(parts.constants, *network.arrays)])
        times = measure_in_turns(candidates, repeats=7, budget_ms=options.budget)
        for which, made in times.items():
            row[f"{direction}_{which}_ms"] = None if made is None else made.median_ms
    return row


def _ratio(direction: str) -> Callable[[Row], float]:
    return lambda row: row[f"{direction}_written_ms"] / row[f"{direction}_rewritten_ms"]


COLUMNS = (
    Column("network", "network", 13),
    Column("nodes", "nodes", 7),
    Column("edges", "edges", 9),
    Column("width", "width", 6),
    Column("dtype", "dtype", 9),
    Column("forward ms", "forward_written_ms", 11, ".4g"),
    Column("ratio", _ratio("forward"), 6, ".2f"),
    Column("gradient ms", "gradient_written_ms", 12, ".4g"),
    Column("ratio", _ratio("gradient"), 6, ".2f"),
    Column("tracing s", "tracing_s", 10, ".3f"),
    Column("rewrite s", "first_rewrite_s", 10, ".3f"),
    Column("again s", "rewrite_s", 8, ".3f"),
    Column(" rules", lambda row: " " + ", ".join(f"{r} {n}" for r, n in row["rules"].items()), 1),
)


def rows_of(options: RealOptions) -> Iterator[Row]:
    """Yields a row with the times of each network that the options name."""
    for case in CASES:
        if not options.networks or case.network in options.networks:
            yield measured(case, options) | device_description()


def main(options: RealOptions) -> None:
    """Prints and appends the rows."""
    options.check()
    print(header(COLUMNS), flush=True)
    for row in rows_of(options):
        print(line(row, COLUMNS), flush=True)
        append_rows(options.rows / "fuse_real.jsonl", [row])


if __name__ == "__main__":
    command(main, RealOptions, __doc__)
