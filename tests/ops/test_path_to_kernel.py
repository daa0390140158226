"""From the public function of an op to its kernel a reader passes few modules."""

import traceback
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.graph import CSRGraph, Incidence
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.registry import OPS
from jaxgnn.testing import random_array
from pallas_kernels import simt, tensor_cores

MOST_STOPS = 7
ROOT = Path(jaxgnn.__file__).parent.parent
# What is passed in any op: it gives a function its gradient, and does nothing else.
PLUMBING = "jaxgnn/ops/_core/custom_gradient.py"

ENDS = np.arange(60) % 20
GRAPH = CSRGraph.from_edges(ENDS[::-1], np.sort(ENDS), 20)
REGULAR = CSRGraph.from_edges(np.arange(512) % 64, np.arange(512) // 8, 64)  # 8 edges a row
INCIDENCE = Incidence(ENDS, np.sort(ENDS), num_nodes=20, num_hyperedges=20)


def _array(*shape, dtype="float32"):
    return random_array(shape, dtype, seed=1)


def _streams(*shape):
    return _array(*shape, dtype="bfloat16")


PRE = _array(24, 1024), _array(3), _array(24)
POST = _streams(64, 4, 256), _streams(64, 256), _array(64, 4), _array(64, 4, 4)
LAYERS = [_streams(128, 128)] * 2
EDGE_MLP = ops.EdgeMLPParams(
    [_streams(128, 64), _streams(64, 64), _streams(64, 64)], [None, None, None]
)
CALLS = {
    "maxk": lambda ops: ops.maxk(_array(20, 256), 32),
    "spmm": lambda ops: ops.spmm(GRAPH, _array(20, 64)),
    "maxk_spmm": lambda ops: ops.maxk_spmm(GRAPH, KEPT),
    "segment_softmax": lambda ops: ops.segment_softmax(GRAPH, _array(60, 2)),
    "aggregate": lambda ops: ops.aggregate(GRAPH, _array(60, 64), "max"),
    "dot_attention": lambda ops: ops.dot_attention(GRAPH, *[_array(20, 2, 32)] * 3),
    "gat_attention": lambda ops: ops.gat_attention(
        GRAPH, _array(20, 2), _array(20, 2), _array(20, 2, 32)
    ),
    "gatv2_attention": lambda ops: ops.gatv2_attention(
        GRAPH, *[_array(20, 2, 32)] * 2, _array(2, 32)
    ),
    "mhc_pre": lambda ops: ops.mhc_pre(POST[0], *PRE),
    "mhc_post": lambda ops: ops.mhc_post(*POST),
    "sinkhorn": lambda ops: ops.sinkhorn(_array(64, 4, 4)),
    "mhc_post_pre": lambda ops: ops.mhc_post_pre(*POST, *PRE),
    "mhc_layer": lambda ops: ops.mhc_layer(lambda x: x, POST[0], *PRE),
    "fused_linear": lambda ops: ops.fused_linear(_streams(4096, 128), LAYERS[0]),
    "fused_mlp": lambda ops: ops.fused_mlp(
        _streams(4096, 128), LAYERS, [None, None], activation="relu"
    ),
    "edge_mlp_aggregate": lambda ops: ops.edge_mlp_aggregate(REGULAR, _streams(64, 64), EDGE_MLP),
    "hypergraph_conv": lambda ops: ops.hypergraph_conv(_array(20, 64), INCIDENCE),
}
KEPT = ops.maxk(_array(20, 256), 32, implementation="xla")


class _Launched(Exception):
    """The kernel is reached."""


def _stops():
    """The modules of the library on the stack, the caller first, each once."""
    files = (Path(frame.filename) for frame in traceback.extract_stack())
    ours = [file.relative_to(ROOT).as_posix() for file in files if file.is_relative_to(ROOT)]
    rooms = ("jaxgnn/", "pallas_kernels/")
    return [f for f in dict.fromkeys(ours) if f.startswith(rooms) and f != PLUMBING]


@pytest.mark.parametrize("name", CALLS)
def test_the_way_to_a_kernel_has_at_most_seven_stops(name, monkeypatch):
    def launch(*args, **options):
        raise _Launched(_stops())

    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    monkeypatch.setattr(simt, "launch", launch)
    monkeypatch.setattr(tensor_cores, "launch", launch)
    with jaxgnn.default_implementation("pallas"), pytest.raises(_Launched) as found:
        jax.jit(CALLS[name], static_argnums=0).trace(ops)
    (stops,) = found.value.args
    assert len(stops) <= MOST_STOPS, stops
    assert stops[-1].startswith("pallas_kernels/")


def test_every_op_with_a_kernel_is_asked():
    assert {op.name for op in OPS if op.pallas} == set(CALLS)
