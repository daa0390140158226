"""Normalisation, residual and sum of edges: the kernels on the emulator, and lowered to CUDA."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.attention_memory import prepared_shapes
from jaxgnn import CSRGraph
from jaxgnn.ops._edge_mlp import pallas as calls
from jaxgnn.ops._edge_mlp.reference import interaction as reference
from jaxgnn.ops._edge_mlp.reference.interaction import (
    EdgeLists,
    InteractionOptions,
    UpdateOperands,
)
from jaxgnn.testing import assert_close, random_array, to_float64
from pallas_kernels.edge_mlp.interaction import UpdateTile
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels._emulator import emulated

PADDING = 5
LENGTHS = {
    # A row of just one full piece, one of three pieces, empty rows.
    "long rows": [3, 0, 4, 256, 1, 520, 0, 2, 17],
    # The last row is empty: the slot where it begins is padding.
    "short rows": [3, 0, 4, 12, 1, 5, 0, 2, 11, 9, 6, 0],
}
PLAIN = InteractionOptions("relu", False, "layer", 1e-5, True, "update")


@functools.cache
def lists_of(name: str, ordered: bool = False) -> EdgeLists:
    """The edges of a graph with empty rows and padding, in a random order if ``ordered``."""
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(LENGTHS[name])])
    senders = rng.integers(0, 24, indptr[-1] + PADDING)
    graph = CSRGraph(jnp.asarray(indptr, jnp.int32), jnp.asarray(senders, jnp.int32), num_cols=24)
    lists = EdgeLists.of(graph.prepared())
    if not ordered:
        return lists
    order = rng.permutation(len(senders)).astype(np.int32)
    place = np.argsort(order)
    ends = (jnp.asarray(np.asarray(ids)[place]) for ids in lists[2:])
    return EdgeLists(lists.graph, jnp.asarray(order), *ends)


def operands_of(lists: EdgeLists, dim: int, dtype, options, shared=True) -> UpdateOperands:
    """Random arrays, with NaN in padding; without bias, scale and offset unless ``shared``."""
    edges = lists.graph.num_edges
    y, e = (random_array((edges, dim), dtype, seed) for seed in (1, 2))
    real = (lists.receivers < lists.graph.num_rows)[:, None]
    y, e = (jnp.where(real, a, jnp.nan) for a in (y, e))
    bias, scale, offset = (random_array((dim,), dtype, seed) for seed in (3, 4, 5))
    if not shared:
        bias = scale = offset = None
    return UpdateOperands(y, bias, e if options.residual else None, scale, offset)


@functools.partial(jax.jit, static_argnums=4)
def _exact(lists, operands, dedges, dsums, options):
    made = reference.update_edges(lists, operands, options=options)
    back = reference.update_edges_backward(lists, operands, dedges, dsums, options=options)
    return made, back


def check(lists: EdgeLists, dim: int, dtype, options, shared=True) -> None:
    """Compares values and gradients with the formula in float64."""
    operands = operands_of(lists, dim, dtype, options, shared)
    dedges, dsums = (
        random_array((n, dim), dtype, seed)
        for n, seed in ((lists.graph.num_edges, 6), (lists.graph.num_rows, 7))
    )
    with jax.enable_x64(True), jax.disable_jit(False):
        wide = to_float64((operands, dedges, dsums))
        exact = jax.tree.map(np.asarray, _exact(lists, *wide, options))
    made = calls.update_edges(lists, operands, options=options)
    back = calls.update_edges_backward(lists, operands, dedges, dsums, options=options)
    for actual, expected in zip(*map(jax.tree.leaves, ((made, back), exact)), strict=True):
        assert_close(actual, expected, reduction_length=64 * lists.graph.num_edges, operands=dtype)


# Graph, whether edges are in another order, width, dtype, changed options, bias and scale.
CASES = {
    "long rows": ("long rows", False, 8, "float32", {}, True),
    "another order": ("short rows", True, 40, "bfloat16", {"summed": "edges"}, True),
    "odd width": ("short rows", False, 33, "float32", {"norm": "rms", "summed": "edges"}, True),
    "one column": ("short rows", True, 1, "float32", {}, True),
    "without norm": ("short rows", False, 6, "bfloat16", {"norm": None, "residual": False}, False),
    "several vectors": ("long rows", True, 264, "float32", {"residual": False}, True),
}


@pytest.mark.emulated
@pytest.mark.costly(3)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_agree_with_float64(case):
    name, ordered, dim, dtype, changed, shared = CASES[case]
    with emulated():
        options = dataclasses.replace(PLAIN, **changed)
        check(lists_of(name, ordered), dim, dtype, options, shared)


@pytest.mark.emulated
def test_edges_without_padding_are_not_masked():
    graph = CSRGraph.from_edges([0, 1, 2, 0], [1, 1, 0, 3], 4).prepared()
    options = dataclasses.replace(PLAIN, summed="edges", is_padded=False)
    with emulated():
        check(EdgeLists.of(graph), 8, "float32", options)


@pytest.mark.emulated
def test_a_graph_without_edges_gives_zeros():
    graph = CSRGraph.from_edges([], [], 3).prepared()
    with emulated():
        check(EdgeLists.of(graph), 4, "float32", PLAIN)


@pytest.mark.parametrize("dim, itemsize", [(1, 4), (33, 4), (128, 4), (512, 2), (1024, 4), (24, 2)])
def test_a_tile_covers_all_columns(dim, itemsize):
    tile = UpdateTile.choose(H100, dim, itemsize)
    assert tile.lanes * tile.entries * tile.vectors >= dim
    assert dim % tile.entries == 0 and tile.entries * itemsize <= 16


@pytest.mark.lowers
@pytest.mark.parametrize(
    "dim, dtype, ordered", [(512, "bfloat16", False), (256, "float32", True), (1024, "float32", 0)]
)
def test_the_kernels_lower_at_real_sizes(dim, dtype, ordered):
    graph = prepared_shapes(40_962, 327_660)
    options = dataclasses.replace(PLAIN, summed="edges")
    struct = jax.ShapeDtypeStruct
    of_edges, of_rows = (struct((n, dim), dtype) for n in (graph.num_edges, graph.num_rows))
    ids, shared = struct((graph.num_edges,), jnp.int32), struct((dim,), dtype)
    lists = EdgeLists(graph, ids if ordered else None, ids, ids)
    operands = UpdateOperands(of_edges, shared, of_edges, shared, shared)

    def both(lists, operands, dedges, dsums):
        return (
            calls.update_edges(lists, operands, options=options),
            calls.update_edges_backward(lists, operands, dedges, dsums, options=options),
        )

    traced = jax.jit(both).trace(lists, operands, of_edges, of_rows)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 3  # and one for long rows
