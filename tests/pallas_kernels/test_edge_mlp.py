"""The kernels of layers of edges: SIMT code emulated, the rest interpreted; lowered for CUDA.

The interpreter knows no SIMT code, nor products of registers: plain JAX stands in for them there.
"""

import contextlib
import functools
import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import CSRGraph, ops
from jaxgnn.ops import _dispatch as dispatch
from jaxgnn.ops import _pallas_edges
from jaxgnn.ops._pallas import pieces
from jaxgnn.ops.reference import _edge_reduce as reference
from jaxgnn.ops.reference._edge_reduce import EdgeOperands, EdgeOptions
from jaxgnn.testing import assert_bit_equal, assert_close, random_array, to_float64
from pallas_kernels import _edge_forward, _simt, edge_mlp_aggregate
from pallas_kernels._edge_chunks import ChunkTile
from pallas_kernels._edge_forward import EdgeTile
from pallas_kernels._edge_places import (
    ROWS,
    AddToReceivers,
    AddToRows,
    AddToSenders,
    EdgeLayers,
    GatherEdges,
    GatherFeatures,
    GatherRows,
    GiveToFeatures,
    Layout,
    ScatterRows,
    StoreByEdge,
    Tables,
    WaitForAllCopies,
    WaitForCopies,
)
from pallas_kernels._edge_stream_forward import StreamTile
from pallas_kernels._edge_wide import WideTile
from pallas_kernels._edge_work import BackwardTile
from tests.ops._edges import RING
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.test_lowering import _graph as prepared_graph

WARPGROUP = _simt.Grid(blocks=1, warps=4)


def _ragged(num_edges=80):
    """60 receivers of 40 senders: one of many edges, some of none; and slots of padding."""
    rng = np.random.default_rng(0)
    receivers = np.where(rng.random(num_edges) < 0.1, 3, rng.integers(0, 50, num_edges))
    mask = rng.random(num_edges) < 0.9
    senders = rng.integers(0, 40, num_edges)
    return CSRGraph.from_edges(senders, receivers, 60, num_senders=40, edge_mask=mask)


def _hub():
    """A row of several pieces, some of several parts or of whole ones, and others."""
    receivers = np.repeat([1, 4, 0, 7, 8, 9], [600, 256, 3, 1, 64, 65])
    return CSRGraph.from_edges(np.arange(989) % 40, receivers, 10, num_senders=40)


def _pairs():
    """64 nodes, each of which receives from two."""
    nodes = np.arange(64)
    return CSRGraph.from_edges(np.stack([nodes, nodes - 1], 1).ravel() % 64, nodes.repeat(2), 64)


GRAPHS = {"pairs": _pairs, "ring": lambda: RING, "ragged": _ragged, "hub": _hub}


def _operands(graph, batch, widths, weights=None, features=None, dtype="bfloat16"):
    """Of layers of these widths, every second with a bias.

    ``weights`` and ``features``, three for each edge, for so many of the batch.
    """
    kernels = [
        random_array(form, dtype, i, scale=form[0] ** -0.5)
        for i, form in enumerate(itertools.pairwise(widths))
    ]
    biases = [
        None if i % 2 else random_array((width,), dtype, 20 + i)
        for i, width in enumerate(widths[1:])
    ]
    given = None if weights is None else random_array((weights, graph.num_edges), "float32", 40)
    receivers = random_array((batch, graph.num_rows, widths[0]), dtype, 30)
    senders = random_array((batch, graph.num_cols, widths[0]), dtype, 31)
    of_edges, projection = None, None
    if features is not None:
        real = graph.receivers() < graph.num_rows  # padding slots hold anything
        of_edges = random_array((features, graph.num_edges, 3), dtype, 50)
        of_edges = jnp.where(real[:, None], of_edges, jnp.nan)
        projection = random_array((3, widths[0]), dtype, 51, scale=3**-0.5)
    projected = of_edges, given, projection
    return EdgeOperands(receivers, senders, *projected, tuple(kernels), tuple(biases))


def _small_integers(tree):
    """Of which all sums are exact, and with them the signs of what relu reads."""

    def rounded(array):
        of_one = array * array.shape[0] ** 0.5 if array.ndim == 2 else array
        most = 1 if array.ndim == 2 else 2
        return jnp.clip(jnp.round(of_one), -most, most)

    return jax.tree.map(rounded, tree)


def _options(graph, activation, activate_last=True):
    return EdgeOptions(activation, activate_last, False, *graph.uniform_degrees())


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
@pytest.mark.parametrize("width, swizzle", [(64, 128), (96, 64)])
def test_tiles_are_gathered_and_scattered_as_the_tensor_cores_have_them(name, width, swizzle):
    """To shared memory and back by another way of counting; the group is the last of the batch."""
    graph, batch = GRAPHS[name](), 6
    places, tables = _dealt_out(graph, batch)
    layout, group, step = Layout(width, swizzle), places.groups - 1, 2
    operands = _operands(graph, batch, (width,), weights=batch)
    given = jax.tree.map(jnp.asarray, (_flat(operands.receivers), _flat(operands.senders)))
    features = random_array((2, batch, graph.num_edges, width), "bfloat16", seed=5)
    arrays = (*given, operands.weights, features[0], features[1, :1], _listed(tables))

    def kernel(warp, arrays, *results, receivers, senders, own, shared, factors):
        receivers_in, senders_in, weights, own_in, shared_in, listed = arrays
        *copies, found = results
        numbers = warp.i32(group), warp.i32(step), warp.i32(step + 1)
        GatherRows(places, layout)(warp, numbers[0], receivers_in, receivers, *listed)
        for is_own, source, tile in ((True, own_in, own), (False, shared_in, shared)):
            GatherFeatures(places, layout, is_own)(warp, *numbers, source, tile, *listed)
        gather = GatherEdges(places, layout, True, True)
        gather(warp, *numbers, senders_in, senders, factors, weights, *listed)
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
        rows, edges, own, shared, factors = _simt.launch(
            kernel, arrays, results, block_shared=tiles | {"factors": numbers}, **options
        )
    assert_bit_equal(rows, _tile_of_rows(places, tables, group, _flat(operands.receivers)))
    expected = _tile_of_edges(
        places, tables, group, step, _flat(operands.senders), np.asarray(operands.weights)
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
        y, partial = _simt.launch(
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
                give = GiveToFeatures(places, layout, own)
                give(warp, warp.i32(group), warp.i32(step), edges, shared, *listed)

    form = jax.ShapeDtypeStruct((ROWS, width), jnp.bfloat16)
    arrays, options = (tile, _listed(tables)), {"name": "t", "grid": WARPGROUP}
    with emulated():
        made = _simt.launch(
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


def _inline_stand_in(kernel, numbers, references):
    """Takes the place of ``_simt.inline`` in the interpreter."""
    references = [reference for reference, _ in references]
    if isinstance(kernel, GatherRows):
        (group,), (nodes, tile, *listed) = numbers, references
        element, row, _, length, real = _vector_places(kernel.places, group, Tables(*listed))
        rows = nodes[...][element * kernel.places.rows + row]
        tile[...] = jnp.where((real & (length > 0))[:, None], rows, 0)
    elif isinstance(kernel, GatherEdges):
        (group, step, steps), (nodes, tile, *rest) = numbers, references
        factors = rest.pop(0) if kernel.has_factors else None
        weights = rest.pop(0) if kernel.own_weights is not None else None
        tables = Tables(*rest)

        @pl.when(step < steps)
        def _():
            element, _, start, length, real = _vector_places(kernel.places, group, tables)
            has = real & (step < length)
            edge = jnp.where(has, start + step, 0)
            node = element * kernel.places.cols + tables.indices[...][edge]
            tile[...] = jnp.where(has[:, None], nodes[...][node], 0)
            if factors is not None:
                own = element if kernel.own_weights else 0 * element
                found = 1.0 if weights is None else weights[...][own, edge]
                factors[...] = jnp.where(has, found, 0.0)
    elif isinstance(kernel, GatherFeatures):
        (group, step, steps), (features, tile, *listed) = numbers, references

        @pl.when(step < steps)
        def _():
            tables = Tables(*listed)
            element, _, start, length, real = _vector_places(kernel.places, group, tables)
            has = real & (step < length)
            own = element if kernel.own else 0 * element
            rows = features[...][own, jnp.where(has, start + step, 0)]
            tile[...] = jnp.where(has[:, None], rows, 0)
    elif isinstance(kernel, GiveToFeatures):
        (group, step), (result, tile, *listed) = numbers, references
        element, _, start, length, real = _vector_places(kernel.places, group, Tables(*listed))
        values = tile[...]

        @pl.loop(0, ROWS)
        def _(i):
            @pl.when(real[i] & (step < length[i]))
            def _():
                own = element[i] if kernel.own else 0
                before = 0 if kernel.own else result[own, start[i] + step]
                result[own, start[i] + step] = before + values[i].astype(result.dtype)

    elif isinstance(kernel, ScatterRows):
        (group,), (result, tile, *rest) = numbers, references
        is_listed = kernel.places.degree is None
        left, partial, *listed = rest if is_listed else (None, None, *rest)
        tables = Tables(*listed)
        element, row, _, _, real = _vector_places(kernel.places, group, tables)
        slots = -jnp.ones_like(row)
        if is_listed:
            slots = tables.slots[...][_numbers(kernel.places, group)]
        values = tile[...]

        @pl.loop(0, ROWS)
        def _(i):
            @pl.when(real[i] & (slots[i] < 0))
            def _():
                result[element[i] * kernel.places.rows + row[i]] = values[i]

            if is_listed:

                @pl.when(real[i] & (slots[i] >= 0))
                def _():
                    low = left[...][i].astype(jnp.float32)
                    partial[element[i], slots[i]] = values[i].astype(jnp.float32) + low
    elif isinstance(kernel, StoreByEdge):
        (group, step), (result, given, *listed) = numbers, references
        element, _, start, length, real = _vector_places(kernel.places, group, Tables(*listed))
        values = given[...]

        @pl.loop(0, ROWS)
        def _(i):
            @pl.when(real[i] & (step < length[i]))
            def _():
                result[element[i], start[i] + step] = values[i]

    elif isinstance(kernel, AddToRows):
        (group,), (sums, tile, left, *listed) = numbers, references
        element, row, _, length, real = _vector_places(kernel.places, group, Tables(*listed))
        node = element * kernel.places.rows + row
        values = tile[...].astype(jnp.float32) + left[...].astype(jnp.float32)

        @pl.loop(0, ROWS)
        def _(i):
            @pl.when(real[i] & (length[i] > 0))
            def _():
                sums[node[i]] = sums[node[i]] + values[i]

    elif isinstance(kernel, AddToSenders | AddToReceivers):
        (group, step), (sums, tile, *listed) = numbers, references
        tables = Tables(*listed)
        element, row, start, length, real = _vector_places(kernel.places, group, tables)
        has = real & (step < length)
        senders = tables.indices[...][jnp.where(has, start + step, 0)]
        node = element * kernel.places.cols + senders
        if isinstance(kernel, AddToReceivers):
            node = element * kernel.places.rows + row
        values = tile[...].astype(jnp.float32)

        @pl.loop(0, ROWS)
        def _(i):
            @pl.when(has[i])
            def _():
                sums[node[i]] = sums[node[i]] + values[i]
    else:
        assert isinstance(kernel, WaitForCopies | WaitForAllCopies)


def _numbers(places, group):
    return group % (places.pieces // ROWS) * ROWS + jnp.arange(ROWS, dtype=jnp.int32)


def _vector_places(places, group, tables):
    """Element, row, first edge, length and whether there is one, of each place of a group."""
    if places.degree is not None:
        number = group * ROWS + jnp.arange(ROWS, dtype=jnp.int32)
        real = number < places.batch * places.rows
        element, row = jnp.divmod(jnp.where(real, number, 0), places.rows)
        return element, row, row * places.degree, jnp.full(ROWS, places.degree), real
    numbers = _numbers(places, group)
    row, start, length = (t[...][numbers] for t in (tables.rows, tables.starts, tables.lengths))
    element = jnp.full(ROWS, group // (places.pieces // ROWS))
    return element, row, start, length, start >= 0


def _multiply(a, kernel):
    return a.astype(jnp.float32) @ kernel[...].astype(jnp.float32)


@contextlib.contextmanager
def _interpreted(*, detect_races=False):
    parameters = plgpu.InterpretGPUParams(detect_races=detect_races)
    with pytest.MonkeyPatch.context() as patch, plgpu.force_gpu_interpret_mode(parameters):
        patch.setattr(_simt, "inline", _inline_stand_in)
        patch.setattr(_edge_forward, "multiply", _multiply)
        patch.setattr(edge_mlp_aggregate, "add_pieces", _add_pieces)
        yield


def _add_pieces(graph, partial, y):
    """By plain JAX, of all rows that are cut."""
    size = graph.edges_per_piece
    begins, ends = graph.indptr[:-1], graph.indptr[1:]
    for part in range(-(-graph.num_edges // size)):
        begin = begins + part * size
        is_full = ends - begin >= size
        slot = begin // size + jnp.where(is_full, 0, graph.num_edges // size + 1)
        has = (begin < ends) & (ends - begins > size)
        added = jnp.where(has[:, None], partial[jnp.where(has, slot, 0)], 0)
        total = added if part == 0 else total + added
    return jnp.where((ends - begins > size)[:, None], total.astype(y.dtype), y)


# Name of a graph, batch, widths, weights, features, activation, whether it is behind the last, the
# tile.
FORWARD = [
    ("ring", 6, (96, 96, 96), None, None, "relu", True, EdgeTile(1, 2, 3)),
    ("ring", 1, (64, 128), 1, None, "gelu", True, EdgeTile(2, 1, 2)),
    ("ragged", 2, (32, 64, 96), 2, 1, "silu", False, EdgeTile(2, 2, 2)),
    ("ragged", 1, (64,), None, None, "relu", True, EdgeTile(1, 1, 4)),
    ("ring", 6, (192, 192), 6, 6, "relu", True, WideTile(1, 2, 2)),
    ("ragged", 1, (64, 192, 64, 64), 1, None, "silu", False, WideTile(1, 4, 3)),
    ("ring", 6, (256, 256), 6, 1, "relu", True, StreamTile(1, 2, 3)),
    ("ragged", 1, (64, 256, 64, 64), 1, None, "silu", False, StreamTile(2, 2, 2)),
]


@functools.partial(jax.jit, static_argnames="options")
def _exactly(structure, operands, options):
    return reference.edge_reduce(structure, operands, options=options)


def _edge_layers(operands):
    """As the kernels take them."""
    return EdgeLayers(*_pallas_edges._layers(operands))


@pytest.mark.parametrize("name, batch, widths, weights, features, activation, last, tile", FORWARD)
def test_sums_of_layers(name, batch, widths, weights, features, activation, last, tile, capfd):
    graph = GRAPHS[name]()
    operands = _operands(graph, batch, widths, weights, features)
    options = _options(graph, activation, last)
    layers = _edge_layers(operands)
    with _interpreted(detect_races=isinstance(tile, StreamTile)):
        y = edge_mlp_aggregate.edge_reduce(
            pieces(graph), layers, activation, last, options.row_degree, tile
        )
    assert "RACE" not in capfd.readouterr().out
    with jax.enable_x64(True):
        exact = _exactly(graph, to_float64(operands), options)
    assert y.dtype == jnp.bfloat16
    assert_close(y, exact, reduction_length=max(widths), operands="bfloat16")


# As above. What stands in for atomic additions is not atomic: walkers of a block have boards of
# their own here, which are not equally many; blocks run one after another.
BACKWARD = [
    ("pairs", 3, (32, 96, 32), None, 3, "relu", True, BackwardTile(1, 2, 1)),
    ("ring", 6, (64, 128), 6, 1, "gelu", True, BackwardTile(2, 1, 1, parts=2)),
    ("ragged", 2, (32, 64, 32), 1, None, "silu", False, BackwardTile(1, 1, 2)),
    ("ragged", 1, (64,), 1, 1, "relu", True, BackwardTile(2, 1, 0)),
    ("pairs", 3, (256, 256), None, 3, "relu", True, ChunkTile(2, 2, 3, 1)),
    ("ring", 6, (192, 64, 128), 6, 1, "gelu", True, ChunkTile(2, 1, 2, 1)),
    ("ragged", 2, (192, 192), 1, None, "silu", False, ChunkTile(3, 1, 4, 1)),
    ("ragged", 1, (192,), 1, 1, "relu", True, ChunkTile(2, 1, 0, 2)),
]


@functools.partial(jax.jit, static_argnames="options")
def _exactly_back(structure, operands, dy, options):
    return reference.edge_reduce_backward(structure, operands, dy, options=options)


@pytest.mark.parametrize("name, batch, widths, weights, features, activation, last, tile", BACKWARD)
def test_gradients_of_sums_of_layers(
    name, batch, widths, weights, features, activation, last, tile, monkeypatch
):
    graph = GRAPHS[name]()
    operands = _operands(graph, batch, widths, weights, features)
    options = _options(graph, activation, last)
    dy = random_array((batch, graph.num_rows, widths[-1]), "bfloat16", 41)
    if activation == "relu":
        operands, dy = _small_integers((operands, dy))
    backward = functools.partial(edge_mlp_aggregate.edge_reduce_backward, tile=tile)
    monkeypatch.setattr(edge_mlp_aggregate, "edge_reduce_backward", backward)
    run = inspect.unwrap(_pallas_edges.edge_reduce_backward)  # a jit would keep it
    with _interpreted():
        made = run(graph, operands, dy, options=options)
    with jax.enable_x64(True):
        exact = _exactly_back(graph, *to_float64((operands, dy)), options)
    assert jax.tree.structure(made) == jax.tree.structure(exact)
    length = max(batch * graph.num_edges, *widths)
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert a.dtype == (jnp.float32 if a is made.weights else jnp.bfloat16)
        assert_close(a, e, reduction_length=length, operands="bfloat16")


# -- as an op --------------------------------------------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _kernels(function, *arguments) -> int:
    """How many it lowers to; lowering refuses too much shared memory."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return lowered.as_text().count("mosaic_gpu_v2")


def _op_structs(batch, nodes, width, layers, dtype="bfloat16"):
    """Features, and parameters of so many layers of one width."""
    struct = jax.ShapeDtypeStruct
    widths = (2 * width, *[width] * layers)
    kernels = tuple(struct(form, dtype) for form in itertools.pairwise(widths))
    biases = tuple(struct((width,), dtype) for _ in range(layers))
    return struct((*batch, nodes, width), dtype), ops.EdgeMLPParams(kernels, biases)


def _sudoku():
    """81 cells, each the neighbour of 20."""
    cells = np.arange(81)
    row, column = np.divmod(cells, 9)
    box = row // 3 * 3 + column // 3
    same = sum((place[:, None] == place for place in (row, column, box)), start=0) > 0
    return CSRGraph.from_edges(*np.nonzero(same & ~np.eye(81, dtype=bool)), 81)


def _with_gradients(function):
    """The value, and the gradients to the features and the parameters."""

    def both(h, params, *arguments):
        y, pull_back = jax.vjp(lambda h, params: function(h, params, *arguments), h, params)
        return y, pull_back(y)

    return both


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("layers, activation", [(4, "relu"), (3, "gelu"), (2, "silu")])
def test_two_kernels_lower_for_a_batch_of_regular_graphs(layers, activation):
    graph = _sudoku()
    assert graph.uniform_degrees() == (20, 20)
    h, params = _op_structs((256,), 81, 96, layers)
    run = functools.partial(ops.edge_mlp_aggregate, graph, activation=activation)
    assert _kernels(_with_gradients(run), h, params) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_they_lower_mapped_recomputed_and_on_a_mesh_without_copies_of_the_graph():
    graph = _sudoku()
    h, params = _op_structs((4, 128), 81, 96, 4)
    options = {"activation": "relu", "implementation": "pallas"}
    run = jax.checkpoint(functools.partial(ops.edge_mlp_aggregate, graph, **options))
    mapped = jax.vmap(_with_gradients(run), (0, None))
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    data, shared = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        _with_gradients(run), mesh=mesh, in_specs=(data, shared), out_specs=(data, (data, shared))
    )
    for function in (mapped, sharded):
        lowered = jax.jit(function).trace(h, params).lower(lowering_platforms=("cuda",)).as_text()
        assert lowered.count("mosaic_gpu_v2") == 3  # forward twice
        assert f"x{graph.num_edges}x" not in lowered


def _signatures(function, *arguments) -> list[str]:
    """The types of what kernels of edges take and give; mapped ones would have axes more."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return _signatures_in(lowered.as_text())


def _signatures_in(lowered: str) -> list[str]:
    names = re.compile("edge_mlp_aggregate[a-z_]*_mosaic")
    lines = [line for line in lowered.splitlines() if names.search(line)]
    return [line[line.rindex(" : (") :] for line in lines]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_mapped_is_the_kernel_of_a_batch_and_chosen_as_that():
    h, params = _op_structs((4, 64), 81, 96, 3)
    run = functools.partial(ops.edge_mlp_aggregate, _sudoku(), activation="relu")
    nested = jax.vmap(jax.vmap(run, (0, None)), (0, None))
    together, apart = (_signatures(_with_gradients(f), h, params) for f in (run, nested))
    assert len(together) == 2 and apart == together


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_mapped_with_weights_is_the_kernel_of_a_batch():
    graph = prepared_graph(2000, 32_000, factors=False)
    h, params = _op_structs((8,), graph.num_rows, 64, 3)
    weights = jax.ShapeDtypeStruct((8, graph.num_edges), "float32")

    def run(h, params, graph, weights):
        options = {"weights": weights, "implementation": "pallas"}
        return ops.edge_mlp_aggregate(graph, h, params, **options)

    mapped, arguments = jax.vmap(run, (0, None, None, 0)), (h, params, graph, weights)
    together, apart = (_signatures(_with_gradients(f), *arguments) for f in (run, mapped))
    assert len(together) == 2 and apart == together


@pytest.mark.usefixtures("as_on_a_gpu")
def test_general_graphs_lower_with_their_gradients():
    graph = prepared_graph(200_000, 3_200_000, factors=False)
    h, params = _op_structs((), graph.num_rows, 128, 3, "float16")

    def run(h, params, graph):
        return ops.edge_mlp_aggregate(graph, h, params, implementation="pallas")

    # Both ends and the edges, each with gradients, and the rows that are cut.
    assert _kernels(_with_gradients(run), h, params, graph) == 7


@pytest.mark.usefixtures("as_on_a_gpu")
def test_weights_and_means_lower_with_gradients():
    graph = prepared_graph(20_000, 320_000, factors=False)
    h, params = _op_structs((4,), graph.num_rows, 64, 4)
    weights = jax.ShapeDtypeStruct((4, graph.num_edges), "float32")

    def run(h, params, graph, weights, implementation="pallas"):
        options = {"reduce": "mean", "implementation": implementation}
        return ops.edge_mlp_aggregate(graph, h, params, weights=weights, **options)

    # As above: a mean has weights, and they have gradients.
    assert _kernels(_with_gradients(run), h, params, graph, weights) == 7
    left_to_choose = functools.partial(run, implementation=None)
    lowered = jax.jit(left_to_choose).trace(h, params, graph, weights)
    # No graph of this kind was timed.
    assert "edge_mlp_aggregate_mosaic" not in lowered.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_wide_layers_lower_with_their_gradients_and_keep_nothing_of_all_edges():
    graph, width = _sudoku(), 256
    h, params = _op_structs((256,), 81, width, 4)

    def run(h, params, implementation=None):
        return ops.edge_mlp_aggregate(graph, h, params, implementation=implementation)

    both = _with_gradients(functools.partial(run, implementation="pallas"))
    lowered = jax.jit(both).trace(h, params).lower(lowering_platforms=("cuda",)).as_text()
    assert len(_signatures_in(lowered)) == 2
    edges = graph.num_edges
    assert f"{256 * edges}x{width}x" not in lowered and f"x{edges}x{width}x" not in lowered
    assert not _signatures(_with_gradients(run), h, params)  # wide ones were not timed


@pytest.mark.usefixtures("as_on_a_gpu")
def test_wide_layers_of_general_graphs_lower_with_weights():
    graph = prepared_graph(20_000, 320_000, factors=False)
    h, params = _op_structs((2,), graph.num_rows, 256, 3, "float16")
    weights = jax.ShapeDtypeStruct((2, graph.num_edges), "float32")

    def run(h, params, graph, weights):
        options = {"weights": weights, "implementation": "pallas"}
        return ops.edge_mlp_aggregate(graph, h, params, **options)

    assert len(_signatures(_with_gradients(run), h, params, graph, weights)) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "is_regular, width, layers, leading",
    [(True, 96, 4, (64,)), (False, 96, 3, ()), (True, 256, 3, ())],
)
def test_features_of_edges_lower_with_their_gradients(is_regular, width, layers, leading):
    """Of each of the batch, and of all."""
    graph = _sudoku() if is_regular else prepared_graph(20_000, 320_000, factors=False)
    h, params = _op_structs((64,), graph.num_rows, width, layers)
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
    assert len(_signatures(run, *arguments)) == 2
    assert not _signatures(functools.partial(run, implementation=None), *arguments)  # not timed


@pytest.mark.usefixtures("as_on_a_gpu")
def test_deep_layers_lower_with_their_gradients_where_asked_for():
    graph = _sudoku()
    h, params = _op_structs((256,), 81, 128, 9)

    def run(h, params, implementation=None):
        return ops.edge_mlp_aggregate(graph, h, params, implementation=implementation)

    named = functools.partial(run, implementation="pallas")
    assert len(_signatures(_with_gradients(named), h, params)) == 2
    assert not _signatures(_with_gradients(run), h, params)  # not timed


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
    graph, width = _sudoku(), case["width"]
    h, params = _op_structs((256,), 81, width, case["layers"], case["dtype"])

    def run(h, params, implementation=None):
        options = {"reduce": case["reduce"], "implementation": implementation}
        return ops.edge_mlp_aggregate(graph, h, params, **options)

    with pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(functools.partial(run, implementation="pallas"), h, params)
    lowered = jax.jit(run).trace(h, params).lower(lowering_platforms=("cuda",))
    assert "edge_mlp_aggregate_mosaic" not in lowered.as_text()
