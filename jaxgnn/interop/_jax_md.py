"""Potentials as energy functions of jax-md, on its neighbour lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import as_jax, is_concrete, shown
from jaxgnn._errors import bad_input
from jaxgnn._modes import in_evaluation_mode
from jaxgnn.graph import CSRGraph
from jaxgnn.models.interatomic import InteratomicPotential
from jaxgnn.ops.shared import at_ends

_WHERE = "interop.jax_md_energy"


def jax_md_energy(
    model: Any, displacement: Callable[..., Any], species: npt.ArrayLike
) -> Callable[..., Float[Array, ""]]:
    """Makes an energy function for jax-md, ``energy(positions, neighbor)``, of a trained potential.

    It is called and differentiated like those of ``jax_md.energy``: pass it to
    ``jax_md.simulate.nve`` or ``jax_md.quantity.force``, and the list of neighbours to every step.
    Works under ``jit``, where it sorts the list on the device at each call. jax-md itself is not
    imported. Forces are by the nearest image, as jax-md's distances, so the box has to be at least
    twice as wide as the cutoff.

    jax-md keeps positions in JAX's dtype. Let it put them back into the box, as
    ``jax_md.space.periodic`` does by default: far from the origin, float32 loses digits of
    distances. Parameters of the model are read at each call, and under ``jit`` once.

    Args:
      model: a potential such as ``models.SchNet``. Its parameters are those that it has now, and it
        is evaluated in evaluation mode.
      displacement: function of two positions, one minus the other, such as ``jax_md.space``
        makes; it also gets keyword arguments of the call. Positions may be fractional, if it is.
      species: row of each atom in the tables of the model, integers [atoms].

    Returns:
      The energy of all atoms, a scalar, from positions [atoms, 3] and the keyword ``neighbor``, a
      ``jax_md.partition.NeighborList`` of format ``Dense`` or ``Sparse`` whose ``r_cutoff`` is at
      least the cutoff of the model.

    Raises:
      ValueError: if the model or the species do not fit; when it is called, if positions are not
        [atoms, 3], or a list has another format.

    Example:
      >>> from types import SimpleNamespace
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import interop, models
      >>> model = models.SchNet(1, 16, cutoff=2.0, rngs=nnx.Rngs(0))
      >>> energy = interop.jax_md_energy(model, lambda a, b: a - b, [0, 0, 0])
      >>> positions = jnp.array([[0.0, 0, 0], [1, 0, 0], [2, 0, 0]])
      >>> # What jax_md.partition.neighbor_list(...).allocate(positions) returns:
      >>> near = jnp.array([[1, 3], [0, 2], [1, 3]])
      >>> neighbor = SimpleNamespace(idx=near, format=SimpleNamespace(name="Dense"))
      >>> jax.grad(energy)(positions, neighbor=neighbor).shape
      (3, 3)
    """
    if not isinstance(model, InteratomicPotential):
        expected = "a potential of jaxgnn.models, such as SchNet"
        raise bad_input(_WHERE, "model", expected, type(model).__name__)
    of_atoms = as_jax(_WHERE, "species", species)
    if of_atoms.ndim != 1 or not jnp.issubdtype(of_atoms.dtype, jnp.integer):
        raise bad_input(_WHERE, "species", "integers [atoms]", shown(of_atoms))
    if is_concrete(of_atoms):
        numbers = np.asarray(of_atoms)
        bad = np.flatnonzero((numbers < 0) | (numbers >= model.num_species))
        if bad.size:
            expected = f"a row of the model's tables, below {model.num_species}"
            raise bad_input(_WHERE, f"species[{bad[0]}]", expected, numbers[bad[0]])

    model = in_evaluation_mode(model)

    def energy(
        positions: Float[Array, "atoms 3"], neighbor: Any, **options: Any
    ) -> Float[Array, ""]:
        """Returns the energy of all atoms."""
        if positions.shape != (len(of_atoms), 3):
            expected = f"of shape [{len(of_atoms)}, 3]"
            raise bad_input(_WHERE, "positions", expected, shown(positions))
        graph = _graph(neighbor, len(of_atoms))
        ends = (at_ends(end, graph, positions) for end in ("senders", "receivers"))
        vectors = jax.vmap(partial(displacement, **options))(*ends)
        return jnp.sum(model.energies_of_atoms(graph, of_atoms, vectors))

    return energy


def _graph(neighbor: Any, atoms: int) -> CSRGraph:
    """Returns the edges of a full list of neighbours, [atoms, most] or (receivers, senders)."""
    kind = getattr(getattr(neighbor, "format", None), "name", None)
    if kind not in ("Dense", "Sparse"):
        expected = "a NeighborList of format Dense or Sparse, which has both edges of a pair"
        raise bad_input(_WHERE, "neighbor", expected, kind or type(neighbor).__name__)
    ids = as_jax(_WHERE, "neighbor.idx", neighbor.idx)
    if kind == "Dense":
        senders = ids.reshape(-1)
        receivers = jnp.repeat(jnp.arange(atoms, dtype=ids.dtype), ids.shape[1])
    else:
        receivers, senders = ids
    is_edge = (senders < atoms) & (receivers < atoms)
    return CSRGraph.from_edges(senders, receivers, atoms, edge_mask=is_edge)
