"""Graphs and compressed rows that nobody validated: no kernel follows an id out of range."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph, ops
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.ops.core import arguments, checks, dispatch
from jaxgnn.testing import random_array
from tests.ops._calls import OUT_OF_RANGE
from tests.pallas_kernels._emulator import emulated

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("compiled_quickly")

INDPTR = np.array([0, 2, 3, 5, 5], np.int32)
WILD = np.array([1, 10**6, -(10**6), 3, 2**31 - 1], np.int32)
NEAREST = np.array([1, 3, 0, 3, 3], np.int32)
X = random_array((4, 8), "float32", seed=1)
COMPILED = [
    name for name in OUT_OF_RANGE if name != "edge_mlp_aggregate"
]  # which has no CPU kernel


def _value_and_gradient(name, indptr, indices):
    total = lambda x: jnp.sum(jnp.sin(OUT_OF_RANGE[name](CSRGraph(indptr, indices), x)))  # noqa: E731
    return jax.value_and_grad(total)(X)


@jax.jit
def _run(indptr, indices):
    """Results of every op with CPU kernels, for ids that are known only when the program runs."""
    return {name: _value_and_gradient(name, indptr, indices) for name in COMPILED}


def _results(indptr, indices):
    return jax.tree.map(lambda a: np.asarray(a).tolist(), _run(indptr, indices))


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_every_op_clamps_senders_that_nobody_validated(name):
    program = str(jax.make_jaxpr(lambda i, j: _value_and_gradient(name, i, j))(INDPTR, WILD))
    assert "name=clip" in program


def test_a_sender_out_of_range_is_the_nearest_node_in_every_op():
    # In a process of its own, which a kernel that leaves its arrays could end.
    code = (
        "import json\n"
        "from tests.ops.test_out_of_range import INDPTR, WILD, _results\n"
        "print(json.dumps(_results(INDPTR, WILD)))\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    made, expected = json.loads(ended.stdout.splitlines()[-1]), _results(INDPTR, NEAREST)
    for name, results in expected.items():
        for got, wanted in zip(made[name], results, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "wild, expected",
    [
        ([0, 2, 5, 7, 10**6], [0, 2, 5, 5, 5]),
        ([0, 3, 1, 4, 5], [0, 0, 0, 0, 0]),
        ([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]),
        ([0, 1, 2, 3, -1], [0, 0, 0, 0, 0]),
    ],
    ids=["beyond the edges", "falling", "not from zero", "negative"],
)
def test_offsets_end_with_the_edges_and_if_they_fall_there_are_none(wild, expected):
    wild, expected = np.array(wild, np.int32), np.array(expected, np.int32)
    for name, got in _results(wild, NEAREST).items():
        for a, e in zip(got, _results(expected, NEAREST)[name], strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("implementation", ["xla", None])
def test_entries_of_compressed_rows_out_of_range_are_left_out(implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 3, 3], [1, 2, 3, 0, 1], 4)
    columns = np.array([[0, 4, 9], [4, 200, 255], [0, 1, 4], [7, 255, 255]], np.uint8)
    values = random_array((4, 3), "float32", seed=2)
    dense = np.zeros((4, 5), np.float32)
    for row, column in np.argwhere(columns < 5):
        dense[row, columns[row, column]] = values[row, column]

    @jax.jit
    def run(values, columns):
        def both(values):
            rows = CBSR(values, columns, 5)
            parts = ops.todense(rows), ops.maxk_spmm(graph, rows, implementation=implementation)
            return sum(jnp.sum(jnp.sin(part)) for part in parts), parts

        return jax.value_and_grad(both, has_aux=True)(values)

    (_, (expanded, summed)), slopes = run(values, columns)
    np.testing.assert_array_equal(expanded, dense)
    np.testing.assert_allclose(summed, ops.spmm(graph, dense), rtol=1e-6)
    assert not np.asarray(slopes)[columns >= 5].any()
    assert np.asarray(slopes)[columns < 5].all()


def test_a_gpu_kernel_stays_inside_its_arrays():
    # The emulator finds every read out of bounds.
    def run(make):
        graph = jax.jit(make)(INDPTR, WILD)
        with emulated():
            return graph_calls.spmm(graph, X)

    made = run(lambda i, j: arguments.open_graph("spmm", CSRGraph(i, j)).graph.prepared())
    expected = ops.spmm(CSRGraph(INDPTR, NEAREST), X, implementation="xla")
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    with pytest.raises(Exception, match="outside of an array"):
        run(lambda i, j: CSRGraph(i, j, in_range=True).prepared())


def _lowered(graph, x, implementation):
    rows = ops.maxk(x, 3)

    def run(graph, x, rows):
        y = ops.spmm(graph, x, implementation=implementation)
        return y + ops.maxk_spmm(graph, rows, implementation=implementation)

    text = jax.jit(run).trace(graph, x, rows).lower(lowering_platforms=("cuda",)).as_text()
    return re.sub('"[^"]*"', "", text)  # kernels know the lines of Python they come from


@pytest.mark.lowers
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_a_validated_graph_and_rows_of_an_op_are_lowered_as_if_nothing_were_clamped(
    implementation, monkeypatch
):
    validated = CSRGraph.from_edges([0, 1, 2, 3, 3], [1, 2, 3, 0, 1], 4)
    assert CSRGraph(INDPTR, NEAREST).validate().in_range and not CSRGraph(INDPTR, NEAREST).in_range
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    clamped = _lowered(validated, X, implementation)
    monkeypatch.setattr(arguments, "bounded_graph", lambda unchanged: unchanged)
    monkeypatch.setattr(checks, "bounded_rows", lambda unchanged: unchanged)
    assert _lowered(validated, X, implementation) == clamped


def test_what_constructors_and_transforms_make_needs_no_clamping():
    graph = CSRGraph.from_edges([0, 1, 2, 3, 3], [1, 2, 3, 0, 1], 4)
    made = [
        graph,
        graph.transpose(),
        graph.normalized("sym"),
        graph.with_self_loops(),
        graph.with_weights(jnp.ones(5)),
        CSRGraph.from_scipy(graph.to_scipy()),
        CSRGraph.batch([graph, graph]).graph,
        CSRGraph(INDPTR, NEAREST).prepared(),
        jax.jit(lambda s, r: CSRGraph.from_edges(s, r, 4))(WILD, WILD),
        jax.jit(lambda graph: graph)(graph),
    ]
    assert all(graph.in_range for graph in made)
