"""LayerScan: order, random numbers, and layers that do not fit together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn.models._layer_scan import LayerScan


class _Affine(nnx.Module):
    """``h * scale + shift`` by the array, plus noise in training."""

    def __init__(self, shift, scale=10.0):
        self.shift = nnx.Param(jnp.asarray(shift, jnp.float32))
        self.scale = scale

    def __call__(self, graph, h, *, rngs=None, extra=0.0):
        h = h * self.scale + self.shift[...] + graph + extra
        return (
            h if rngs is None else h + jax.random.randint(rngs.dropout(), (), 1, 9).astype(h.dtype)
        )


def test_layers_run_in_order_with_the_same_options():
    scan = LayerScan([_Affine(1), _Affine(2), _Affine(3)])
    assert float(scan(jnp.zeros(()), jnp.zeros(()))) == 123
    assert float(scan(jnp.ones(()), jnp.zeros(()), extra=1.0)) == 345


def test_each_layer_has_random_numbers_of_its_own():
    scan = LayerScan([_Affine(0) for _ in range(6)])
    noise = f"{float(scan(jnp.zeros(()), jnp.zeros(()), rngs=nnx.Rngs(dropout=0))):.0f}"
    assert len(noise) == 6 and len(set(noise)) > 1
    again = scan(jnp.zeros(()), jnp.zeros(()), rngs=nnx.Rngs(dropout=0))
    assert f"{float(again):.0f}" == noise
    rngs = nnx.Rngs(dropout=0)
    scan(jnp.zeros(()), jnp.zeros(()), rngs=rngs)
    other = scan(jnp.zeros(()), jnp.zeros(()), rngs=rngs)
    assert not np.array_equal(other, again), "a second call draws anew"


@pytest.mark.parametrize("layers", [[], [_Affine(1), _Affine(1, scale=2.0)]])
def test_layers_of_different_structures_are_refused(layers):
    with pytest.raises(ValueError, match="LayerScan: layers must be one or more of one structure"):
        LayerScan(layers)
