"""Each message that the troubleshooting page quotes comes of the mistake that its heading names."""

import re
import warnings
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CSRGraph, distributed, nn, ops
from jaxgnn._ffi import _library
from jaxgnn.graph import GraphBatch, GraphSample
from jaxgnn.nn.conv import gcn_sum
from jaxgnn.ops.core import dispatch

PAGE = Path(__file__).parents[1] / "docs/start/troubleshooting.md"
ENDS = [0, 1, 2], [1, 2, 0]
QUOTED = dict(re.findall(r"^### (.+)\n\n```text\n(.+)\n```$", PAGE.read_text(), re.M))


def _graph(weights=None):
    return CSRGraph.from_edges(*ENDS, 3, weights)


def _x(*shape, dtype=jnp.float32):
    return jnp.ones(shape or (3, 16), dtype)


def _gcn():
    return nn.GCNConv(16, 2, rngs=nnx.Rngs(0))


def _sage():
    return nn.SAGEConv(16, 2, dropout=0.5, rngs=nnx.Rngs(0))


class _Holder(nnx.Module):
    def __init__(self):
        self.graph = _graph()


def _dropout_without_a_stream():
    layer = _sage()
    layer.train()
    layer(_graph(), _x())


def _edge_features_of_another_length():
    layer = nn.GATConv(16, 2, edge_dim=3, rngs=nnx.Rngs(0))
    layer(_graph(), _x(), _x(6, 3))


def _rows_of_another_graph():
    mesh = jax.make_mesh((1,), ("nodes",), devices=jax.devices()[:1])
    distributed.shard(_graph(), mesh).shard_rows(np.ones((4, 2)))


def _hide_the_compiled_library():
    with mock.patch.object(_library, "library_path", lambda platform: None):
        dispatch._warn_once.__wrapped__(_library.why_not_open("cpu"))


MISTAKES = {
    "A node that does not exist": lambda: CSRGraph.from_edges([0, 5], [1, 0], 3),
    "Pairs instead of two rows": lambda: CSRGraph.from_edge_index(np.ones((3, 2), int), 3),
    "The number of nodes": lambda: CSRGraph.from_edges([0, 1], [1, 0]),
    "A graph under jit": lambda: jax.jit(lambda ids: CSRGraph.from_edges(ids, ids, 3).validate())(
        jnp.array([0, 1])
    ),
    "A graph as an attribute of a module": _Holder,
    "Another number of rows": lambda: _gcn()(_graph(), _x(4, 16)),
    "Graph and features in the wrong order": lambda: _gcn()(_x(), _graph()),
    "Features of edges have another length": _edge_features_of_another_length,
    "A graph with weights": lambda: nn.GATConv(16, 2, rngs=nnx.Rngs(0))(_graph(_x(3)), _x()),
    "Whole numbers": lambda: ops.spmm(_graph(), _x(3, 4, dtype=jnp.int32)),
    "Parameters need random numbers": lambda: nn.SAGEConv(16, 2),
    "Dropout without a stream": _dropout_without_a_stream,
    "A key instead of streams": lambda: _sage()(_graph(), _x(), rngs=jax.random.key(0)),
    "MaxK without k": lambda: nn.SAGEConv(16, 2, activation="maxk", rngs=nnx.Rngs(0)),
    "A layer of another library": lambda: nn.GraphConv,
    "Self loops that are not added": lambda: _gcn()(_graph().normalized("gcn"), _x()),
    "Segments under jit": lambda: jax.jit(lambda ids: jaxgnn.segment_sum(_x(), ids))(
        jnp.array([0, 1, 1])
    ),
    "No room": lambda: GraphBatch.from_graphs([GraphSample([0], [1], 2)] * 4, pad_to=(4, 8, 5)),
    "A readout of a graph that is no batch": lambda: nn.pool(_x(), _graph(), "mean"),
    "A kernel that does not run here": lambda: ops.spmm(_graph(), _x(), implementation="pallas"),
    "The slow path": _hide_the_compiled_library,
    "Rows of another graph": _rows_of_another_graph,
}


def test_every_quoted_message_has_its_mistake():
    assert QUOTED.keys() == MISTAKES.keys()


@pytest.mark.parametrize("heading", MISTAKES)
def test_the_mistake_has_the_quoted_message(heading):
    gcn_sum.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            MISTAKES[heading]()
            told = [str(warning.message) for warning in caught]
        except Exception as error:
            told = [str(error)]
    gcn_sum.warn_once.cache_clear()  # for the tests of that warning
    pattern = ".*".join(map(re.escape, QUOTED[heading].split("…")))
    assert any(re.match(pattern, message) for message in told), told
