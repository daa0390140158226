"""The GPU kernels of attention over neighbours against float64, over poisoned memory."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.testing import assert_bit_equal
from pallas_kernels.arguments.attention import Cotangents
from pallas_kernels.attention.tile import AttentionTile
from pallas_kernels.chip import Chip
from tests.pallas_kernels.attention._cases import (
    FORM,
    OPS,
    check,
    gradients_of,
    operands_of,
    passes,
)

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if Chip.current().generation < 9:
        pytest.skip(f"reason: Mosaic GPU kernels need an H100 or newer, got {Chip.current().name}")


def _power_law(nodes, edges, exponent) -> CSRGraph:
    """As the published graphs are: a power law of degrees at both ends."""
    rng = np.random.default_rng(0)
    weight = np.arange(1, nodes + 1) ** -exponent
    order = rng.permutation(nodes)
    ends = order[rng.choice(nodes, size=(2, edges), p=weight / weight.sum())]
    return CSRGraph.from_edges(ends[0], ends[1], nodes)


def _molecules() -> CSRGraph:
    """Many small parts, each a ring of 25 nodes."""
    nodes = np.arange(128 * 25)
    following = nodes - nodes % 25 + (nodes + 1) % 25
    ends = np.concatenate([nodes, following]), np.concatenate([following, nodes])
    return CSRGraph.from_edges(*ends, len(nodes))


def _padded() -> CSRGraph:
    """Three quarters of the rows empty, the first one a hub, and padding past the last edge."""
    rng = np.random.default_rng(1)
    lengths = np.where(rng.random(600) < 0.75, 0, rng.integers(1, 40, 600))
    lengths[0] = 9_000
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    senders = rng.integers(0, 50, indptr[-1] + 77)
    return CSRGraph(indptr.astype(np.int32), senders.astype(np.int32), num_cols=60)


GRAPHS = {
    "reddit": lambda: _power_law(1_000, 60_000, 0.8),  # rows of several pieces
    "flickr": lambda: _power_law(10_000, 40_000, 0.6),  # short and empty rows
    "molecules": _molecules,
    "padded": _padded,
}


@functools.cache
def _graph(name) -> CSRGraph:
    return GRAPHS[name]().prepared()


def _poison(graph, operands):
    """What the allocator hands out next holds NaN."""
    arrays = [
        jnp.full((rows, *of.shape[1:]), jnp.nan, dtype)
        for rows in graph.shape
        for of in (operands.rows, operands.columns, operands.summed)
        for dtype in {of.dtype, jnp.dtype("float32")}
    ]
    jax.block_until_ready(arrays)


def _check(op, name, heads, width, dtype, tile=None, dweights=False, **options):
    graph = _graph(name)
    operands = operands_of(op, graph, heads, width, dtype, **options)
    form = FORM if operands.seed is None else dataclasses.replace(FORM, dropout=0.3)
    _poison(graph, operands)
    check(op, graph, operands, form, tile, dweights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("op", OPS)
def test_all_passes_agree_with_float64(op, name, dtype):
    _check(op, name, 4, 64 if name == "molecules" else 16, dtype)


@pytest.mark.parametrize("name", ["flickr", "padded"])
@pytest.mark.parametrize("op", OPS)
def test_logits_dropout_and_gradients_of_weights_agree_with_float64(op, name):
    _check(op, name, 3, 12, "float32", logits=True, dropout=True, dweights=True)


@pytest.mark.parametrize("heads, width", [(1, 1), (8, 1), (3, 7), (5, 24), (1, 128), (2, 130)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_every_shape_agrees_with_float64(op, dtype, heads, width):
    _check(op, "padded", heads, width, dtype)


@pytest.mark.parametrize("op", OPS)
def test_the_widest_heads_agree_with_float64(op):
    for heads, width in ((1, 1024), (32, 32), (1024, 1)):
        _check(op, "molecules", heads, width, "float32")


@pytest.mark.parametrize("lanes, heads, ahead", [(1, 1, 1), (4, 2, 4), (8, 1, 2), (16, 2, 1)])
@pytest.mark.parametrize("op", OPS)
def test_every_tile_agrees_with_float64(op, lanes, heads, ahead):
    _check(op, "reddit", 4, 32, "float32", tile=AttentionTile(lanes, heads, ahead))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_edges_add_to_values_and_scores_agrees_with_float64(dtype):
    for name in ("flickr", "padded"):
        _check("dot", name, 3, 16, dtype, added=True, logits=True, dropout=True)
        _check("gatv2", name, 4, 16, dtype, features=7, logits=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_that_share_keys_and_values_agree_with_float64(dtype):
    _check("dot", "reddit", 6, 16, dtype, groups=2, out=24)


@pytest.mark.parametrize("op", OPS)
def test_results_repeat_to_the_bit(op):
    graph, kernels = _graph("reddit"), passes(op)
    operands = operands_of(op, graph, 4, 32, "float32", logits=True)
    pieces = graph_calls.pieces(graph)

    @jax.jit
    def results():
        y, lse = kernels.forward(pieces, operands, FORM)
        cotangents = Cotangents(lse, lse, y)
        return (
            y,
            lse,
            gradients_of(op, graph, operands, cotangents),
        )

    first = results()
    for _ in range(5):
        jax.tree.map(assert_bit_equal, results(), first)
