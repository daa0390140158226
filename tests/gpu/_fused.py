"""What tests of the fused linear layers on a GPU share: their needs, and inputs of exact sums."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.ops._dense.fused_linear import FUSED_LINEAR
from tests.ops.dense._linear import VALUES

PALLAS = {"implementation": "pallas"}
# What the products of float32 numbers may err by, relative to the largest result.
ERRORS = {"highest": 2e-6, "bf16x3": 5e-5, "tf32": 2e-3, None: 2e-3}


def needs_kernels():
    if FUSED_LINEAR.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FUSED_LINEAR.unavailable('pallas', 'cuda')}")


def integers(shape, most, seed, dtype):
    """Small ones: sums of their products are exact, whatever their order, and many are equal."""
    numbers = np.random.default_rng(seed).integers(-most, most + 1, shape)
    return jnp.asarray(numbers, jnp.float32).astype(dtype)


def integer_layer(before, after, seed, dtype):
    """So few entries that what some layers make of integers are such that 8 bits hold."""
    generator = np.random.default_rng(seed)
    few = generator.random((before, after)) < 4 / before
    kernel = np.where(few, generator.choice([-1.0, 1.0], few.shape), 0.0)
    return jnp.asarray(kernel, dtype), integers((after,), 1, seed, dtype)


def integer_layers(rows, widths, dtype):
    """Inputs and parameters of layers behind each other: ``(x, (kernels, biases))``."""
    made = [integer_layer(*pair, i, dtype) for i, pair in enumerate(itertools.pairwise(widths))]
    return integers((rows, widths[0]), 2, 0, dtype), tuple(zip(*made, strict=True))


def poison(*arrays):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(a.shape, jnp.nan, a.dtype) for a in arrays for _ in VALUES])
