"""Times each rule of ``jaxgnn.fuse`` alone, at several sizes, as ``fusion/policy.py`` needs it.

``python -m experiments.benchmarks.fuse_rules`` applies one rule to one small function, whether or
not the policy would, and prints a line for each size: the bytes that the rule counts, milliseconds
as written and rewritten, forward and with gradients, and both ratios. Rows are appended to
``fuse_rules.jsonl``. The policy applies a rule from the size at which no ratio is below 0.98.

Edge lists are arguments of both programs, as by ``jaxgnn.fuse.jit``. With ``--in-step`` the rule
does not know them, as under ``fuse(..., graph_arguments=...)``, so the plan of the graph is part of
the rewritten program and of its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import TensorProduct, separate_paths, spherical_harmonics
from jaxgnn.fusion.policy import Policy
from jaxgnn.fusion.program.constants import opened
from jaxgnn.fusion.rewriting import Applied, Rules
from jaxgnn.fusion.rules.table import RULES
from jaxgnn.fusion.transform import transformed
from jaxgnn.testing.timing import Candidate, device_description, measure_in_turns

Function = Callable[..., Any]


@dataclass(frozen=True)
class Size:
    """Size of a case.

    Attributes:
      nodes: number of nodes.
      edges: number of edges.
      width: features of a node, and of an edge.
      dtype: dtype of the features.
    """

    nodes: int
    edges: int
    width: int
    dtype: str = "float32"


SIZES: dict[str, tuple[Size, ...]] = {
    "cpu": (
        Size(1_000, 8_000, 32),
        Size(5_000, 50_000, 32),
        Size(20_000, 200_000, 64),
        Size(50_000, 500_000, 64),
    ),
    "gpu": (
        Size(10_000, 100_000, 64),
        Size(20_000, 200_000, 64),
        Size(20_000, 300_000, 128),
        Size(40_000, 320_000, 256, "bfloat16"),
        Size(50_000, 1_000_000, 128),
    ),
}


@dataclass(frozen=True)
class Ends:
    """The ends of the edges, int32 [edges], receivers sorted or not, and the number of nodes."""

    senders: jax.Array
    receivers: jax.Array
    nodes: int

    def sum(self, messages: Any, ids: Any = None) -> Any:
        """Sums messages at the receivers, or at ``ids``."""
        return jax.ops.segment_sum(messages, self.receivers if ids is None else ids, self.nodes)

    @property
    def list(self) -> Any:
        """The senders as a dense list [nodes, neighbours]; edges that do not fit are left out."""
        neighbours = self.senders.size // self.nodes
        return self.senders[: self.nodes * neighbours].reshape(self.nodes, neighbours)

    def softmax(self, logits: Any) -> Any:
        """Divides exponentials by their sum at the receivers, shifted by the maximum there."""
        largest = jax.ops.segment_max(logits, self.receivers, self.nodes)
        powers = jnp.exp(logits - largest[self.receivers])
        return powers / self.sum(powers)[self.receivers]


@dataclass(frozen=True)
class Case:
    """A function that one rule rewrites.

    Attributes:
      rule: the name of the rule.
      function: takes the ends of the edges and the arrays.
      shapes: takes a size and returns the shapes of the arrays.
      is_sorted: whether the receivers are sorted.
    """

    rule: str
    function: Function
    shapes: Callable[[Size], tuple[tuple[int, ...], ...]]
    is_sorted: bool = False


def _nodes(size: Size) -> tuple[int, ...]:
    return size.nodes, size.width


def _edges(size: Size) -> tuple[int, ...]:
    return size.edges, size.width


def _square(size: Size) -> tuple[int, ...]:
    return size.width, size.width


def _messages(ends: Ends, h: Any, first: Any, last: Any) -> Any:
    both = jnp.concatenate([h[ends.receivers], h[ends.senders]], axis=-1)
    return jax.nn.relu(both @ first) @ last


def _both_ends(ends: Ends, h: Any, first: Any, last: Any) -> Any:
    messages = _messages(ends, h, first, last)
    return jnp.concatenate([ends.sum(messages), ends.sum(messages, ends.senders)], axis=-1)


def _updated_edges(ends: Ends, e: Any, kernel: Any) -> Any:
    updated = jnp.tanh(e @ kernel)
    return ends.sum(updated), updated


def _gat(ends: Ends, x: Any, of_senders: Any, of_receivers: Any) -> Any:
    logits = jax.nn.leaky_relu((x @ of_senders)[ends.senders] + (x @ of_receivers)[ends.receivers])
    return ends.sum(x[ends.senders] * ends.softmax(logits)[:, None])


def _dot_attention(ends: Ends, query: Any, key: Any, value: Any) -> Any:
    logits = (query[ends.receivers] * key[ends.senders]).sum(-1)
    return ends.sum(value[ends.senders] * ends.softmax(logits)[:, None])


def _masked(ends: Ends, x: Any, w: Any) -> Any:
    is_kept = (jnp.arange(ends.senders.size) % 10 != 0)[:, None]
    return ends.sum(jnp.where(is_kept, x[ends.senders] * w, 0))


def _masked_list(ends: Ends, x: Any, w: Any) -> Any:
    is_kept = (jnp.arange(ends.list.size) % 10 != 0).reshape(*ends.list.shape, 1)
    weights = w[: ends.list.size].reshape(*ends.list.shape, 1)
    return jnp.where(is_kept, x[ends.list] * weights, 0).sum(1)


def _largest_entries(ends: Ends, x: Any) -> Any:
    values, columns = jax.lax.top_k(x, x.shape[1] // 8)
    kept = jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(values)
    return ends.sum(kept[ends.senders])


def _products(channels: int) -> TensorProduct:
    irreps = "+".join(f"{channels}x{irrep}" for irrep in ("0e", "1o", "2e"))
    return separate_paths(irreps, "0e+1o+2e", keep="0e+1o+2e")


def _tensor_products(ends: Ends, x: Any, vectors: Any, basis: Any, kernel: Any) -> Any:
    """The convolution of NequIP as e3nn-jax computes it: an einsum for each path."""
    channels = x.shape[1] // 9
    product = _products(channels)
    harmonics = spherical_harmonics(product.irreps_sh, vectors)
    sent, weights = x[ends.senders], basis @ kernel
    messages = []
    for path, own in zip(product.paths, product.weight_slices, strict=True):
        part = sent[:, product.irreps_in.slices[path.i_in]].reshape(sent.shape[0], channels, -1)
        harmonic = harmonics[:, product.irreps_sh.slices[path.i_sh]]
        table = jnp.asarray(product.table(path), x.dtype)
        moved = jnp.einsum("eui,ej,ijk->euk", part, harmonic, table)
        messages.append((moved * weights[:, own, None]).reshape(sent.shape[0], -1))
    return ends.sum(jnp.concatenate(messages, axis=1))


def _of_products(size: Size) -> tuple[tuple[int, ...], ...]:
    product = _products(max(size.width // 8, 1))
    basis, kernel = (size.edges, 8), (8, product.num_weights)
    return (size.nodes, product.irreps_in.dim), (size.edges, 3), basis, kernel


def _double(size: Size) -> tuple[int, ...]:
    return 2 * size.width, size.width


def _mlp(size: Size) -> tuple[tuple[int, ...], ...]:
    return _nodes(size), _double(size), _square(size)


CASES: dict[str, Case] = {
    "sum of neighbours": Case(
        "neighbour_sum", lambda g, x: g.sum(x[g.senders]), lambda s: (_nodes(s),)
    ),
    "sum of weighted neighbours": Case(
        "neighbour_sum",
        lambda g, x, w: g.sum(x[g.senders] * w),
        lambda s: (_nodes(s), (s.edges, 1)),
    ),
    "sum of 4 weighted columns": Case(
        "neighbour_sum",
        lambda g, x, w: g.sum(x[g.senders] * w),
        lambda s: ((s.nodes, 4), (s.edges, 1)),
    ),
    "sum of filtered neighbours": Case(
        "neighbour_sum",
        lambda g, x, w: g.sum(x[g.senders] * w),
        lambda s: (_nodes(s), _edges(s)),
    ),
    "sum of neighbours filtered by sorted edges": Case(
        "neighbour_sum",
        lambda g, x, w: g.sum(x[g.senders] * w),
        lambda s: (_nodes(s), _edges(s)),
        True,
    ),
    "sum of neighbours filtered by a kernel": Case(
        "neighbour_sum",
        lambda g, x, e, k, w: g.sum(x[g.senders] * (e @ k) * w),
        lambda s: (_nodes(s), (s.edges, 20), (20, s.width), (s.edges, 1)),
    ),
    "maximum of neighbours": Case(
        "neighbour_extreme",
        lambda g, x: jax.ops.segment_max(x[g.senders], g.receivers, g.nodes),
        lambda s: (_nodes(s),),
    ),
    "masked sum of weighted neighbours": Case(
        "neighbour_sum", _masked, lambda s: (_nodes(s), (s.edges, 1))
    ),
    "sum over a list": Case(
        "neighbour_list", lambda g, x: x[g.list].sum(1), lambda s: (_nodes(s),)
    ),
    "sum of 4 columns over a list": Case(
        "neighbour_list", lambda g, x: x[g.list].sum(1), lambda s: ((s.nodes, 4),)
    ),
    "masked sum over a list": Case(
        "neighbour_list", _masked_list, lambda s: (_nodes(s), (s.edges, 1))
    ),
    "maximum over a list": Case(
        "neighbour_list", lambda g, x: x[g.list].max(1), lambda s: (_nodes(s),)
    ),
    "sum of edges": Case("segments", lambda g, e: g.sum(e), lambda s: (_edges(s),)),
    "sum of sorted edges": Case("segments", lambda g, e: g.sum(e), lambda s: (_edges(s),), True),
    "sum of sorted products": Case(
        "segments",
        lambda g, x, e: g.sum(x[g.senders] * e),
        lambda s: (_nodes(s), _edges(s)),
        True,
    ),
    "sum of products": Case(
        "segments", lambda g, x, e: g.sum(x[g.senders] * e), lambda s: (_nodes(s), _edges(s))
    ),
    "sum of sorted edges that are kept": Case(
        "segments", _updated_edges, lambda s: (_edges(s), _square(s)), True
    ),
    "sum of edges that are kept": Case(
        "segments", _updated_edges, lambda s: (_edges(s), _square(s))
    ),
    "sum of sorted products with a matrix": Case(
        "segments", lambda g, e, k: g.sum(e @ k), lambda s: (_edges(s), _square(s)), True
    ),
    "maximum of sorted edges": Case(
        "segments",
        lambda g, e: jax.ops.segment_max(e, g.receivers, g.nodes),
        lambda s: (_edges(s),),
        True,
    ),
    "maximum of edges": Case(
        "segments",
        lambda g, e: jax.ops.segment_max(e, g.receivers, g.nodes),
        lambda s: (_edges(s),),
    ),
    "graph attention": Case("neighbour_sum", _gat, lambda s: (_nodes(s), (s.width,), (s.width,))),
    "dot-product attention": Case("neighbour_sum", _dot_attention, lambda s: (_nodes(s),) * 3),
    "sum of 16 columns with attention": Case(
        "neighbour_sum", _gat, lambda s: ((s.nodes, 16), (16,), (16,))
    ),
    "largest entries of neighbours": Case(
        "neighbour_sum", _largest_entries, lambda s: (_nodes(s),)
    ),
    "dense layer": Case(
        "fused_linear",
        lambda g, x, k, b: jax.nn.relu(x @ k + b),
        lambda s: (_nodes(s), _square(s), (s.width,)),
    ),
    "two dense layers": Case(
        "fused_mlp",
        lambda g, x, first, last: jax.nn.relu(x @ first) @ last,
        lambda s: (_nodes(s), _square(s), _square(s)),
    ),
    "softmax": Case("segment_softmax", lambda g, a: g.softmax(a), lambda s: ((s.edges,),)),
    "softmax of 4 heads": Case(
        "segment_softmax", lambda g, a: g.softmax(a), lambda s: ((s.edges, 4),)
    ),
    "messages": Case("edge_mlp", lambda g, *a: g.sum(_messages(g, *a)), _mlp),
    "messages of sorted edges": Case("edge_mlp", lambda g, *a: g.sum(_messages(g, *a)), _mlp, True),
    "messages at both ends": Case("edge_mlp", _both_ends, _mlp),
    "projection": Case("edge_projection", lambda g, *a: g.sum(_messages(g, *a)), _mlp),
    "projection of messages at both ends": Case("edge_projection", _both_ends, _mlp),
    "tensor products": Case("tensor_product_sum", _tensor_products, _of_products),
    "tensor products of sorted edges": Case(
        "tensor_product_sum", _tensor_products, _of_products, True
    ),
    "sum of features": Case(
        "edge_sum",
        lambda g, x, a: jnp.tanh((x[g.senders] * a).sum(-1)),
        lambda s: (_nodes(s), (s.width,)),
    ),
}


# The rules that take edge lists that are known only when the function runs.
IN_STEP = (
    *("neighbour_sum", "neighbour_extreme", "segments"),
    *("edge_mlp", "edge_projection", "edge_sum", "tensor_product_sum"),
)


@dataclass(frozen=True)
class RuleOptions(Output):
    """Options of the benchmark.

    Attributes:
      cases: parts of names of cases; all if left out.
      budget: milliseconds of timing for each line.
      smallest: whether only the smallest size is timed.
      in_step: whether edge lists are sorted in each call.
    """

    cases: tuple[str, ...] = ()
    budget: float = 300.0
    smallest: bool = False
    in_step: bool = False

    def check(self) -> None:
        """Raises ValueError for a name that is in no case."""
        for name in self.cases:
            if not any(name in case for case in CASES):
                expected = f"part of one of {', '.join(CASES)}"
                raise bad_input("fuse_rules", "--cases", expected, repr(name))


def ends_of(size: Size, *, is_sorted: bool) -> Ends:
    """Draws the ends of the edges uniformly."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, size.nodes, (2, size.edges), dtype=np.int32)
    receivers = np.sort(receivers) if is_sorted else receivers
    return Ends(jnp.asarray(senders), jnp.asarray(receivers), size.nodes)


@dataclass(frozen=True)
class Both:
    """A case as written and rewritten.

    Attributes:
      written: the function of the arrays.
      rewritten: the same function after its rule was applied.
      arrays: the arrays of floats.
      ids: the edge lists that are arguments of the functions after these arrays.
      applied: the rewrites.
    """

    written: Function
    rewritten: Function
    arrays: list[jax.Array]
    ids: list[jax.Array]
    applied: Sequence[Applied]


def both(name: str, size: Size, *, in_step: bool = False) -> Both:
    """Applies the rule of a case, and no other rule.

    With ``in_step`` it does not know the edge lists.

    Raises:
      RuntimeError: if the rule does not apply.
    """
    case = CASES[name]
    ends = ends_of(size, is_sorted=case.is_sorted)
    shapes = case.shapes(size)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arrays = [jax.random.normal(k, s, size.dtype) / 8 for k, s in zip(keys, shapes, strict=True)]
    ids = [ends.senders, ends.receivers] if in_step else []

    def function(*given: Any) -> Any:
        arrays, lists = given[: len(shapes)], given[len(shapes) :]
        given_ends = Ends(lists[0], lists[1], size.nodes) if in_step else ends
        return case.function(given_ends, *arrays)

    closed = jax.make_jaxpr(function)(*arrays, *ids)
    rules = Rules([r for r in RULES if r.name == case.rule], Policy(only_if_faster=False))
    program, findings = transformed(closed, rules, {})
    if not findings.applied:
        raise RuntimeError(f"{name}: the rule {case.rule} did not apply: {findings.refused}")
    functions = jex.jaxpr_as_fun(closed), jex.jaxpr_as_fun(program.closed())
    return Both(*functions, arrays, ids, findings.applied)


def measured(name: str, size: Size, budget_ms: float, *, in_step: bool = False) -> Row:
    """Times one case at one size, as written and rewritten."""
    made = both(name, size, in_step=in_step)
    row: Row = {"case": name, "rule": CASES[name].rule} | dataclasses.asdict(size)
    row["in_step"] = in_step
    given = *made.arrays, *made.ids
    row["bytes"] = sum(one.bytes_before for one in made.applied)
    row["bytes_after"] = sum(one.bytes_after for one in made.applied)
    for direction, wrap in (("forward", _forward), ("gradient", _gradient)):
        candidates = {}
        for which, function in (("written", made.written), ("rewritten", made.rewritten)):
            parts = opened(jax.jit(wrap(function, len(made.arrays))).trace(*given))
            candidates[which] = Candidate(parts.run, [(parts.constants, *given)])
        times = measure_in_turns(candidates, repeats=7, batch_ms=5.0, budget_ms=budget_ms)
        for which, time in times.items():
            row[f"{direction}_{which}_ms"] = None if time is None else time.median_ms
            row[f"{direction}_{which}_least_ms"] = None if time is None else time.min_ms
    return row


def _forward(function: Function, count: int) -> Function:
    return function


def _gradient(function: Function, count: int) -> Function:
    def total(*arrays: Any) -> Any:
        return sum(jnp.sum(y.astype(jnp.float32) ** 2) for y in function(*arrays))

    return jax.value_and_grad(total, argnums=tuple(range(count)))


def _ratio(direction: str) -> Callable[[Row], float]:
    return lambda row: row[f"{direction}_written_ms"] / row[f"{direction}_rewritten_ms"]


COLUMNS = (
    Column("case", "case", 38),
    Column("nodes", "nodes", 7),
    Column("edges", "edges", 9),
    Column("width", "width", 6),
    Column("dtype", "dtype", 9),
    Column("MiB", lambda row: row["bytes"] / 2**20, 8, ".4g"),
    Column("forward ms", "forward_written_ms", 11, ".4g"),
    Column("ratio", _ratio("forward"), 6, ".2f"),
    Column("gradient ms", "gradient_written_ms", 12, ".4g"),
    Column("ratio", _ratio("gradient"), 6, ".2f"),
)


def rows_of(options: RuleOptions) -> Iterator[Row]:
    """Times each case at each size."""
    sizes = SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]
    for name in CASES:
        if options.cases and not any(part in name for part in options.cases):
            continue
        if options.in_step and CASES[name].rule not in IN_STEP:
            continue
        for size in sizes[:1] if options.smallest else sizes:
            row = measured(name, size, options.budget, in_step=options.in_step)
            yield row | device_description()


def main(options: RuleOptions) -> None:
    """Prints and appends the rows."""
    options.check()
    print(header(COLUMNS), flush=True)
    for row in rows_of(options):
        print(line(row, COLUMNS), flush=True)
        append_rows(options.rows / "fuse_rules.jsonl", [row])


if __name__ == "__main__":
    command(main, RuleOptions, __doc__)
