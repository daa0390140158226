"""What the kernels of attention over neighbours compute, on the emulator."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.ops._attention import pallas
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.ops._graph import pieces
from jaxgnn.testing import assert_bit_equal, assert_close
from pallas_kernels.arguments.attention import Cotangents
from pallas_kernels.attention import passes as passes_module
from pallas_kernels.attention.tile import AttentionTile, Work
from pallas_kernels.simt import blocks
from tests.pallas_kernels._chips import H100, on_a_chip
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.attention._cases import (
    FORM,
    OPS,
    check,
    gradients_of,
    operands_of,
    passes,
    shapes_of,
)
from tests.pallas_kernels.attention._formula import attention

pytestmark = pytest.mark.emulated

COLS, PADDING = 24, 5
LENGTHS = {
    # A row of just one full piece, one of three pieces, empty rows.
    "long rows": [3, 0, 4, 256, 1, 520, 0, 2, 17],
    "short rows": [3, 0, 4, 12, 1, 5, 0, 2, 11, 9, 6],
}
MASKED = 2  # the row of which no logit is more than -inf


@pytest.fixture(autouse=True)
def emulator():
    with emulated():
        yield


@functools.cache
def _graph(name) -> CSRGraph:
    """Empty rows, padding, a sender that has a third of the edges, and one that has none.

    The scales of nodes must make no difference.
    """
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(LENGTHS[name])])
    senders = rng.integers(0, COLS - 1, indptr[-1] + PADDING)
    senders[rng.random(len(senders)) < 1 / 3] = 2
    scales = [jnp.asarray(rng.uniform(0.5, 2.0, n), jnp.float32) for n in (len(indptr) - 1, COLS)]
    return CSRGraph(
        jnp.asarray(indptr, jnp.int32),
        jnp.asarray(senders, jnp.int32),
        num_cols=COLS,
        row_scale=scales[0],
        col_scale=scales[1],
    ).prepared()


def _masked(graph, logits):
    """Logits of which some are -inf, in one row all; far below zero for a head; padding is NaN."""
    values, first = np.array(logits, np.float32), np.asarray(graph.indptr)
    values[:, 0] -= 6.0
    values[np.random.default_rng(1).random(values.shape) < 0.2] = -np.inf
    values[first[MASKED] : first[MASKED + 1]] = -np.inf
    values[first[-1] :] = np.nan
    return jnp.asarray(values).astype(logits.dtype)


# Graph, heads, width, dtype, other options of the operands, and the tile, None if it is chosen.
CASES = {
    "as chosen": ("long rows", 4, 16, "float32", {"logits": True}, None),
    "in slices": ("long rows", 5, 7, "float16", {"dropout": True}, AttentionTile(4, 2, 2)),
    "of 16 bits": ("short rows", 4, 16, "bfloat16", {"logits": True}, None),
    "of one column": ("short rows", 3, 1, "float32", {"logits": True}, None),
    "idle lanes": (
        "short rows", 3, 24, "float32", {"logits": True, "dropout": True}, AttentionTile(4, 4, 2),
    ),
    "a head a warp": ("short rows", 2, 136, "bfloat16", {}, AttentionTile(32, 1, 2)),
    "32 groups": ("short rows", 1, 8, "float32", {"dropout": True}, AttentionTile(1, 1, 4)),
}  # fmt: skip
DOT_CASES = {
    "values of edges": (
        "short rows", 3, 8, "float32", {"added": True, "dropout": True}, AttentionTile(2, 4, 2),
    ),
    "and shared heads": (
        "long rows", 4, 4, "bfloat16", {"added": True, "logits": True, "groups": 2}, None,
    ),
}  # fmt: skip
GATV2_CASES = {
    "features of edges": ("short rows", 3, 8, "float32", {"features": 5, "dropout": True}, None),
    "and logits": (
        "long rows", 2, 12, "bfloat16", {"features": 1, "logits": True}, AttentionTile(2, 2, 2),
    ),
}  # fmt: skip
GROUPS = {
    "two": ("long rows", 6, 4, "float32", {"groups": 2, "out": 12}, AttentionTile(2, 4, 2)),
    "one": ("short rows", 4, 8, "bfloat16", {"groups": 1, "out": 2}, AttentionTile(2, 2, 1)),
}


def _check(op, case, **options):
    name, heads, width, dtype, given, tile = case
    graph = _graph(name)
    operands = operands_of(op, graph, heads, width, dtype, **given)
    if operands.edge_logits is not None:
        operands = operands.replace(edge_logits=_masked(graph, operands.edge_logits))
    form = FORM if operands.seed is None else dataclasses.replace(FORM, dropout=0.3)
    check(op, graph, operands, form, tile, **options)


@pytest.mark.costly(8)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("op", OPS)
def test_values_and_gradients_agree_with_float64(op, case):
    _check(op, CASES[case], dweights=case == "idle lanes")


@pytest.mark.parametrize("case", DOT_CASES)
def test_edges_add_to_values(case):
    _check("dot", DOT_CASES[case])


def test_wide_receivers_get_a_gradient_that_is_not_rounded():
    graph = _graph("short rows")
    operands = operands_of("dot", graph, 2, 8, "bfloat16", logits=True)
    check("dot", graph, operands.replace(rows=operands.rows.astype(jnp.float32)), FORM)


@pytest.mark.again("test_values_and_gradients_agree_with_float64")
@pytest.mark.parametrize("case", GATV2_CASES)
def test_features_of_edges_are_a_part_of_the_score(case, monkeypatch):
    monkeypatch.setattr(pieces, "ENTRIES", 1000)
    _check("gatv2", GATV2_CASES[case])


def test_members_of_a_batch_get_the_gradients_of_their_features_one_by_one():
    graph, vector = _graph("short rows"), jnp.ones((2, 4))
    made = [operands_of("gatv2", graph, 2, 4, "float32", features=3) for _ in range(2)]
    members = [o.replace(rows=o.rows + i, attention=vector) for i, o in enumerate(made)]

    def completed(operands):
        dtotals = jnp.sin(operands.edge_features[:, :2])
        given = operands.replace(edge_logits=dtotals)
        return pallas.add_edge_features(FORM, graph, operands, given).edge_kernel

    batch = jax.tree.map(lambda *arrays: jnp.stack(arrays), *members)
    together = jax.jit(jax.vmap(completed))(batch)
    assert_close(together, jnp.stack([*map(completed, members)]), reduction_length=100)


@pytest.mark.again("test_values_and_gradients_agree_with_float64")
@pytest.mark.parametrize("case", GROUPS)
def test_heads_share_keys_and_values(case):
    _check("dot", GROUPS[case])


@pytest.mark.parametrize("slope", [0.0, -0.5, 1.5])
def test_slopes_of_all_kinds(slope):
    for op in ("gat", "gatv2"):
        graph = _graph("short rows")
        operands = operands_of(op, graph, 2, 3, "float32", logits=True)
        operands = operands.replace(edge_logits=_masked(graph, operands.edge_logits))
        check(op, graph, operands, dataclasses.replace(FORM, slope=slope))


@pytest.mark.parametrize("slope", [0.2, -0.5])
def test_the_leaky_relu_of_zero_has_slope_one(slope):
    graph, form = _graph("short rows"), dataclasses.replace(FORM, slope=slope)
    for op, given in (("gat", {"logits": True}), ("gatv2", {"features": 2})):
        operands = operands_of(op, graph, 2, 3, "float32", **given)
        # Whole numbers, of which many add up to zero.
        names = ("rows", "columns", "edge_logits", "edge_features", "edge_kernel")
        found = {name: getattr(operands, name) for name in names}
        whole = {name: jnp.round(x) for name, x in found.items() if x is not None}
        check(op, graph, operands.replace(**whole), form)


def test_one_block_of_warps_takes_all_pieces(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCKS_PER_MULTIPROCESSOR", 1)
    on_a_chip(monkeypatch, multiprocessors=1)
    for op in ("gatv2", "dot"):
        graph = _graph("short rows")
        check(op, graph, operands_of(op, graph, 2, 4, "float32", logits=True), FORM)


def _results(op, graph, operands):
    kernels, pieces = passes(op), graph_calls.pieces(graph)
    y, lse = kernels.forward(pieces, operands, FORM)
    cotangents = Cotangents(lse, lse, y)
    return y, lse, gradients_of(op, graph, operands, cotangents)


def test_offsets_of_64_bits_give_the_same_bits():
    graph = _graph("short rows")
    operands = operands_of("gat", graph, 2, 4, "float32", logits=True, dropout=True)
    with jax.enable_x64(True):
        plan = graph.made_plan()
        schedules = {
            name: dataclasses.replace(
                getattr(plan, name), offsets=getattr(plan, name).offsets.astype(jnp.int64)
            )
            for name in ("schedule", "transposed_schedule")
        }
        plan = dataclasses.replace(
            plan, permutation=plan.permutation.astype(jnp.int64), **schedules
        )
        wide = dataclasses.replace(graph, indptr=graph.indptr.astype(jnp.int64), plan=plan)
        jax.tree.map(
            assert_bit_equal, _results("gat", wide, operands), _results("gat", graph, operands)
        )


@pytest.mark.parametrize("op", OPS)
def test_what_is_not_finite_stays_with_its_neighbours(op):
    graph = _graph("short rows")
    operands = operands_of(op, graph, 2, 4, "float32")
    spoiled = {"columns": operands.columns.at[5].set(jnp.nan)}
    if operands.values is not None:
        spoiled["values"] = operands.values.at[7].set(jnp.inf)
    y, lse, gradients = _results(op, graph, operands.replace(**spoiled))
    reached = {5, 7} if "values" in spoiled else {5}
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    neighbours = [{*indices[a:b].tolist()} for a, b in itertools.pairwise(indptr)]
    finite = [not reached & row for row in neighbours]
    assert 0 < sum(finite) < len(finite)
    np.testing.assert_array_equal(np.isfinite(y).all((1, 2)), finite)
    empty = np.diff(indptr) == 0
    np.testing.assert_array_equal(
        np.isfinite(lse).all(1), [5 not in n for n in neighbours] & ~empty
    )
    exact, *_ = _results(op, graph, operands)
    np.testing.assert_array_equal(np.asarray(y)[finite], np.asarray(exact)[finite])
    alone = [j for j in range(COLS) if not any(j in n and reached & n for n in neighbours)]
    assert alone and np.isfinite(np.asarray(gradients.columns)[alone]).all()


def test_scores_far_below_zero_are_shifted_without_infinities():
    graph = _graph("long rows")
    operands = operands_of("dot", graph, 2, 4, "float32", logits=True)
    # Whole numbers, so that scores are exact.
    logits = jnp.round(operands.edge_logits) - 256.0
    operands = operands.replace(rows=jnp.zeros_like(operands.rows), edge_logits=logits)
    exact = attention("dot", graph, operands, FORM, jnp.zeros((graph.num_rows, 2, 4)))
    y, _ = passes("dot").forward(graph_calls.pieces(graph), operands, FORM)
    assert_close(y, exact.y, reduction_length=max(LENGTHS["long rows"]))


def test_nothing_is_launched_without_edges():
    graph = CSRGraph(jnp.zeros(4, jnp.int32), jnp.zeros(0, jnp.int32), num_cols=2).prepared()
    operands = operands_of("dot", graph, 2, 4, "bfloat16", logits=True)
    y, lse, gradients = _results("dot", graph, operands)
    assert not y.any() and y.shape == (3, 2, 4) and (lse == -jnp.inf).all()
    assert not gradients.rows.any() and gradients.edge_logits.shape == (0, 2)
    assert not gradients.columns.any() and gradients.values.dtype == jnp.bfloat16


def test_a_lane_has_at_most_eight_columns_and_a_slice_fits_the_cache():
    reddit, products = (232_965, 232_965, 111_400_000), (2_449_029, 2_449_029, 123_718_280)
    small, flickr = (500, 500, 60_000), (89_250, 89_250, 899_756)
    tiles = {
        (reddit, Work(4, 64, 4, 1, own=3, loads=1)): (16, 1, 4),
        (reddit, Work(4, 64, 4, 1, own=4, loads=2)): (8, 1, 4),
        (reddit, Work(4, 64, 2, 1, own=3, loads=1)): (8, 2, 4),
        (reddit, Work(4, 64, 2, 1, own=4, loads=2)): (8, 2, 2),
        (reddit, Work(4, 64, 4, 2, own=4, loads=2)): (8, 1, 2),
        (products, Work(4, 64, 4, 1, own=1, loads=2)): (8, 4, 4),
        (flickr, Work(1, 128, 2, 1, own=3, loads=1)): (16, 1, 2),
        (small, Work(8, 8, 4, 1, own=1, loads=2)): (1, 8, 4),
        (small, Work(1, 1024, 4, 1, own=1, loads=1)): (32, 1, 1),
        (small, Work(3, 7, 2, 2, own=2, loads=2)): (4, 4, 4),
        ((3_200, 3_200, 6_400), Work(4, 16, 4, 2, own=3, loads=2)): (2, 4, 1),
    }
    for (shape, work), expected in tiles.items():
        tile = AttentionTile.choose(H100, *shape, work)
        assert (tile.lanes, tile.heads, tile.ahead) == expected, (shape, work)


def test_the_widest_array_decides_about_the_lanes():
    graph = _graph("short rows")
    operands = shapes_of("dot", graph, 2, 128, "float32", out=1)
    work = passes_module._work_forward(operands)
    assert (work.width, work.itemsize) == (128, 4)
    tile = AttentionTile.choose(H100, graph.num_rows, COLS, graph.num_edges, work)
    assert 128 // tile.lanes <= 8


def test_what_the_kernels_do_not_take_is_told():
    graph = _graph("short rows")
    dot = shapes_of("dot", graph, 4, 8, "float32")
    assert passes("dot").unsupported(dot) is None
    wide = shapes_of("gatv2", graph, 9, 128, "float32")
    told = "at most 1024 columns of all heads together, got 9 heads of 128"
    assert passes("gatv2").unsupported(wide) == told
    assert "got float64" in passes("gat").unsupported(shapes_of("gat", graph, 2, 8, "float64"))
