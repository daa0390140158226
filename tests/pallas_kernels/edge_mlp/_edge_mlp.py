"""The kernels of layers of edges: their inputs, how they run without a GPU, and lower for one.

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

from jaxgnn import CSRGraph, ops
from jaxgnn.ops._edge_mlp import pallas
from jaxgnn.ops._edge_mlp.reference import edge_mlp_aggregate as reference
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import EdgeOperands, EdgeOptions
from jaxgnn.ops._graph.pallas import pieces
from jaxgnn.testing import assert_close, random_array, to_float64
from pallas_kernels import simt
from pallas_kernels.edge_mlp import edge_mlp_aggregate
from pallas_kernels.edge_mlp import forward as edge_forward
from pallas_kernels.edge_mlp.edge_tiles import ROWS, EdgeLayers, Tables
from pallas_kernels.edge_mlp.gather_scatter import (
    AddToReceivers,
    AddToRows,
    AddToSenders,
    GatherEdges,
    GatherFeatures,
    GatherRows,
    ScatterFeatures,
    ScatterRows,
    StoreByEdge,
    WaitForAllCopies,
    WaitForCopies,
)
from pallas_kernels.edge_mlp.ring_forward import RingTile
from tests.ops.edge_mlp._edges import RING
from tests.pallas_kernels._tensor_cores import interpreting


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


def operands_of(graph, batch, widths, weights=None, features=None, dtype="bfloat16"):
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


def options_of(graph, activation, activate_last=True):
    return EdgeOptions(activation, activate_last, False, *graph.uniform_degrees())


# -- kernels, interpreted --------------------------------------------------------------------------


def _inline_stand_in(kernel, numbers, references):
    """Takes the place of ``simt.inline`` in the interpreter."""
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
    elif isinstance(kernel, ScatterFeatures):
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
def interpreted(*, detect_races=False):
    with pytest.MonkeyPatch.context() as patch, interpreting(detect_races=detect_races):
        patch.setattr(simt, "inline", _inline_stand_in)
        patch.setattr(edge_forward, "multiply", _multiply)
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


@functools.partial(jax.jit, static_argnames="options")
def _exactly(structure, operands, options):
    return reference.edge_reduce(structure, operands, options=options)


def _edge_layers(operands):
    """As the kernels take them."""
    return EdgeLayers(*pallas._kernel_layers(operands))


def run_sums(graph, operands, options, tile):
    """By the kernel, interpreted."""
    how = options.activation, options.activate_last, options.row_degree, tile
    with interpreted(detect_races=isinstance(tile, RingTile)):
        return edge_mlp_aggregate.edge_reduce(pieces(graph), _edge_layers(operands), *how)


def run_gradients(graph, operands, dy, options, tile, monkeypatch):
    """By the kernels, interpreted."""
    backward = functools.partial(edge_mlp_aggregate.edge_reduce_backward, tile=tile)
    monkeypatch.setattr(edge_mlp_aggregate, "edge_reduce_backward", backward)
    run = inspect.unwrap(pallas.edge_reduce_backward)  # a jit would keep it
    with interpreted():
        return run(graph, operands, dy, options=options)


def check_sums(name, batch, widths, weights, features, activation, last, tile, capfd):
    """Against float64, without a race."""
    graph = GRAPHS[name]()
    operands = operands_of(graph, batch, widths, weights, features)
    options = options_of(graph, activation, last)
    y = run_sums(graph, operands, options, tile)
    assert "RACE" not in capfd.readouterr().out
    with jax.enable_x64(True):
        exact = _exactly(graph, to_float64(operands), options)
    assert y.dtype == jnp.bfloat16
    assert_close(y, exact, reduction_length=max(widths), operands="bfloat16")


@functools.partial(jax.jit, static_argnames="options")
def _exactly_back(structure, operands, dy, options):
    return reference.edge_reduce_backward(structure, operands, dy, options=options)


def check_gradients(name, batch, widths, weights, features, activation, last, tile, monkeypatch):
    """All of them, against float64.

    What stands in for atomic additions is not atomic: walkers of a block have boards of their own
    here, which are not equally many; blocks run one after another.
    """
    graph = GRAPHS[name]()
    operands = operands_of(graph, batch, widths, weights, features)
    options = options_of(graph, activation, last)
    dy = random_array((batch, graph.num_rows, widths[-1]), "bfloat16", 41)
    if activation == "relu":
        operands, dy = _small_integers((operands, dy))
    made = run_gradients(graph, operands, dy, options, tile, monkeypatch)
    with jax.enable_x64(True):
        exact = _exactly_back(graph, *to_float64((operands, dy)), options)
    assert jax.tree.structure(made) == jax.tree.structure(exact)
    length = max(batch * graph.num_edges, *widths)
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert a.dtype == (jnp.float32 if a is made.weights else jnp.bfloat16)
        assert_close(a, e, reduction_length=length, operands="bfloat16")


# -- as an op --------------------------------------------------------------------------------------


def op_structs(batch, nodes, width, layers, dtype="bfloat16"):
    """Features, and parameters of so many layers of one width."""
    struct = jax.ShapeDtypeStruct
    widths = (2 * width, *[width] * layers)
    kernels = tuple(struct(form, dtype) for form in itertools.pairwise(widths))
    biases = tuple(struct((width,), dtype) for _ in range(layers))
    return struct((*batch, nodes, width), dtype), ops.EdgeMLPParams(kernels, biases)


def sudoku():
    """81 cells, each the neighbour of 20."""
    cells = np.arange(81)
    row, column = np.divmod(cells, 9)
    box = row // 3 * 3 + column // 3
    same = sum((place[:, None] == place for place in (row, column, box)), start=0) > 0
    return CSRGraph.from_edges(*np.nonzero(same & ~np.eye(81, dtype=bool)), 81)


def with_gradients(function):
    """The value, and the gradients to the features and the parameters."""

    def both(h, params, *arguments):
        y, pull_back = jax.vjp(lambda h, params: function(h, params, *arguments), h, params)
        return y, pull_back(y)

    return both


def signatures(function, *arguments) -> list[str]:
    """The types of what kernels of edges take and give; mapped ones would have axes more."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return signatures_in(lowered.as_text())


def signatures_in(lowered: str) -> list[str]:
    """Likewise, of what was lowered."""
    names = re.compile("edge_mlp_aggregate[a-z_]*_mosaic")
    lines = [line for line in lowered.splitlines() if names.search(line)]
    return [line[line.rindex(" : (") :] for line in lines]
