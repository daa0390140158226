"""Every potential, made small: how, and the energies of atoms by its formula in float64."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxgnn import models
from jaxgnn.equivariant import spherical_harmonics
from tests.models._structures import CUTOFF

SHIFT, SCALE = (-1.5, 0.5), (2.0, 3.0)


class Case(NamedTuple):
    """A potential and its formula.

    Attributes:
      make: ``make(**options)``, for two species.
      formula: energies of atoms, without scale and shift, from the model with parameters in
        float64, species, senders, receivers and vectors of the edges.
    """

    make: Callable[..., Any]
    formula: Callable[..., np.ndarray]


def _case(
    network: Any, formula: Callable[..., np.ndarray], features: Any = 4, **sizes: Any
) -> Case:
    defaults = {"cutoff": CUTOFF, "species_shift": SHIFT, "species_scale": SCALE} | sizes

    def make(**options: Any) -> Any:
        return network(2, features, **(defaults | {"rngs": nnx.Rngs(0)} | options))

    return Case(make, formula)


def wide(model: nnx.Module) -> Any:
    """The model with its parameters in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)


def _linear(layer: Any, x: Any) -> Any:
    y = x @ layer.kernel[...]
    return y if layer.bias is None else y + layer.bias[...]


def _mlp(mlp: Any, x: Any) -> Any:
    for place, layer in enumerate(mlp.layers):
        x = _linear(layer, x)
        x = x / (1 + np.exp(-x)) if place < len(mlp.layers) - 1 else x
    return x


def _softplus(x: Any) -> Any:
    return np.log(0.5 * np.exp(x) + 0.5)


def _cutoff(distances: Any) -> Any:
    return np.where(distances < CUTOFF, (np.cos(np.pi * distances / CUTOFF) + 1) / 2, 0)[:, None]


def _summed(ends: Any, messages: Any, count: int) -> Any:
    sums = np.zeros((count, *messages.shape[1:]))
    np.add.at(sums, ends, messages)
    return sums


def _schnet(model: Any, species: Any, senders: Any, receivers: Any, vectors: Any) -> Any:
    distances = np.linalg.norm(vectors, axis=1)
    centres = np.linspace(0, CUTOFF, model.interactions[0].conv.num_gaussians)
    apart = (distances[:, None] - centres) / (centres[1] - centres[0])
    x = model.embedding[...][species]
    for interaction in model.interactions:
        conv = interaction.conv
        hidden = _softplus(_linear(conv.filter_hidden, np.exp(-(apart**2) / 2)))
        filters = _linear(conv.filter_linear, hidden) * _cutoff(distances)
        messages = _linear(conv.sender_linear, x)[senders] * filters
        y = _linear(conv.linear, _summed(receivers, messages, len(x)))
        x = x + _linear(interaction.linear, _softplus(y))
    return _linear(model.readout, _softplus(_linear(model.hidden, x)))[:, 0]


def _painn(model: Any, species: Any, senders: Any, receivers: Any, vectors: Any) -> Any:
    distances = np.linalg.norm(vectors, axis=1)[:, None]
    waves = np.sin(np.arange(1, model.basis.num + 1) * np.pi * distances / CUTOFF) / distances
    basis, directions = np.sqrt(2 / CUTOFF) * waves, vectors / distances
    s = model.embedding[...][species]
    v = np.zeros((*s.shape, 3))
    for message, mixing in zip(model.messages, model.mixings, strict=True):
        filters = _linear(message.filters, basis) * _cutoff(distances[:, 0])
        parts = np.split(_mlp(message.mlp, s)[senders] * filters, 3, axis=1)
        moved = v[senders] * parts[1][..., None] + parts[2][..., None] * directions[:, None]
        s, v = (x + _summed(receivers, y, len(s)) for x, y in ((s, parts[0]), (v, moved)))
        first, second = np.split(np.einsum("nfd,fg->ngd", v, mixing.vectors.kernel[...]), 2, axis=1)
        lengths = np.sqrt((second**2).sum(-1) + 1e-8)
        added, factor, stretch = np.split(_mlp(mixing.mlp, np.hstack([s, lengths])), 3, axis=1)
        s, v = s + added + factor * (first * second).sum(-1), v + stretch[..., None] * first
    return _mlp(model.readout, s)[:, 0]


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _mixed(layer: Any, x: Any, species: Any = None) -> Any:
    """An equivariant linear map, as a matrix of all components."""
    irreps_in, irreps_out = layer.irreps_in, layer.irreps_out
    matrix = np.zeros((layer.num_species or 1, irreps_in.dim, irreps_out.dim))
    for irrep, kernel in zip(layer.irreps, layer.kernels, strict=True):
        places = [
            [
                np.arange(columns.start, columns.stop).reshape(-1, irrep.dim)
                for entry, columns in zip(irreps, irreps.slices, strict=True)
                if entry.irrep == irrep
            ]
            for irreps in (irreps_in, irreps_out)
        ]
        rows, columns = (np.concatenate(place) for place in places)
        for m in range(irrep.dim):
            matrix[:, rows[:, m, None], columns[:, m]] = kernel[...] / np.sqrt(len(rows))
    return np.einsum("ni,nio->no", x, matrix[np.zeros(len(x), int) if species is None else species])


def _gated(gate: Any, x: Any) -> Any:
    """The gate, channel by channel; the constants make the second moments one."""
    parts: list[Any] = []
    scalars, entries = 0, list(gate.irreps_out)
    others = start = sum(e.dim for e in entries if e.irrep.degree == 0)
    others += sum(e.multiplicity for e in entries if e.irrep.degree > 0)
    for entry in entries:
        if entry.irrep.degree == 0:
            values = x[:, scalars : scalars + entry.dim]
            is_even = entry.irrep.parity == 1
            parts.append(_silu(values) / 0.59646921 if is_even else np.tanh(values) / 0.62792873)
            scalars += entry.dim
        for _ in range(entry.multiplicity if entry.irrep.degree else 0):
            factor = _silu(x[:, start, None]) / 0.59646921
            parts.append(factor * x[:, others : others + entry.irrep.dim])
            start, others = start + 1, others + entry.irrep.dim
    return np.concatenate(parts, axis=1)


def _nequip(model: Any, species: Any, senders: Any, receivers: Any, vectors: Any) -> Any:
    distances = np.linalg.norm(vectors, axis=1)
    with jax.enable_x64(True):
        harmonics = np.asarray(spherical_harmonics(model.irreps_sh, vectors))
    inside = np.minimum(distances / CUTOFF, 1)[:, None]
    frequencies = np.arange(1, model.basis.num + 1) * np.pi / CUTOFF
    waves = np.sqrt(2 / CUTOFF) * np.sin(frequencies * distances[:, None]) / distances[:, None]
    basis = waves * (1 - 28 * inside**6 + 48 * inside**7 - 21 * inside**8)
    x = model.embedding[...][species]
    for step in model.interactions:
        conv, hidden = step.conv, basis
        for layer in conv.radial:
            hidden = _silu(_linear(layer, hidden))
        weights = hidden @ conv.radial_kernel[...]
        neighbours, messages = _mixed(step.linear, x)[senders], []
        for path, columns in zip(conv.product.paths, conv.product.weight_slices, strict=True):
            part = neighbours[:, conv.product.irreps_in.slices[path.i_in]]
            table = conv.product.table(path)
            part = part.reshape(len(part), conv.product.channels(path), len(table))
            harmonic = harmonics[:, conv.product.irreps_sh.slices[path.i_sh]]
            products = np.einsum("eu,eua,eb,abc->euc", weights[:, columns], part, harmonic, table)
            messages.append(products.reshape(len(products), products.shape[1] * products.shape[2]))
        sums = _summed(receivers, np.concatenate(messages, axis=1), len(x))
        y = _mixed(conv.linear, sums / np.sqrt(conv.num_neighbours))
        x = _gated(step.gate, y + _mixed(step.self_connection, x, species))
    return _mixed(model.readout, x)[:, 0]


POTENTIALS = {
    "NequIP": _case(
        models.NequIP,
        _nequip,
        "3x0e+2x1o",
        num_interactions=2,
        max_degree=1,
        num_basis=4,
        radial_features=[5],
    ),
    "PaiNN": _case(models.PaiNN, _painn, num_interactions=2, num_basis=5),
    "SchNet": _case(models.SchNet, _schnet, num_interactions=2, num_gaussians=5),
}
