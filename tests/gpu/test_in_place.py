"""Kernels that change arrays in place, beside slices of arrays and twice in a program.

XLA makes one fusion of a custom call, the slices that it reads and the updates of slices that it
writes, and does not see in it what the call changes: see ``pallas_kernels.in_place``.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph, ops
from jaxgnn.testing import assert_close, random_array

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

NODES, EDGES, CALLS = 256, 12_000, 2


@functools.cache
def _long_rows() -> CSRGraph:
    """A third of the edges in one row, which is summed in pieces and added in place."""
    rng = np.random.default_rng(0)
    receivers = np.where(rng.random(EDGES) < 0.3, 5, rng.integers(0, NODES, EDGES))
    return CSRGraph.from_edges(rng.integers(0, NODES, EDGES), receivers, NODES)


@functools.cache
def _regular() -> CSRGraph:
    places = np.arange(8 * NODES)
    return CSRGraph.from_edges(places % NODES, places // 8, NODES)


def _maxk_spmm(values, **options):
    columns = jnp.broadcast_to(jnp.arange(16, dtype=jnp.uint8) * 3, values.shape)
    return ops.maxk_spmm(_long_rows(), CBSR(values, columns, 64), **options)


def _messages(width):
    def run(h, *kernels, **options):
        params = ops.EdgeMLPParams(list(kernels), [None] * len(kernels))
        return ops.edge_mlp_aggregate(_regular(), h, params, activation="silu", **options)

    square = width, width
    return run, [(NODES, width), (2 * width, width), square, square], "bfloat16"


# Name: a function of arrays, their shapes, and the dtype.
CASES = {
    "spmm": (lambda x, **o: ops.spmm(_long_rows(), x, **o), [(NODES, 64)], "float32"),
    "maxk_spmm": (_maxk_spmm, [(NODES, 16)], "float32"),
    "segment_softmax": (
        lambda x, **o: ops.segment_softmax(_long_rows(), x, **o), [(EDGES, 4)], "float32",
    ),
    "aggregate": (
        lambda x, **o: ops.aggregate(_long_rows(), x, "max", **o), [(EDGES, 32)], "float32",
    ),
    "neighbour_reduce": (
        lambda x, **o: ops.neighbour_reduce(_long_rows(), x, "max", **o), [(NODES, 32)], "float32",
    ),
    "dot_attention": (
        lambda *a, **o: ops.dot_attention(_long_rows(), *a, **o), [(NODES, 2, 32)] * 3, "float32",
    ),
    "gat_attention": (
        lambda *a, **o: ops.gat_attention(_long_rows(), *a, **o),
        [(NODES, 2), (NODES, 2), (NODES, 2, 32)], "float32",
    ),
    "messages 64 wide": _messages(64),
    "messages 256 wide": _messages(256),
}  # fmt: skip


def _value_and_gradients(name):
    """The value and all gradients of a case, as a function of its arrays."""
    function = CASES[name][0]

    def run(*arrays):
        call = functools.partial(function, implementation="pallas")
        y, pull = jax.vjp(call, *arrays)
        return y, pull(
            jnp.sin(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape).astype(y.dtype)
        )

    return run


def _programs(run):
    """Several calls in one program, of slices known when it is compiled, and in a loop."""
    return {
        "slices": lambda stacks: [run(*(a[i] for a in stacks)) for i in range(CALLS)],
        "loop": lambda stacks: jax.lax.map(lambda arrays: run(*arrays), stacks),
        "parts of one array": lambda stacks: [
            run(*(jnp.split(a.reshape(-1, *a.shape[2:]), CALLS)[i] for a in stacks))
            for i in range(CALLS)
        ],
    }


@pytest.mark.parametrize("program", ["slices", "loop", "parts of one array"])
@pytest.mark.parametrize("name", CASES)
def test_calls_in_one_program_equal_those_of_programs_of_their_own(name, program):
    _, shapes, dtype = CASES[name]
    stacks = [
        random_array((CALLS, *shape), dtype, 3 + i, scale=shape[0] ** -0.5 if i else 1)
        for i, shape in enumerate(shapes)
    ]
    run = _value_and_gradients(name)
    made = jax.jit(_programs(run)[program])(stacks)
    apart = [jax.jit(run)(*(a[i] for a in stacks)) for i in range(CALLS)]
    for i, alone in enumerate(apart):
        one = jax.tree.map(operator.itemgetter(i), made) if program == "loop" else made[i]
        for got, expected in zip(jax.tree.leaves(one), jax.tree.leaves(alone), strict=True):
            operands = None if dtype == "float32" else dtype
            assert_close(got, expected, reduction_length=EDGES, operands=operands)
