"""Layer-wise inference has the results of the whole graph, with one compilation for each layer."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn, ops
from jaxgnn.sampling import infer_layerwise
from jaxgnn.testing.cases import GRAPHS
from jaxgnn.testing.numerics import assert_close
from tests.sampling._whole_graphs import NODES, random_graph

X = np.random.default_rng(1).normal(size=(NODES, 5)).astype(np.float32)


def _with_nan():
    offsets = np.append(np.zeros(NODES, np.int32), np.int32(1))
    return CSRGraph(offsets, np.zeros(1, np.int32), np.float32([np.nan]))


def _infer(layers, graph, x=X, **options):
    return infer_layerwise(layers, graph, x, **{"batch_size": 16, "progress": False} | options)


@pytest.mark.costly(4)
@pytest.mark.parametrize("case", [c for c in GRAPHS if c.build().is_square], ids=lambda c: c.name)
def test_sums_are_those_of_the_whole_graph(case):
    whole = case.build()
    x = np.random.default_rng(0).normal(size=(whole.num_rows, 1)).astype(np.float32)
    made = _infer([lambda block, x: ops.spmm(block, x[1], implementation="xla")], whole, x)
    wide = {
        name: np.asarray(value, np.float64)
        for name in ("weights", "row_scale", "col_scale")
        if (value := getattr(whole, name)) is not None
    }
    with jax.enable_x64():
        expected = dataclasses.replace(whole, plan=None, **wide).to_scipy() @ x.astype(np.float64)
    length = int(np.diff(whole.indptr).max())
    dtype = whole.weights.dtype if "weights" in wide else None
    assert_close(made, expected, reduction_length=length, operands=dtype)


def test_networks_have_the_results_of_the_whole_graph_and_compile_once_a_layer():
    whole = random_graph(weighted=True)
    first, last = (nn.SAGEConv(*widths, rngs=nnx.Rngs(0)) for widths in ((5, 4), (4, 3)))
    traced = []

    def hidden(block, x):
        traced.append(block.shape)
        return jax.nn.relu(first(block, x))

    expected = last(whole, jax.nn.relu(first(whole, X)))
    np.testing.assert_allclose(_infer([hidden, last], whole), expected, atol=1e-5)
    assert len(traced) == 1


def test_a_normalised_graph_has_the_degrees_of_senders():
    layer = nn.GCNConv(5, 3, rngs=nnx.Rngs(0))
    looped = random_graph(weighted=True).with_self_loops().normalized("gcn")
    made = _infer([lambda block, x: layer(block, x[1])], looped)
    np.testing.assert_allclose(made, layer(looped, X), atol=1e-5)


@pytest.mark.costly(2)
@pytest.mark.parametrize("batch_size", [1, 7, 60, 1000])
def test_rows_are_cut_anywhere(batch_size):
    hub = CSRGraph.from_edges(np.arange(NODES), np.full(NODES, 9), NODES)
    layer = lambda block, x: x[0] + ops.spmm(block, x[1], implementation="xla")  # noqa: E731
    made = _infer([layer, layer], hub, np.eye(NODES, dtype=np.float32), batch_size=batch_size)
    once = np.eye(NODES) + np.eye(NODES)[9][:, None]
    np.testing.assert_array_equal(made, once @ once)


def test_features_and_results_may_be_files(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = random_graph()
    layer = lambda block, x: 2 * x[0]  # noqa: E731
    made = _infer(
        [layer, layer],
        whole,
        mapped,
        out=tmp_path / "y.npy",
        scratch=tmp_path,
        progress=True,
    )
    assert isinstance(made, np.memmap) and (np.asarray(made) == 4 * X).all()
    assert (np.load(tmp_path / "y.npy") == 4 * X).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.npy"]
    out = np.zeros_like(X)
    assert _infer([layer], whole, jax.device_put(X), out=out) is out and (out == 2 * X).all()
    shown = capsys.readouterr().err
    assert "layer 1 of 2" in shown and "layer 2 of 2" in shown and "nodes/s" in shown


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"layers": []}, "layers must be a list of layers or functions, at least one"),
        ({"layers": lambda block, x: x[0]}, "layers must be a list of layers"),
        ({"layers": [lambda block, x: x[1][:3]]}, "layers must be to return an array of 16 rows"),
        ({"features": X[1:]}, "features must be of 60 rows"),
        ({"features": None}, "features must be an array"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"out": np.zeros((60, 4), np.float32)}, r"out must be an array of float32 and shape"),
        ({"graph": _with_nan()}, r"graph.weights\[0\] must be finite"),
    ],
)
def test_errors_name_what_is_wrong(arguments, message):
    given = {"layers": [lambda block, x: x[0]], "graph": random_graph(), "features": X}
    with pytest.raises(ValueError, match=f"infer_layerwise: {message}"):
        infer_layerwise(**{**given, "batch_size": 16, "progress": False, **arguments})
