"""What graphs mean, said in a few lines of numpy, and random edge lists to try it on."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import hypothesis.strategies as st
import jax
import numpy as np

from jaxgnn.graph import CSRGraph


def edges_by_sender(graph: CSRGraph) -> tuple[np.ndarray, ...]:
    """Offsets of rows and of columns, then receiver and sender of each slot in senders' order.

    The sender of a padding slot does not exist.
    """
    plan = graph.made_plan()
    assert plan is not None
    indptr, by_sender = np.asarray(graph.indptr), np.asarray(plan.transposed_indptr)
    senders = np.full(graph.num_edges, graph.num_cols, np.int32)
    senders[: indptr[-1]] = np.repeat(np.arange(graph.num_cols), np.diff(by_sender))
    return indptr, by_sender, np.asarray(plan.transposed_indices), senders


@dataclass(frozen=True)
class EdgeList:
    """A multigraph: senders, receivers, weights, and a mask that is False on padding edges."""

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray
    mask: np.ndarray
    num_rows: int
    num_cols: int

    def graph(self, *, weighted: bool = True, masked: bool = True) -> CSRGraph:
        """The graph, built eagerly."""
        return CSRGraph.from_edges(
            self.senders,
            self.receivers,
            self.num_rows,
            self.weights if weighted else None,
            num_senders=self.num_cols,
            edge_mask=self.mask if masked else None,
        )

    def dense(self, *, weighted: bool = True, masked: bool = True) -> np.ndarray:
        """The adjacency that the graph stands for, straight from the list."""
        values = self.weights if weighted else np.ones_like(self.weights)
        matrix = np.zeros((self.num_rows, self.num_cols))
        kept = self.mask if masked else np.ones_like(self.mask)
        np.add.at(matrix, (self.receivers[kept], self.senders[kept]), values[kept])
        return matrix


def random_edges(
    seed: int, num_rows: int, num_cols: int, num_edges: int, *, hub: bool = False
) -> EdgeList:
    """Edges with uniform ends, about a third of them padding; a hub receives all of them.

    With few edges some nodes are isolated, with many some edges are repeated.
    """
    rng = np.random.default_rng(seed)
    receivers = rng.integers(0, num_rows, num_edges)
    if hub:
        receivers[:] = rng.integers(num_rows)
    return EdgeList(
        senders=rng.integers(0, num_cols, num_edges),
        receivers=receivers,
        weights=rng.uniform(0.5, 2, num_edges).astype(np.float32),
        mask=rng.random(num_edges) < 0.7,
        num_rows=num_rows,
        num_cols=num_cols,
    )


def edge_lists(
    nodes: tuple[int, int] = (6, 9), sizes: tuple[int, ...] = (0, 5, 900)
) -> st.SearchStrategy[EdgeList]:
    """Random edge lists of few shapes, so that JAX compiles little."""
    return st.builds(
        lambda seed, num_edges, hub: random_edges(seed, *nodes, num_edges, hub=hub),
        st.integers(0, 2**32 - 1),
        st.sampled_from(sizes),
        st.booleans(),
    )


def dense(graph: CSRGraph) -> np.ndarray:
    """The matrix that multiplies features: ``r_i Σ w_ij c_j``, in float64."""
    indptr = np.asarray(graph.indptr)
    edges = slice(0, indptr[-1])
    rows = np.repeat(np.arange(graph.num_rows), np.diff(indptr))
    weights = np.ones(indptr[-1])
    if graph.weights is not None:
        weights = np.asarray(graph.weights).astype(np.float64)[edges]
    matrix = np.zeros(graph.shape)
    np.add.at(matrix, (rows, np.asarray(graph.indices)[edges]), weights)
    if graph.row_scale is not None:
        matrix *= np.asarray(graph.row_scale, np.float64)[:, None]
    if graph.col_scale is not None:
        matrix *= np.asarray(graph.col_scale, np.float64)
    return matrix


# Shared, so that each shape is compiled once for all the tests.
prepare = jax.jit(lambda graph: graph.prepared())
receivers = jax.jit(lambda graph: graph.receivers())
normalize = jax.jit(lambda graph, kind: graph.normalized(kind), static_argnums=1)


def _without_blocks(tree):
    def drop(node):
        if isinstance(node, CSRGraph) and node.plan is not None:
            plan = dataclasses.replace(node.plan, edge_blocks=())
            return dataclasses.replace(node, plan=plan)
        return node

    return jax.tree.map(drop, tree, is_leaf=lambda node: isinstance(node, CSRGraph))


def assert_same_tree(actual, expected):
    """Same structure, static fields, dtypes and bits; blocks of edges, as GPUs have them, aside.

    The graph of a transpose has none.
    """
    actual, expected = (_without_blocks(tree) for tree in (actual, expected))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def holds_tracer(tree) -> bool:
    """True if a tracer is among the leaves."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def check_message(message, fragments):
    """The message of a ValueError: where, what it must be, what came; fragments in this order."""
    assert re.fullmatch(r"[\w.]+: .+ must be .+, got .+", message), message
    position = 0
    for fragment in fragments:
        position = message.find(fragment, position)
        assert position >= 0, f"{fragment!r} is missing, or out of order, in: {message}"
