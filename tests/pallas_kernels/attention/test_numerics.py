"""What the kernels of attention over neighbours compute, on the emulator."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from pallas_kernels.attention.tile import AttentionTile
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.attention._cases import FORM, OPS, check, operands_of, seed_words

pytestmark = pytest.mark.emulated

ROWS, COLS, EDGES, PADDING = 20, 24, 900, 5
HUB, FULL, MASKED = 7, 11, 3  # rows of several pieces, of one full piece, of scores that are -inf


@pytest.fixture(autouse=True)
def emulator():
    with emulated():
        yield


@functools.cache
def _graph() -> CSRGraph:
    """A hub of several pieces at each end, a row of just one full piece, empty rows, padding."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, ROWS)
    lengths[[HUB, FULL, 5, 9]] = 520, 256, 0, 0
    lengths[-1] += EDGES - lengths.sum()
    senders = rng.integers(0, COLS - 1, EDGES + PADDING)
    senders[rng.random(len(senders)) < 0.4] = 2
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return CSRGraph(
        jnp.asarray(indptr, jnp.int32), jnp.asarray(senders, jnp.int32), num_cols=COLS
    ).prepared()


@pytest.mark.parametrize("op", OPS)
def test_values_and_gradients(op):
    check(op, _graph(), operands_of(op, _graph(), 4, 16, "float32"), FORM)
