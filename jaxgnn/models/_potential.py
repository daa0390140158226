"""Energies, forces and stresses of a batch of structures, by derivatives of the energies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn._modes import refusing_changes
from jaxgnn.graph import GraphBatch
from jaxgnn.models.atomic_geometry import (
    Structures,
    check_structures,
    recentred,
    strained,
)
from jaxgnn.models.interatomic import InteratomicPotential
from jaxgnn.ops.core.eager import run_compiled

_WHERE = "models.energy_forces_stress"


class Potential(NamedTuple):
    """Energies of structures and their derivatives, zero in padding.

    Attributes:
      energy: of each structure, [graphs].
      forces: on each atom, [nodes, 3].
      stress: of each structure, [graphs, 3, 3]; None unless asked for.
    """

    energy: Float[Array, " graphs"]
    forces: Float[Array, "nodes 3"]
    stress: Float[Array, "graphs 3 3"] | None = None


def energy_forces_stress(
    model: Callable[[GraphBatch], Float[Array, " graphs"]],
    batch: GraphBatch,
    *,
    stress: bool = False,
) -> Potential:
    """Computes energies, forces ``-dE/dr``, and on request the stress, of a batch of structures.

    The stress is ``(dE/dε) / volume`` for a symmetric strain ``r (1 + ε)`` of atoms and cell, with
    the sign that ASE uses: positive where the energy grows with the volume. A structure without a
    cell has an identity in the place of it, so its volume is 1.

    One program for each shape of a batch; outside of ``jit`` it is compiled once and kept. It can
    be differentiated by the parameters, as training on forces does.

    Args:
      model: a potential such as ``models.SchNet``; any module or function from a batch to energies.
        A module is evaluated in evaluation mode, and is not changed. One whose parameters are
        traced or differentiated, as in a loss, keeps its mode, and must not change its state.
      batch: structures that ``models.atomic_sample`` made, with or without padding, which may
        contain anything.
      stress: whether to compute the stress.

    Returns:
      Energies, forces and stress in the dtype of the positions, float32 at least, in the units of
      energy and length that the model was trained with.

    Raises:
      ValueError: if the batch lacks an array of a structure, the model does not return energies
        [graphs] or changes its state, as batch norm does in training mode, or a cell has no volume
        and the stress was asked for; under ``jit`` the stress of such a structure is NaN.

    Example:
      >>> import numpy as np
      >>> from jaxgnn import models, nn, ops
      >>> from jaxgnn.graph import GraphBatch
      >>> pair = models.atomic_sample(np.array([[0.0, 0, 0], [0, 0, 2.0]]), [0, 0], 5.0)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to="power_of_two")
      >>> def springs(batch):
      ...     lengths = models.atomic_edges(batch).distances
      ...     energies = ops.aggregate(batch.graph, (lengths[:, None] - 1.0) ** 2 / 4, "sum")
      ...     return nn.pool(energies, batch, "sum")[:, 0]
      >>> found = models.energy_forces_stress(springs, batch)
      >>> found.energy.tolist(), found.forces[:2, 2].tolist()
      ([0.5, 0.5, 0.0, 0.0], [1.0, -1.0])
    """
    if not callable(model):
        raise bad_input(_WHERE, "model", "a potential", type(model).__name__)
    if isinstance(model, InteratomicPotential):
        model.check_batch(batch)
        batch = recentred(batch)
    else:
        check_structures(_WHERE, batch)
    if stress:
        _require_volume(batch)
    with refusing_changes(_WHERE, "model"):
        if isinstance(model, nnx.Module):
            graphdef, state = nnx.split(model)
            evaluates = is_concrete(*jax.tree.leaves(state))
            return run_compiled(
                _module_potential, (graphdef, bool(stress), evaluates), (batch, state)
            )
        return run_compiled(_function_potential, (model, bool(stress)), batch)


def _module_potential(
    static: tuple[Any, bool, bool], arguments: tuple[GraphBatch, Any]
) -> Potential:
    graphdef, with_stress, evaluates = static
    batch, state = arguments
    # Variables of its own, so that its mode and its state are not those of the caller's model.
    model = nnx.merge(graphdef, jax.tree.map(lambda array: array, state))
    if evaluates:
        model.eval()
    # A class of one's own may do more in a call, which checks the batch again.
    is_potential = isinstance(model, InteratomicPotential)
    if is_potential and type(model).__call__ is InteratomicPotential.__call__:
        model = model.energies_of_checked
    return _function_potential((model, with_stress), batch)


def _function_potential(static: tuple[Callable[..., Any], bool], batch: GraphBatch) -> Potential:
    model, with_stress = static
    structures = Structures.from_checked(batch)
    positions, cells = structures.positions, structures.cells
    is_graph = jnp.asarray(batch.graph_mask)

    def total(positions: Array, strain: Array | None) -> tuple[Array, Array]:
        energies = model(strained(batch, positions, strain))
        if jnp.shape(energies) != (batch.num_graphs,):
            expected = f"a function from a batch to energies [{batch.num_graphs}]"
            raise bad_input(_WHERE, "model", expected, f"shape {jnp.shape(energies)}")
        energies = jnp.where(is_graph, energies.astype(positions.dtype), 0)
        return jnp.sum(energies), energies

    argnums, strain = ((0, 1), jnp.zeros_like(cells)) if with_stress else ((0,), None)
    gradient = jax.value_and_grad(total, argnums=argnums, has_aux=True)
    (_, energies), (by_positions, *by_strain) = gradient(positions, strain)
    potential = Potential(energies, _real(batch.node_mask, -by_positions))
    if not with_stress:
        return potential
    volumes = jnp.abs(jnp.linalg.det(cells))[:, None, None]
    stress = jnp.where(volumes > 0, by_strain[0] / jnp.where(volumes > 0, volumes, 1), jnp.nan)
    return potential._replace(stress=_real(batch.graph_mask, stress))


def _real(mask: Any, values: Array) -> Array:
    """Sets values to zero in padding."""
    return jnp.where(jnp.expand_dims(jnp.asarray(mask), range(1, values.ndim)), values, 0)


def _require_volume(batch: GraphBatch) -> None:
    """Raises ValueError if a structure of a concrete batch has a cell without volume."""
    cells = batch.globals["cell"]
    if not is_concrete(cells, batch.graph_mask):
        return
    matrices = np.asarray(cells).astype(np.float64)
    is_real = np.isfinite(matrices).all((1, 2)) & np.asarray(batch.graph_mask)
    matrices = np.where(is_real[:, None, None], matrices, np.eye(3))
    empty = np.flatnonzero(np.linalg.det(matrices) == 0)
    if empty.size:
        expected = "of three independent cell vectors for a stress"
        got = f"{np.asarray(cells)[empty[0]].tolist()}, of volume 0"
        raise bad_input(_WHERE, f"batch.globals['cell'][{empty[0]}]", expected, got)
