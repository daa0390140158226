"""NequIP: the irreps of its steps, and options that it refuses."""

import pytest
from flax import nnx

from jaxgnn import models


def test_a_step_has_the_irreps_that_its_input_can_reach_and_the_last_even_scalars():
    irreps = "2x0o+4x0e+2x1o+2x1e+2x2e"
    model = models.NequIP(2, irreps, max_degree=1, num_interactions=4, rngs=nnx.Rngs(0))
    steps = [str(step.gate.irreps_out) for step in model.interactions]
    assert steps == ["4x0e+2x1o", "4x0e+2x1o+2x1e+2x2e", irreps, "4x0e"]
    assert str(model.interactions[0].gate.irreps_in) == "4x0e+2x0e+2x1o"


def test_a_network_of_scalars_alone_has_no_gates():
    model = models.NequIP(1, "4x0e", max_degree=0, num_interactions=2, rngs=nnx.Rngs(0))
    assert all(step.gate.irreps_in == step.gate.irreps_out for step in model.interactions)


def test_irreps_without_even_scalars_are_refused():
    with pytest.raises(ValueError, match="NequIP: irreps must be with even scalars, 0e, got 4x1o"):
        models.NequIP(1, "4x1o", rngs=nnx.Rngs(0))
