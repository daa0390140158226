"""One graph on two GPUs: every layer and model gives what it gives on one, by the table of CPUs."""

import jax
import numpy as np
import pytest

import jaxgnn
from tests.distributed._graphs import sharded_graph
from tests.distributed._layers import (
    CASES,
    UNCUT,
    assert_as_on_one_device,
    assert_uncut_as_on_one_device,
    on_devices,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def needs_two():
    if jax.device_count() < 2:
        pytest.skip(f"reason: needs 2 GPUs, got {jax.device_count()}")


@pytest.mark.costly(4)
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("name", CASES)
def test_on_two_gpus_values_and_gradients_are_those_of_one(name, exchange):
    assert_as_on_one_device(name, 2, exchange)


@pytest.mark.parametrize("options", UNCUT)
def test_where_no_edge_is_cut_values_and_gradients_are_those_of_one_gpu(options):
    assert_uncut_as_on_one_device(2, options)


@pytest.mark.costly(2)
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("name", ["MaxKGNN", "DropEdge, both directions", "GraphTransformer"])
def test_bits_repeat_on_two_gpus(name, exchange):
    sharded = sharded_graph(2, exchange)
    with jaxgnn.deterministic():
        first, second = (on_devices(name, sharded) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
