"""NequIP: the irreps of its steps, and options that it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from jaxgnn.graph import GraphBatch
from tests.models._structures import CUTOFF, structure


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


BATCH = GraphBatch.from_graphs([structure(5, 0)])


def _model(irreps="3x0e+2x1o", **options):
    sizes = {"cutoff": CUTOFF, "max_degree": 1, "num_interactions": 2, "num_basis": 3}
    return models.NequIP(2, irreps, radial_features=[4], rngs=nnx.Rngs(0), **sizes | options)


def _copy_weights(model, other):
    """The model with the parameters of another, where names and shapes are the same."""
    theirs = nnx.to_flat_state(nnx.state(other))
    shapes = {path: leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(model))}
    same = [(path, leaf) for path, leaf in theirs if shapes.get(path) == leaf.shape]
    nnx.update(model, nnx.from_flat_state(same))
    return model


def test_a_one_hot_embedding_is_the_learnt_one_that_is_the_identity():
    one_hot = _model("2x0e+2x1o", embedding="one_hot")
    learnt = _copy_weights(_model("2x0e+2x1o"), one_hot)
    learnt.embedding[...] = jnp.eye(2)
    np.testing.assert_array_equal(one_hot(BATCH), learnt(BATCH))
    wide = _model(
        "4x0e+2x1o", embedding="one_hot"
    )  # One-hot features have two species, not four scalars.
    assert str(wide.interactions[0].linear.irreps_in) == "2x0e" and np.isfinite(wide(BATCH)).all()


def test_a_shared_self_connection_is_one_of_equal_weights_for_all_species():
    shared = _model(species_weights=False)
    separate = _copy_weights(_model(), shared)
    for step, other in zip(separate.interactions, shared.interactions, strict=True):
        pairs = zip(step.self_connection.kernels, other.self_connection.kernels, strict=True)
        for kernel, one in pairs:
            kernel[...] = jnp.stack([one[...]] * 2)
    np.testing.assert_allclose(separate(BATCH), shared(BATCH), rtol=1e-5)


def test_a_norm_makes_steps_independent_of_the_size_of_the_features():
    def energy(norm, factor):
        model = _model(norm=norm)
        model.embedding[...] *= factor
        return model(BATCH)

    for norm in ("rms", "nequix"):
        np.testing.assert_allclose(energy(norm, 100.0), energy(norm, 1.0), rtol=1e-4)
    assert not np.allclose(energy(None, 100.0), energy(None, 1.0), rtol=1e-1)
    assert not np.allclose(energy("rms", 1.0), energy("nequix", 1.0), rtol=1e-2)


def test_all_layers_have_the_precision_and_convolutions_make_weights_again_on_request():
    def settings(name, **options):
        nodes = [node for _, node in nnx.iter_graph(_model(**options)) if hasattr(node, name)]
        return [getattr(node, name) for node in nodes]

    assert set(settings("precision")) == {"highest"}
    assert settings("precision", precision="tf32") == ["tf32"] * len(settings("precision"))
    assert settings("recompute_weights") == [None, None]
    assert settings("recompute_weights", recompute_weights=True) == [True, True]
