"""The kernels of layers of edges: SIMT code emulated, the rest interpreted; lowered for CUDA.

Those of wide layers alone are in ``test_edge_mlp_wide``.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import ops
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_bit_equal, random_array
from pallas_kernels import simt
from pallas_kernels.edge_mlp import edge_mlp_aggregate
from pallas_kernels.edge_mlp.backward_needs import BackwardTile
from pallas_kernels.edge_mlp.edge_tiles import ROWS, Layout
from pallas_kernels.edge_mlp.forward import EdgeTile
from pallas_kernels.edge_mlp.gather_scatter import (
    AddToReceivers,
    AddToRows,
    AddToSenders,
    GatherEdges,
    GatherFeatures,
    GatherRows,
    ScatterFeatures,
    ScatterRows,
    WaitForCopies,
)
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.edge_mlp._edge_mlp import (
    GRAPHS,
    check_gradients,
    check_sums,
    op_structs,
    operands_of,
    options_of,
    run_gradients,
    run_sums,
    signatures,
    sudoku,
    with_gradients,
)
from tests.pallas_kernels.test_lowering import _graph as prepared_graph

WARPGROUP = simt.Grid(blocks=1, warps=4)


# -- SIMT code, emulated ---------------------------------------------------------------------------


def _dealt_out(graph, batch):
    return edge_mlp_aggregate.places_of(
        pieces(graph), batch, graph.num_cols, graph.uniform_degrees()[0]
    )


def _place(places, tables, group, row):
    """The element, row, first edge, length and slot, or None."""
    if places.degree is not None:
        element, own = divmod(group * ROWS + row, places.rows)
        degree = places.degree
        return (element, own, own * degree, degree, -1) if element < places.batch else None
    element, group = divmod(group, places.pieces // ROWS)
    listed = tables.rows, tables.starts, tables.lengths, tables.slots
    own, start, length, slot = (int(table[group * ROWS + row]) for table in listed)
    return (element, own, start, length, slot) if start >= 0 else None


def _tile_of_edges(places, tables, group, step, senders, weights):
    """What belongs to the edges, and their weights."""
    tile = np.zeros((ROWS, senders.shape[1]), senders.dtype)
    factors = np.zeros(ROWS, np.float32)
    for row in range(ROWS):
        place = _place(places, tables, group, row)
        if place is not None and step < place[3]:
            edge = place[2] + step
            tile[row] = senders[place[0] * places.cols + int(tables.indices[edge])]
            own = weights is not None and weights.shape[0] > 1
            factors[row] = 1 if weights is None else weights[place[0] if own else 0, edge]
    return tile, factors


def _tile_of_features(places, tables, group, step, features):
    tile = np.zeros((ROWS, features.shape[2]), features.dtype)
    for row in range(ROWS):
        place = _place(places, tables, group, row)
        if place is not None and step < place[3]:
            tile[row] = features[place[0] if features.shape[0] > 1 else 0, place[2] + step]
    return tile


def _tile_of_rows(places, tables, group, receivers):
    tile = np.zeros((ROWS, receivers.shape[1]), receivers.dtype)
    for row in range(ROWS):
        place = _place(places, tables, group, row)
        if place is not None and place[3] > 0:
            tile[row] = receivers[place[0] * places.rows + place[1]]
    return tile


def _flat(nodes):
    return np.asarray(nodes).reshape(-1, nodes.shape[-1])


def _listed(tables):
    return [t for t in jax.tree.leaves(tables)]


@pytest.mark.parametrize("name", ["ragged", "hub"])
def test_tables_list_every_edge_once_and_like_lengths_together(name):
    graph = GRAPHS[name]()
    places, tables = _dealt_out(graph, 1)
    rows, starts, lengths, slots = map(
        np.asarray, (tables.rows, tables.starts, tables.lengths, tables.slots)
    )
    edges = [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
    indptr = np.asarray(graph.indptr)
    assert sorted(np.concatenate(edges)) == list(range(indptr[-1]))
    for row, own in zip(rows, edges, strict=True):
        assert ((indptr[row] <= own) & (own < indptr[row + 1])).all()
    assert set(rows[starts >= 0]) == set(range(graph.num_rows))
    assert lengths.max() <= 64 and not lengths[starts < 0].any()
    is_part = (slots >= 0) & (lengths > 0)
    assert set(rows[is_part]) == set(np.flatnonzero(np.diff(indptr) > 64))
    assert len(set(slots[is_part])) == is_part.sum()
    np.testing.assert_array_equal(tables.steps, lengths.reshape(-1, ROWS).max(1))
    short = lengths[(slots < 0) & (starts >= 0)]
    assert (np.diff(short) <= 0).all() and places.pieces == len(rows)


@pytest.mark.emulated
@pytest.mark.parametrize("name", ["ring", "ragged", "hub"])
@pytest.mark.parametrize(
    "width, swizzle, weighted", [(64, 128, True), (96, 64, True), (64, 128, False)]
)
def test_tiles_are_gathered_and_scattered_as_the_tensor_cores_have_them(
    name, width, swizzle, weighted
):
    """To shared memory and back by another way of counting; the group is the last of the batch."""
    graph, batch = GRAPHS[name](), 6
    places, tables = _dealt_out(graph, batch)
    layout, group, step = Layout(width, swizzle), places.groups - 1, 2
    operands = operands_of(graph, batch, (width,), weights=batch)
    weights = operands.weights if weighted else jnp.ones_like(operands.weights)
    given = jax.tree.map(jnp.asarray, (_flat(operands.receivers), _flat(operands.senders)))
    features = random_array((2, batch, graph.num_edges, width), "bfloat16", seed=5)
    of_edges = (weights,) if weighted else ()
    arrays = (*given, *of_edges, features[0], features[1, :1], _listed(tables))

    def kernel(warp, arrays, *results, receivers, senders, own, shared, factors):
        receivers_in, senders_in, *weights_in, own_in, shared_in, listed = arrays
        *copies, found = results
        numbers = warp.i32(group), warp.i32(step), warp.i32(step + 1)
        GatherRows(places, layout)(warp, numbers[0], receivers_in, receivers, *listed)
        for is_own, source, tile in ((True, own_in, own), (False, shared_in, shared)):
            GatherFeatures(places, layout, is_own)(warp, *numbers, source, tile, *listed)
        gather = GatherEdges(places, layout, True if weighted else None, True)
        gather(warp, *numbers, senders_in, senders, factors, *weights_in, *listed)
        WaitForCopies(0)(warp)
        warp.barrier()
        for row, piece in layout.each(warp):
            for tile, target in zip((receivers, senders, own, shared), copies, strict=True):
                words = tile.load_words(_bytes_at(row, piece, layout) // 2, 8)
                target.row(row).store_words(piece * 8, words, 8)
        warp.when(warp.thread < ROWS, lambda: found.store(warp.thread, factors.load(warp.thread)))

    form = jax.ShapeDtypeStruct((ROWS, width), jnp.bfloat16)
    numbers = jax.ShapeDtypeStruct((ROWS,), jnp.float32)
    tiles = dict.fromkeys(("receivers", "senders", "own", "shared"), form)
    results, options = [*tiles.values(), numbers], {"name": "t", "grid": WARPGROUP}
    with emulated():
        rows, edges, own, shared, factors = simt.launch(
            kernel, arrays, results, block_shared=tiles | {"factors": numbers}, **options
        )
    assert_bit_equal(rows, _tile_of_rows(places, tables, group, _flat(operands.receivers)))
    expected = _tile_of_edges(
        places, tables, group, step, _flat(operands.senders), np.asarray(weights)
    )
    assert_bit_equal((edges, factors), expected)
    for made, given in ((own, features[0]), (shared, features[1, :1])):
        assert_bit_equal(made, _tile_of_features(places, tables, group, step, np.asarray(given)))


def _bytes_at(row, piece, layout):
    """By addresses: some of their bits are added to others."""
    chunks = layout.width * 2 // layout.swizzle
    chunk, within = piece * 16 // layout.swizzle, piece * 16 % layout.swizzle
    at = (row // 8 * chunks + chunk) * 8 * layout.swizzle + row % 8 * layout.swizzle + within
    mask = layout.swizzle // 16 - 1
    return at ^ (((at >> 7) & mask) << 4)


@pytest.mark.emulated
@pytest.mark.parametrize("name", ["ring", "ragged", "hub"])
def test_sums_are_written_by_rows_and_those_of_pieces_exactly(name):
    graph, batch, width = GRAPHS[name](), 2, 64
    places, tables = _dealt_out(graph, batch)
    layout = Layout(width, 128)
    sums = random_array((places.groups, ROWS, width), "float32", seed=3)
    rounded = sums.astype(jnp.bfloat16)
    left = (sums - rounded.astype(jnp.float32)).astype(jnp.bfloat16)
    slots = edge_mlp_aggregate.slots(pieces(graph))
    y = jnp.full((batch * graph.num_rows, width), jnp.nan, jnp.bfloat16)
    partial = jnp.full((batch, slots, width), jnp.nan, jnp.float32)

    def kernel(warp, arrays, y, partial, tile, other):
        rounded, left, listed = arrays
        for group in range(places.groups):
            for row, piece in layout.each(warp):
                for source, target in ((rounded, tile), (left, other)):
                    words = source.row(warp.i32(group)).row(row).load_words(piece * 8, 8)
                    target.store_words(layout.at(row, piece) * 8, words, 8)
            warp.barrier()
            others = [] if places.degree else [other, partial]
            ScatterRows(places, layout)(warp, warp.i32(group), y, tile, *others, *listed)
            warp.barrier()

    form = jax.ShapeDtypeStruct((ROWS, width), jnp.bfloat16)
    with emulated():
        y, partial = simt.launch(
            kernel,
            (rounded, left, _listed(tables)),
            [],
            name="t",
            grid=WARPGROUP,
            block_shared={"tile": form, "other": form},
            updated=[y, partial],
        )
    rows, parts = np.asarray(y).copy(), np.asarray(partial).copy()
    for group in range(places.groups):
        for row in range(ROWS):
            place = _place(places, tables, group, row)
            if place is None:
                continue
            element, own, _, _, slot = place
            if slot < 0:
                at = element * graph.num_rows + own
                assert_bit_equal(rows[at], rounded[group, row])
                rows[at] = np.nan
            else:
                np.testing.assert_allclose(parts[element, slot], sums[group, row], rtol=2**-16)
                parts[element, slot] = np.nan
    is_cut = np.tile(np.asarray(graph.degrees()) > 64, batch)
    assert np.isnan(rows.astype(np.float32)).all() and np.isnan(parts).all()
    assert np.isnan(np.asarray(y, np.float32)).all(1).tolist() == is_cut.tolist()


@pytest.mark.emulated
@pytest.mark.parametrize("name", ["ring", "ragged", "hub"])
def test_rows_are_added_to_those_of_both_ends_and_given_to_edges(name):
    graph, batch, width, step = GRAPHS[name](), 2, 96, 1
    places, tables = _dealt_out(graph, batch)
    layout = Layout(width, 64)
    tile = jnp.round(8 * random_array((ROWS, width), "bfloat16", seed=3))
    ends = [jnp.ones((batch * n, width), jnp.float32) for n in (graph.num_rows, graph.num_cols)]
    ends.append(jnp.ones((1, graph.num_edges, width), jnp.float32))
    ends.append(jnp.ones((batch, graph.num_edges, width), jnp.bfloat16))
    ends.append(ends[0])

    def kernel(warp, arrays, receivers, senders, of_all, of_each, by_step, shared):
        tile, listed = arrays
        for row, piece in layout.each(warp):
            words = tile.row(row).load_words(piece * 8, 8)
            shared.store_words(layout.at(row, piece) * 8, words, 8)
        warp.barrier()
        to_rows = AddToRows(places, layout)
        for group in range(places.groups):
            for kind, end in ((AddToSenders, senders), (AddToReceivers, by_step)):
                add = kind(places, layout)
                add(warp, warp.i32(group), warp.i32(step), end, shared, *listed)
            to_rows(warp, warp.i32(group), receivers, shared, shared, *listed)
            for own, edges in ((False, of_all), (True, of_each)):
                give = ScatterFeatures(places, layout, own)
                give(warp, warp.i32(group), warp.i32(step), edges, shared, *listed)

    form = jax.ShapeDtypeStruct((ROWS, width), jnp.bfloat16)
    arrays, options = (tile, _listed(tables)), {"name": "t", "grid": WARPGROUP}
    with emulated():
        made = simt.launch(
            kernel, arrays, [], block_shared={"shared": form}, updated=ends, **options
        )
    rows, senders, of_all, of_each, by_step = (np.asarray(end).copy() for end in ends)
    wide = np.asarray(tile).astype(np.float32)
    for group, row in itertools.product(range(places.groups), range(ROWS)):
        place = _place(places, tables, group, row)
        if place is not None and place[3] > 0:
            rows[place[0] * graph.num_rows + place[1]] += 2 * wide[row]  # twice the same tile
        if place is not None and step < place[3]:
            sender = int(tables.indices[place[2] + step])
            senders[place[0] * graph.num_cols + sender] += wide[row]
            by_step[place[0] * graph.num_rows + place[1]] += wide[row]
            of_all[0, place[2] + step] += wide[row]
            of_each[place[0], place[2] + step] = tile[row]
    assert_bit_equal(made, (rows, senders, of_all, of_each, by_step))


# -- kernels, interpreted --------------------------------------------------------------------------

# Name of a graph, batch, widths, weights, features, activation, whether it is behind the last, the
# tile.
FORWARD = [
    ("ring", 6, (96, 96, 96), None, None, "relu", True, EdgeTile(1, 2, 3)),
    ("ring", 1, (64, 128), 1, None, "gelu", True, EdgeTile(2, 1, 2)),
    ("ragged", 2, (32, 64, 96), 2, 1, "silu", False, EdgeTile(2, 2, 2)),
    ("ragged", 1, (64,), None, None, "relu", True, EdgeTile(1, 1, 4)),
]


@pytest.mark.costly
@pytest.mark.parametrize("name, batch, widths, weights, features, activation, last, tile", FORWARD)
def test_sums_of_layers(name, batch, widths, weights, features, activation, last, tile, capfd):
    check_sums(name, batch, widths, weights, features, activation, last, tile, capfd)


# As above; see ``check_gradients``.
BACKWARD = [
    ("pairs", 3, (32, 96, 32), None, 3, "relu", True, BackwardTile(1, 2, 1)),
    ("ring", 6, (64, 128), 6, 1, "gelu", True, BackwardTile(2, 1, 1, parts=2)),
    ("ragged", 2, (32, 64, 32), 1, None, "silu", False, BackwardTile(1, 1, 2)),
    ("ragged", 1, (64,), 1, 1, "relu", True, BackwardTile(2, 1, 0)),
]


@pytest.mark.costly
@pytest.mark.parametrize("name, batch, widths, weights, features, activation, last, tile", BACKWARD)
def test_gradients_of_sums_of_layers(
    name, batch, widths, weights, features, activation, last, tile, monkeypatch
):
    check_gradients(name, batch, widths, weights, features, activation, last, tile, monkeypatch)


# -- as an op --------------------------------------------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _kernels(function, *arguments) -> int:
    """How many it lowers to; lowering refuses too much shared memory."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return lowered.as_text().count("mosaic_gpu_v2")


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("layers, activation", [(4, "relu"), (3, "gelu"), (2, "silu")])
def test_two_kernels_lower_for_a_batch_of_regular_graphs(layers, activation):
    graph = sudoku()
    assert graph.uniform_degrees() == (20, 20)
    h, params = op_structs((256,), 81, 96, layers)
    run = functools.partial(ops.edge_mlp_aggregate, graph, activation=activation)
    assert _kernels(with_gradients(run), h, params) == 2


@pytest.mark.again("test_general_graphs_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_they_lower_mapped_recomputed_and_on_a_mesh_without_copies_of_the_graph():
    graph = sudoku()
    h, params = op_structs((4, 128), 81, 96, 4)
    options = {"activation": "relu", "implementation": "pallas"}
    run = jax.checkpoint(functools.partial(ops.edge_mlp_aggregate, graph, **options))
    mapped = jax.vmap(with_gradients(run), (0, None))
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    data, shared = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        with_gradients(run), mesh=mesh, in_specs=(data, shared), out_specs=(data, (data, shared))
    )
    for function in (mapped, sharded):
        lowered = jax.jit(function).trace(h, params).lower(lowering_platforms=("cuda",)).as_text()
        assert lowered.count("mosaic_gpu_v2") == 3  # forward twice
        assert f"x{graph.num_edges}x" not in lowered


@pytest.mark.again("test_two_kernels_lower_for_a_batch_of_regular_graphs")
@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_mapped_is_the_kernel_of_a_batch_and_chosen_as_that():
    h, params = op_structs((4, 64), 81, 96, 3)
    run = functools.partial(ops.edge_mlp_aggregate, sudoku(), activation="relu")
    nested = jax.vmap(jax.vmap(run, (0, None)), (0, None))
    together, apart = (signatures(with_gradients(f), h, params) for f in (run, nested))
    assert len(together) == 2 and apart == together


@pytest.mark.again("test_what_is_mapped_is_the_kernel_of_a_batch_and_chosen_as_that")
@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_mapped_with_weights_is_the_kernel_of_a_batch():
    graph = prepared_graph(2000, 32_000, factors=False)
    h, params = op_structs((8,), graph.num_rows, 64, 3)
    weights = jax.ShapeDtypeStruct((8, graph.num_edges), "float32")

    def run(h, params, graph, weights):
        options = {"weights": weights, "implementation": "pallas"}
        return ops.edge_mlp_aggregate(graph, h, params, **options)

    mapped, arguments = jax.vmap(run, (0, None, None, 0)), (h, params, graph, weights)
    together, apart = (signatures(with_gradients(f), *arguments) for f in (run, mapped))
    assert len(together) == 2 and apart == together


@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_general_graphs_lower_with_their_gradients():
    graph = prepared_graph(200_000, 3_200_000, factors=False)
    h, params = op_structs((), graph.num_rows, 128, 3, "float16")

    def run(h, params, graph):
        return ops.edge_mlp_aggregate(graph, h, params, implementation="pallas")

    # Both ends and the edges, each with gradients, and the rows that are cut.
    assert _kernels(with_gradients(run), h, params, graph) == 7


@pytest.mark.again("test_general_graphs_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_weights_and_means_lower_with_gradients():
    graph = prepared_graph(20_000, 320_000, factors=False)
    h, params = op_structs((4,), graph.num_rows, 64, 4)
    weights = jax.ShapeDtypeStruct((4, graph.num_edges), "float32")

    def run(h, params, graph, weights, implementation="pallas"):
        options = {"reduce": "mean", "implementation": implementation}
        return ops.edge_mlp_aggregate(graph, h, params, weights=weights, **options)

    # As above: a mean has weights, and they have gradients.
    assert _kernels(with_gradients(run), h, params, graph, weights) == 7
    left_to_choose = functools.partial(run, implementation=None)
    lowered = jax.jit(left_to_choose).trace(h, params, graph, weights)
    # No graph of this kind was timed.
    assert "edge_mlp_aggregate_mosaic" not in lowered.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.again("test_general_graphs_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "is_regular, width, layers, leading",
    [(True, 96, 4, (64,)), (False, 96, 3, ()), (True, 256, 3, ())],
)
def test_features_of_edges_lower_with_their_gradients(is_regular, width, layers, leading):
    """Of each of the batch, and of all."""
    graph = sudoku() if is_regular else prepared_graph(20_000, 320_000, factors=False)
    h, params = op_structs((64,), graph.num_rows, width, layers)
    first = jax.ShapeDtypeStruct((2 * width + 5, width), "bfloat16")
    params = params._replace(kernels=(first, *params.kernels[1:]))
    features = jax.ShapeDtypeStruct((*leading, graph.num_edges, 5), "bfloat16")

    def run(h, params, features, traced, implementation="pallas"):
        options = {"implementation": implementation}
        of = graph if traced is None else traced

        def value(h, params, features):
            return ops.edge_mlp_aggregate(of, h, params, features, **options)

        y, pull_back = jax.vjp(value, h, params, features)
        return y, pull_back(y)

    # Of a graph that is a constant the degrees are known.
    arguments = h, params, features, None if is_regular else graph
    assert len(signatures(run, *arguments)) == 2
    assert not signatures(functools.partial(run, implementation=None), *arguments)  # not timed


@pytest.mark.again("test_general_graphs_lower_with_their_gradients")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_deep_layers_lower_with_their_gradients_where_asked_for():
    graph = sudoku()
    h, params = op_structs((256,), 81, 128, 9)

    def run(h, params, implementation=None):
        return ops.edge_mlp_aggregate(graph, h, params, implementation=implementation)

    named = functools.partial(run, implementation="pallas")
    assert len(signatures(with_gradients(named), h, params)) == 2
    assert not signatures(with_gradients(run), h, params)  # not timed


REFUSED = {
    "needs a sum or a mean": {"reduce": "max"},
    "multiples of 32 up to 128, or all of 64 up to 256, got 160": {"width": 160},
    "multiples of 32 up to 128, or all of 64 up to 256, got 48": {"width": 48},
    "up to 256, got 320": {"width": 320},
    "bfloat16 or float16 values, got float32": {"dtype": "float32"},
    "fit a multiprocessor, got the widths .96": {"width": 96, "layers": 15},
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("message", REFUSED)
def test_what_the_kernels_do_not_take_is_named_and_left_to_xla(message):
    case = {"width": 64, "dtype": "bfloat16", "reduce": "sum", "layers": 3}
    case |= REFUSED[message]
    graph, width = sudoku(), case["width"]
    h, params = op_structs((256,), 81, width, case["layers"], case["dtype"])

    def run(h, params, implementation=None):
        options = {"reduce": case["reduce"], "implementation": implementation}
        return ops.edge_mlp_aggregate(graph, h, params, **options)

    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(functools.partial(run, implementation="pallas"), h, params)
    lowered = jax.jit(run).trace(h, params).lower(lowering_platforms=("cuda",))
    assert "edge_mlp_aggregate_mosaic" not in lowered.as_text()


def _with_bad_nodes(array, element):
    """All of one element of the batch NaN, and rows of the other that have no edge infinite."""
    return array.at[element].set(jnp.nan).at[1 - element, 50:].set(jnp.inf)


@pytest.mark.again("tests/ops/test_not_finite.py")
def test_what_is_not_finite_stays_with_its_element_and_its_edges(monkeypatch):
    graph, element, other = GRAPHS["ragged"](), 0, 1  # no edge has a receiver behind 50
    given = operands_of(graph, 2, (32, 64, 32), 2, 2)
    bad = given._replace(
        receivers=_with_bad_nodes(given.receivers, element),
        senders=given.senders.at[element].set(jnp.nan),
    )
    options = options_of(graph, "silu")
    y, bad_y = (run_sums(graph, a, options, EdgeTile(2, 2, 2)) for a in (given, bad))
    np.testing.assert_array_equal(bad_y[other], y[other])
    assert np.isnan(np.asarray(bad_y[element, :50], np.float32)).any()

    # Only rows without edges are bad, in both the features and dy: nothing is, behind the sums.
    dy = random_array(y.shape, "bfloat16", 41)
    bad = given._replace(receivers=given.receivers.at[:, 50:].set(jnp.inf))
    tile = BackwardTile(1, 1, 2)
    made, hurt = (
        run_gradients(graph, a, d, options, tile, monkeypatch)
        for a, d in ((given, dy), (bad, dy.at[:, 50:].set(jnp.nan)))
    )
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(hurt), strict=True):
        np.testing.assert_array_equal(np.asarray(b, np.float32), np.asarray(a, np.float32))

    # The gradients that an element has to itself.
    hurt = run_gradients(graph, given, dy.at[element].set(jnp.nan), options, tile, monkeypatch)
    for name in ("receivers", "senders", "features", "weights"):
        right, left = (np.asarray(getattr(g, name), np.float32) for g in (made, hurt))
        np.testing.assert_array_equal(left[other], right[other], err_msg=name)
        assert np.isnan(left[element]).any()
