"""Second derivatives: energies of positions, forces from them, and a loss that contains forces."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn
from jaxgnn.graph import radius_graph, radius_graph_on_device
from jaxgnn.testing import random_array
from tests.nn import _edge_formulae as formulae
from tests.nn._edge_formulae import IN, OUT, Case, values

POINTS = random_array((formulae.ROWS, 3), "float32", seed=3)
FEATURES = random_array((formulae.ROWS, IN), "float32", seed=4)
FORCES = random_array((formulae.ROWS, 3), "float32", seed=5)
RADIUS = 1.5


class Energy(NamedTuple):
    """An energy of points, on given edges.

    Attributes:
      make: makes the layer.
      call: the layer's result from the layer, the edges and the points.
      formula: the same from the layer, its parameters, the edges, and points in float64.
    """

    make: Callable[[nnx.Rngs], Any]
    call: Callable[[Any, Any, Any], Any]
    formula: Callable[..., np.ndarray]


def _distance_layer(layer: Any, edges: Any, points: Any) -> Any:
    return layer(edges.graph(), FEATURES, edges.distances(points))


def _distance_formula(layer, p, ends, points):
    apart = np.linalg.norm(points[ends[0]] - points[ends[1]], axis=1)
    features = np.asarray(FEATURES, np.float64)
    return formulae.cfconv(layer, p, Case(*ends, apart, features, features))


def _position_layer(layer: Any, edges: Any, points: Any) -> Any:
    return layer(edges.graph(), points)


def _position_formula(layer, p, ends, points):
    return formulae.edge_conv(layer, p, Case(*ends, np.zeros(len(ends[0])), points, points))


class _OwnMLP(nn.FusedMLP):
    """Evaluated on edges, since a layer can not know what a subclass does."""


def _edge_conv(kind: type[nn.FusedMLP], **options: Any) -> Energy:
    def make(rngs: nnx.Rngs) -> nn.EdgeConv:
        return nn.EdgeConv(kind([6, 7, OUT], activation="silu", rngs=rngs), **options)

    return Energy(make, _position_layer, _position_formula)


def _cfconv(**options: Any) -> Energy:
    sizes = {"num_filters": 5, "num_gaussians": 7, "cutoff": RADIUS}
    return Energy(
        lambda rngs: nn.CFConv(IN, OUT, **sizes, **options, rngs=rngs),
        _distance_layer,
        _distance_formula,
    )


ENERGIES = {
    "cfconv": _cfconv(),
    "cfconv in plain JAX": _cfconv(implementation="xla"),
    "edge conv": _edge_conv(nn.FusedMLP),
    "edge conv, sum": _edge_conv(nn.FusedMLP, reduce="sum"),
    "edge conv, edge by edge": _edge_conv(_OwnMLP),
}


def _loss_and_gradient(name: str, find_edges: Callable[[Any], Any], layer: Any) -> Any:
    """The squared error of the forces, and its gradient to the parameters, in one program."""

    @jax.jit
    @jax.value_and_grad
    def force_loss(layer):
        edges = find_edges(POINTS)

        def energy(points):
            return jnp.sum(jnp.sin(ENERGIES[name].call(layer, edges, points)))

        return jnp.sum((FORCES + jax.grad(energy)(POINTS)) ** 2)

    return force_loss(layer)


def _loss_of_formula(name: str, layer: Any, p: dict[str, Any], ends: Any) -> float:
    """The same in float64 numpy, with forces as differences of energies."""
    points, step = np.asarray(POINTS, np.float64), 1e-5
    forces = np.zeros(points.shape)
    for at in np.ndindex(points.shape):
        for sign in (1, -1):
            moved = points.copy()
            moved[at] += sign * step
            energy = np.sum(np.sin(ENERGIES[name].formula(layer, p, ends, moved)))
            forces[at] -= sign * energy / (2 * step)
    return float(np.sum((np.asarray(FORCES, np.float64) - forces) ** 2))


FINDERS: dict[str, Callable[[Any], Any]] = {
    "on the host": lambda points: radius_graph(np.asarray(POINTS), RADIUS),
    "on the device": lambda points: radius_graph_on_device(points, RADIUS, max_neighbours=10),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("name", ENERGIES)
def test_the_gradient_of_a_loss_of_forces_is_that_of_the_formula(name, finder):
    layer = ENERGIES[name].make(nnx.Rngs(0))
    edges = radius_graph(np.asarray(POINTS), RADIUS)
    ends = np.asarray(edges.senders), np.asarray(edges.receivers)
    loss, gradient = _loss_and_gradient(name, FINDERS[finder], layer)
    parameters = values(layer)
    np.testing.assert_allclose(loss, _loss_of_formula(name, layer, parameters, ends), rtol=1e-4)

    rng = np.random.default_rng(2)
    steps = {path: rng.normal(size=value.shape) for path, value in parameters.items()}
    slope = sum(np.sum(of_path * steps[path]) for path, of_path in values(gradient).items())

    def moved(by: float) -> float:
        there = {path: value + by * steps[path] for path, value in parameters.items()}
        return _loss_of_formula(name, layer, there, ends)

    np.testing.assert_allclose(slope, (moved(1e-4) - moved(-1e-4)) / 2e-4, rtol=1e-3)


def test_points_that_coincide_and_points_without_neighbours_have_finite_forces_and_slopes():
    points = jnp.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [9.0, 9.0, 9.0]])
    layer = nn.CFConv(2, 2, num_filters=3, num_gaussians=4, cutoff=RADIUS, rngs=nnx.Rngs(0))
    edges = radius_graph(np.asarray(points), RADIUS)
    assert len(edges.senders) == 6

    @jax.jit
    @jax.value_and_grad
    def force_loss(layer):
        def energy(points):
            return jnp.sum(layer(edges.graph(), jnp.ones((4, 2)), edges.distances(points)))

        return jnp.sum(jax.grad(energy)(points) ** 2)

    loss, gradient = force_loss(layer)
    assert float(loss) > 0
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
