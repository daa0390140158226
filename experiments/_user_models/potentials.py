"""Learnt potentials of molecules in Haiku: energies of positions, whose gradients are forces."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from experiments._user_models._model import Points, Size, UserModel, shortest

_SPECIES = 8
_BASIS = 20


def _model(size: Size, forward: Any, points: Points) -> UserModel:
    module = hk.without_apply_rng(hk.transform(forward))
    return UserModel.of_module(module, jnp.asarray(points.positions), dtype=size.dtype)


def _cutoff(points: Points) -> float:
    """A radius in which a point has about as many neighbours as in its list."""
    degree = points.neighbours.shape[1]
    return float((3 * degree / (4 * jnp.pi * points.nodes)) ** (1 / 3))


def _species(points: Points) -> Any:
    return jnp.arange(points.nodes) % _SPECIES


def _shifted_softplus(x: Any) -> Any:
    return jax.nn.softplus(x) - jnp.log(2.0).astype(x.dtype)


def _edges(points: Points, positions: Any) -> tuple[Any, Any]:
    """The vector of each edge, and its length."""
    vectors = shortest(positions[points.senders] - positions[points.receivers])
    return vectors, jnp.sqrt(jnp.sum(vectors**2, axis=-1) + 1e-12)


def _gaussians(lengths: Any, cutoff: float) -> Any:
    centres = jnp.linspace(0, cutoff, _BASIS, dtype=lengths.dtype)
    return jnp.exp(-0.5 * ((lengths[:, None] - centres) * _BASIS / cutoff) ** 2)


def _envelope(lengths: Any, cutoff: float) -> Any:
    smooth = 0.5 * (jnp.cos(jnp.pi * lengths / cutoff) + 1)
    return jnp.where(lengths < cutoff, smooth, 0).astype(lengths.dtype)


def schnet(size: Size) -> UserModel:
    """Features times filters of distances (SchNet, https://arxiv.org/abs/1706.08566)."""
    points, width = Points.of(size), size.width
    cutoff = _cutoff(points)

    def forward(positions: Any) -> Any:
        _, lengths = _edges(points, positions)
        basis, envelope = _gaussians(lengths, cutoff), _envelope(lengths, cutoff)
        x = hk.Embed(_SPECIES, width)(_species(points))
        for _ in range(size.steps):
            hidden = _shifted_softplus(hk.Linear(width)(basis))
            filters = hk.Linear(width)(hidden) * envelope[:, None]
            sent = hk.Linear(width, with_bias=False)(x)[points.senders]
            received = jax.ops.segment_sum(sent * filters, points.receivers, points.nodes)
            x = x + hk.Linear(width)(_shifted_softplus(hk.Linear(width)(received)))
        return jnp.sum(hk.Linear(1)(_shifted_softplus(hk.Linear(width // 2)(x))))

    return _model(size, forward, points)


def painn(size: Size) -> UserModel:
    """Messages of scalars and vectors (https://arxiv.org/abs/2102.03150)."""
    points, width = Points.of(size), size.width
    cutoff = _cutoff(points)

    def summed(messages: Any) -> Any:
        return jax.ops.segment_sum(messages, points.receivers, points.nodes)

    def forward(positions: Any) -> Any:
        vectors, lengths = _edges(points, positions)
        directions = vectors / lengths[:, None]
        basis, envelope = _gaussians(lengths, cutoff), _envelope(lengths, cutoff)
        filters = hk.Linear(size.steps * 3 * width)(basis) * envelope[:, None]
        s = hk.Embed(_SPECIES, width)(_species(points))
        v = jnp.zeros((points.nodes, 3, width), s.dtype)
        for of_step in jnp.split(filters, size.steps, axis=-1):
            sent = hk.Linear(3 * width)(jax.nn.silu(hk.Linear(width)(s)))[points.senders]
            ds, along, of_vectors = jnp.split(sent * of_step, 3, axis=-1)
            dv = along[:, None] * directions[:, :, None] + of_vectors[:, None] * v[points.senders]
            s, v = s + summed(ds), v + summed(dv)
            v_left, v_right = jnp.split(hk.Linear(2 * width, with_bias=False)(v), 2, axis=-1)
            norms = jnp.sqrt(jnp.sum(v_right**2, axis=-2) + 1e-8)
            both = jnp.concatenate([s, norms], axis=-1)
            mixed = hk.Linear(3 * width)(jax.nn.silu(hk.Linear(width)(both)))
            ds, of_both, of_v = jnp.split(mixed, 3, axis=-1)
            s = s + ds + of_both * jnp.sum(v_left * v_right, axis=-2)
            v = v + of_v[:, None] * v_left
        return jnp.sum(hk.Linear(1)(jax.nn.silu(hk.Linear(width // 2)(s))))

    return _model(size, forward, points)


def nequip(size: Size) -> UserModel:
    """Tensor products of features and spherical harmonics (https://arxiv.org/abs/2101.03164)."""
    import e3nn_jax as e3nn

    points, width = Points.of(size), size.width
    cutoff, degree = _cutoff(points), points.neighbours.shape[1]
    hidden = e3nn.Irreps(f"{width}x0e + {width}x1o + {width}x2e")

    def forward(positions: Any) -> Any:
        vectors, lengths = _edges(points, positions)
        harmonics = e3nn.spherical_harmonics([1, 2], e3nn.IrrepsArray("1o", vectors), True)
        basis = e3nn.bessel(lengths, 8, cutoff) * _envelope(lengths, cutoff)[:, None]
        x = e3nn.haiku.Linear(f"{width}x0e")(
            e3nn.IrrepsArray(f"{_SPECIES}x0e", jax.nn.one_hot(_species(points), _SPECIES))
        )
        for _ in range(size.steps):
            sent = e3nn.haiku.Linear(x.irreps)(x)[points.senders]
            products = e3nn.tensor_product(sent, harmonics, filter_ir_out=hidden)
            messages = e3nn.concatenate([sent, products]).regroup()
            layers = [64, messages.irreps.num_irreps]
            mixing = e3nn.haiku.MultiLayerPerceptron(layers, jax.nn.silu)
            messages = messages * mixing(basis)
            received = e3nn.scatter_sum(
                messages, dst=points.receivers, output_size=points.nodes
            ) / jnp.sqrt(degree)
            gates = e3nn.Irreps(f"{2 * width}x0e")
            x = e3nn.gate(e3nn.haiku.Linear(hidden + gates)(received).regroup())
        return jnp.sum(e3nn.haiku.Linear("1x0e")(x).array)

    return _model(size, forward, points)
