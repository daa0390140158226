"""Both kernels of the backward to kept values: by blocks of rows, and row by row."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph, ops
from jaxgnn.graph.plan import edge_blocks as _edge_blocks
from jaxgnn.testing import DTYPES, GRAPHS, assert_close, random_array
from tests.gpu.test_kernels import _aggregate, _poison, _power_law
from tests.gpu.test_kernels import implementation as implementation
from tests.ops._table import longest_row

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

# Many senders in several tiles; a row of several tasks; rows of many edges, in blocks of 128 and
# of 257 rows, in one tile and, of bfloat16 for more than 31 kept columns, in two.
LARGE = {
    "two_tiles": lambda: _many_senders(1_400_000),
    "three_tiles": lambda: _many_senders(2_200_000),
    "large_blocks": lambda: _power_law(512 * 257, 512 * 257 * 130, 0.6).normalized("mean"),
}


def _many_senders(number):
    senders = np.random.default_rng(0).integers(0, number, 30_000)
    receivers = np.random.default_rng(1).integers(0, 500, 30_000)
    return CSRGraph.from_edges(senders, receivers, 500, num_senders=number).normalized("sym")


SHAPES = [(24, 5), (33, 4), (256, 16), (256, 33), (300, 96)]
BUILDS = {case.name: case.build for case in GRAPHS} | LARGE
# Of the graph of 17 M edges two shapes will do. Features of many senders are narrow, for the memory
# of a GPU that several processes share; bfloat16 has three tiles of the last, float32 two.
FEWER_SHAPES = {
    "large_blocks": [(256, 16), (256, 36)],
    "two_tiles": [(24, 5), (33, 4), (64, 16), (64, 33), (128, 96)],
    "three_tiles": SHAPES[:2],
}
CASES = [
    pytest.param(build, *shape, id=f"{name}-{shape}")
    for name, build in BUILDS.items()
    for shape in FEWER_SHAPES.get(name, SHAPES)
]


def _row_by_row(graph):
    return dataclasses.replace(graph, plan=dataclasses.replace(graph.plan, edge_blocks=()))


def _check(implementation, graph, dim, k, dtype, ways):
    """Compares gradients with the product in float64, for the ways in which a graph is planned."""
    kept = ops.maxk(random_array((graph.num_cols, dim), dtype, seed=k), k)
    dy = random_array((graph.num_rows, dim), dtype, seed=1)
    exact = _aggregate(graph, dy, transposed=True)
    exact = np.take_along_axis(exact, np.asarray(kept.indices).astype(np.int64), axis=1)
    length = longest_row(graph.transpose())
    for walked in ways:

        def product(values, walked=walked):
            kept_now = CBSR(values, kept.indices, dim)
            return ops.maxk_spmm(walked, kept_now, implementation=implementation)

        _poison((kept.values.shape, dtype), (kept.values.shape, "float32"))
        (dvalues,) = jax.vjp(product, kept.values)[1](dy)
        assert_close(dvalues, exact, reduction_length=length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("build", "dim", "k"), CASES)
def test_blocks_and_rows_agree_with_float64(implementation, build, dim, k, dtype):
    graph = build()
    graph = dataclasses.replace(graph, plan=None).prepared()  # a transpose has no blocks
    assert len(graph.plan.edge_blocks) == (2 if build is LARGE["large_blocks"] else 1)
    _check(implementation, graph, dim, k, dtype, [graph, _row_by_row(graph)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_senders_in_several_spans_agree_with_float64(implementation, monkeypatch, dtype):
    monkeypatch.setattr(_edge_blocks, "_MOST_SENDERS", 1 << 20)
    graph = dataclasses.replace(LARGE["three_tiles"](), plan=None).prepared()
    assert [blocks.shape.spans for blocks in graph.plan.edge_blocks] == [3]
    _check(implementation, graph, 64, 16, dtype, [graph])
