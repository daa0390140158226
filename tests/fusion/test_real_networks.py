"""Published networks under fuse: same values, and no false alarm of verify."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments._plain_networks import Edges
from experiments._real_networks import NAMES, Shape, real_network
from jaxgnn.fusion import explain, fuse

NODES, EDGES = 60, 500
_rng = np.random.default_rng(0)
_SENDERS = _rng.integers(0, NODES, EDGES)
_RECEIVERS = np.sort(_rng.integers(0, NODES, EDGES))
GRAPH = Edges(jnp.asarray(_SENDERS, jnp.int32), jnp.asarray(_RECEIVERS, jnp.int32), NODES)


@pytest.fixture(autouse=True)
def dtypes_are_promoted_as_for_users():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.again("tests/ops/test_verify.py")
@pytest.mark.costly(6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_verify_has_no_false_alarm_on_a_published_network(name, dtype):
    network = real_network(name, GRAPH, Shape(16, 2, dtype))
    fused = fuse(network.run, verify="strict", only_if_faster=False)
    assert explain(fused, *network.arrays, measure=False).findings.applied
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = fused(*network.arrays)
    if dtype == "float32":
        expected = jax.jit(network.run)(*network.arrays)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5 * jnp.abs(expected).max())
