"""The kernels of layers of edges of more than 128 numbers.

Two warpgroups share a tile, or the kernels of layers stream through shared memory; backward, tiles
come in chunks.
"""

import functools

import jax
import pytest

from jaxgnn import ops
from jaxgnn.ops.core import dispatch
from pallas_kernels.edge_mlp.chunks import ChunkTile
from pallas_kernels.edge_mlp.ring_forward import RingTile
from pallas_kernels.edge_mlp.wide import WideTile
from tests.pallas_kernels.edge_mlp._edge_mlp import (
    check_gradients,
    check_sums,
    op_structs,
    signatures,
    signatures_in,
    sudoku,
    with_gradients,
)
from tests.pallas_kernels.test_lowering import _graph as prepared_graph

# As in ``test_edge_mlp``.
FORWARD = [
    ("ring", 6, (192, 192), 6, 6, "relu", True, WideTile(1, 2, 2)),
    ("ragged", 1, (64, 192, 64, 64), 1, None, "silu", False, WideTile(1, 4, 3)),
    ("ring", 6, (256, 256), 6, 1, "relu", True, RingTile(1, 2, 3)),
    ("ragged", 1, (64, 256, 64, 64), 1, None, "silu", False, RingTile(2, 2, 2)),
]
BACKWARD = [
    ("pairs", 3, (256, 256), None, 3, "relu", True, ChunkTile(2, 2, 3, 1)),
    ("ring", 6, (192, 64, 128), 6, 1, "gelu", True, ChunkTile(2, 1, 2, 1)),
    ("ragged", 2, (192, 192), 1, None, "silu", False, ChunkTile(3, 1, 4, 1)),
    ("ragged", 1, (192,), 1, 1, "relu", True, ChunkTile(2, 1, 0, 2)),
]


@pytest.mark.costly
@pytest.mark.parametrize("name, batch, widths, weights, features, activation, last, tile", FORWARD)
def test_sums_of_layers(name, batch, widths, weights, features, activation, last, tile, capfd):
    check_sums(name, batch, widths, weights, features, activation, last, tile, capfd)


@pytest.mark.again("tests/pallas_kernels/edge_mlp/test_edge_mlp.py")
@pytest.mark.costly
@pytest.mark.parametrize("name, batch, widths, weights, features, activation, last, tile", BACKWARD)
def test_gradients_of_sums_of_layers(
    name, batch, widths, weights, features, activation, last, tile, monkeypatch
):
    check_gradients(name, batch, widths, weights, features, activation, last, tile, monkeypatch)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


@pytest.mark.again("tests/pallas_kernels/edge_mlp/test_edge_mlp.py")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_wide_layers_lower_with_their_gradients_and_keep_nothing_of_all_edges():
    graph, width = sudoku(), 256
    h, params = op_structs((256,), 81, width, 3)

    def run(h, params, implementation=None):
        return ops.edge_mlp_aggregate(graph, h, params, implementation=implementation)

    both = with_gradients(functools.partial(run, implementation="pallas"))
    lowered = jax.jit(both).trace(h, params).lower(lowering_platforms=("cuda",)).as_text()
    assert len(signatures_in(lowered)) == 2
    edges = graph.num_edges
    assert f"{256 * edges}x{width}x" not in lowered and f"x{edges}x{width}x" not in lowered
    assert not signatures(with_gradients(run), h, params)  # wide ones were not timed


@pytest.mark.again("test_wide_layers_lower_with_their_gradients_and_keep_nothing_of_all_edges")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_wide_layers_of_general_graphs_lower_with_weights():
    graph = prepared_graph(20_000, 320_000, factors=False)
    h, params = op_structs((2,), graph.num_rows, 256, 3, "float16")
    weights = jax.ShapeDtypeStruct((2, graph.num_edges), "float32")

    def run(h, params, graph, weights):
        options = {"weights": weights, "implementation": "pallas"}
        return ops.edge_mlp_aggregate(graph, h, params, **options)

    assert len(signatures(with_gradients(run), h, params, graph, weights)) == 2
