"""Base class of potentials: energies of structures as sums of energies of atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch
from jaxgnn.models.atomic_geometry import AtomicEdges, Structures, check_structures
from jaxgnn.nn import pool
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer
from jaxgnn.ops.core.eager import run_compiled

SpeciesNumbers = float | Sequence[float] | np.ndarray
"""A number for each species, or one for all."""

# A radius counts as the cutoff if it is smaller by rounding alone.
_ROUNDING = 1e-5


class InteratomicPotential(GraphLayer):
    """Base class of potentials, ``E = Σ_i scale_s(i) e_i + shift_s(i)`` over the atoms.

    A subclass computes ``e_i`` of all atoms by ``_energies_of_atoms``.

    Args:
      num_species: number of species, the rows of its tables.
      cutoff: distance beyond which atoms do not interact, in the unit of the positions.
      species_shift: energy of a lone atom of each species, a number or [species].
      species_scale: factor of the network's output for each species, a number or [species].
    """

    option_lines = GraphLayer.option_lines | {
        "num_species": "number of species; each is a row of the tables of the model.",
        "cutoff": "distance beyond which atoms do not interact, in the unit of the positions.",
        "species_shift": (
            "energy of a lone atom of each species, [species], or one number for all;\n"
            "  not trained."
        ),
        "species_scale": (
            "factor of what the network adds to it, [species], or one number for all,\n"
            "  such as the root mean square of the forces; not trained."
        ),
    }

    def __init__(
        self,
        num_species: int,
        *,
        cutoff: float,
        species_shift: SpeciesNumbers,
        species_scale: SpeciesNumbers,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.num_species, self.cutoff = num_species, cutoff
        self.species_shift = self._species_table("species_shift", species_shift)
        self.species_scale = self._species_table("species_scale", species_scale)

    def __call__(self, batch: GraphBatch) -> Float[Array, " graphs"]:
        """Returns the energy of each structure, zero for padding.

        Outside of ``jit`` it is one program for each shape of a batch. Forces and stresses are
        those of ``models.energy_forces_stress``.

        Args:
          batch: structures that ``models.atomic_sample`` made, with a radius of at least the
            cutoff. Padding may contain anything.

        Raises:
          ValueError: if the batch lacks an array of a structure; if a species is no row of the
            tables, or the radius is below the cutoff. Under ``jit``, where those two can not be
            read, the energy and the forces of such a structure are NaN.
        """
        self.check_batch(batch)
        graphdef, state = nnx.split(self)
        return run_compiled(_energies, graphdef, (batch, state))

    def check_batch(self, batch: GraphBatch) -> None:
        """Raises ValueError unless the batch fits the model, as far as its arrays are concrete."""
        check_structures(self._name, batch)
        species, mask = batch.nodes["species"], batch.node_mask
        if is_concrete(species, mask):
            known = np.where(np.asarray(mask), np.asarray(species), 0)
            bad = np.flatnonzero((known < 0) | (known >= self.num_species))
            if bad.size:
                argument = f"batch.nodes['species'][{bad[0]}]"
                expected = f"below num_species, {self.num_species}"
                raise bad_input(self._name, argument, expected, known[bad[0]])
        radius, is_graph = batch.globals.get("radius"), batch.graph_mask
        if radius is not None and is_concrete(radius, is_graph):
            least = np.min(np.asarray(radius)[np.asarray(is_graph)], initial=np.inf)
            if least < self._least_radius:
                expected = f"at least the cutoff, {self.cutoff:g}, in models.atomic_sample"
                raise bad_input(self._name, "the radius r of the edges", expected, f"{least:g}")

    def _energies_of_atoms(
        self, structures: Structures, edges: AtomicEdges
    ) -> Float[Array, " nodes"]:
        """The energy of each atom, without scale and shift; padding may get any finite number."""
        raise NotImplementedError(f"{self._name} has no energies of atoms")

    @property
    def _least_radius(self) -> float:
        return self.cutoff * (1 - _ROUNDING)

    def _features_dtype(self, structures: Structures) -> Any:
        """The dtype of the network: the option, or that of parameters and positions together."""
        if self.dtype is not None:
            return self.dtype
        return np.promote_types(jnp.dtype(self.param_dtype), structures.positions.dtype)

    def _species_table(self, name: str, numbers: SpeciesNumbers) -> nnx.Variable:
        try:
            table = np.asarray(numbers, np.float64)
        except (TypeError, ValueError):
            table = np.array(np.nan)
        is_number = not isinstance(numbers, str | bool)
        if not is_number or table.shape not in ((), (self.num_species,)):
            table = np.array(np.nan)
        if not np.isfinite(table).all():
            expected = f"a finite number, or {self.num_species} of them, one for each species"
            raise bad_input(self._name, name, expected, repr(numbers))
        of_each = np.broadcast_to(table, self.num_species)
        return nnx.Variable(jnp.asarray(of_each, self.param_dtype))


def rows_of_species(
    table: Float[Array, "species *rest"], species: Int[Array, " nodes"]
) -> Float[Array, "nodes *rest"]:
    """The row of each atom's species; NaN for a species that is no row."""
    beyond = table.shape[0]
    places = jnp.where((species >= 0) & (species < beyond), species, beyond)
    return table.at[places].get(mode="fill", fill_value=jnp.nan)


def _energies(graphdef: Any, arguments: tuple[GraphBatch, Any]) -> Float[Array, " graphs"]:
    batch, state = arguments
    model = nnx.merge(graphdef, state)
    structures = Structures.of_batch(model._name, batch)
    dtype, species = structures.positions.dtype, structures.species
    of_atoms = model._energies_of_atoms(structures, structures.edges()).astype(dtype)
    tables = (model.species_scale, model.species_shift)
    scale, shift = (rows_of_species(table[...].astype(dtype), species) for table in tables)
    energies = pool((of_atoms * scale + shift)[:, None], batch, "sum")[:, 0]
    radius = batch.globals.get("radius")
    if radius is None:
        return energies
    # A factor, so that the forces are NaN as well.
    is_short = jnp.asarray(batch.graph_mask) & (jnp.asarray(radius) < model._least_radius)
    return energies * jnp.where(is_short, jnp.nan, 1).astype(dtype)
