"""Base class of potentials: energies of structures as sums of energies of atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import as_jax, is_concrete, shown
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, GraphBatch
from jaxgnn.models.atomic_geometry import (
    AtomicEdges,
    Structures,
    check_structures,
    recentred,
)
from jaxgnn.nn import pool
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer, zero_padding_edges
from jaxgnn.ops.core.eager import run_compiled

SpeciesNumbers = float | Sequence[float] | np.ndarray
"""A number for each species, or one for all."""

# A radius counts as the cutoff if it is smaller by rounding alone.
_ROUNDING = 1e-5


class InteratomicPotential(GraphLayer):
    """Base class of potentials: ``E = Σ_i scale_s(i) (e_i - lone_s(i)) + shift_s(i)`` over atoms.

    A subclass computes ``e_i`` of all atoms by ``_energies_of_atoms``. ``lone`` is the same of an
    atom without neighbours, or zero without ``subtract_lone_atoms``.

    Args:
      num_species: number of species, the rows of its tables.
      cutoff: distance beyond which atoms do not interact, in the unit of the positions.
      species_shift: energy of an atom to which the network adds, a number or [species].
      species_scale: factor of the network's output for each species, a number or [species].
      subtract_lone_atoms: whether the network's output for a lone atom is subtracted, so that
        ``species_shift`` is the energy of a lone atom.
    """

    option_lines = GraphLayer.option_lines | {
        "num_species": "number of species; each is a row of the tables of the model.",
        "cutoff": "distance beyond which atoms do not interact, in the unit of the positions.",
        "species_shift": (
            "energy of a lone atom of each species, to which the network adds, [species], or one\n"
            "  number for all; not trained."
        ),
        "species_scale": (
            "factor of what the network adds to it, [species], or one number for all,\n"
            "  such as the root mean square of the forces; not trained."
        ),
        "subtract_lone_atoms": (
            "whether the network's value for an atom without neighbours is subtracted from that\n"
            "  of each atom. Otherwise a lone atom has another energy than ``species_shift``, as\n"
            "  in models of earlier versions and in the published NequIP, PaiNN and SchNet."
        ),
    }

    def __init__(
        self,
        num_species: int,
        *,
        cutoff: float,
        species_shift: SpeciesNumbers,
        species_scale: SpeciesNumbers,
        subtract_lone_atoms: bool,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.num_species, self.cutoff = num_species, cutoff
        self.species_shift = self._species_table("species_shift", species_shift)
        self.species_scale = self._species_table("species_scale", species_scale)
        # An array, so that checkpoints of a model with the other option do not fit, and nobody
        # takes energies of one convention for those of the other.
        self.lone_share = self._species_table("", 1.0) if subtract_lone_atoms else None

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
        return run_compiled(_energies, graphdef, (recentred(batch), state))

    def energies_of_checked(self, batch: GraphBatch) -> Float[Array, " graphs"]:
        """Computes the energies of a batch that ``check_batch`` has accepted."""
        structures = Structures.from_checked(batch)
        edges = structures.edges()
        of_atoms = self._scaled_energies(structures.graph, structures.species, edges)
        energies = pool(of_atoms[:, None], batch, "sum")[:, 0]
        radius = batch.globals.get("radius")
        if radius is None:
            return energies
        # A factor, so that the forces are NaN as well.
        is_short = jnp.asarray(batch.graph_mask) & (jnp.asarray(radius) < self._least_radius)
        return energies * jnp.where(is_short, jnp.nan, 1).astype(energies.dtype)

    def check_batch(self, batch: GraphBatch) -> None:
        """Raises ValueError unless the batch fits the model, as far as its arrays are concrete."""
        check_structures(self._name, batch)
        species, mask = batch.nodes["species"], batch.node_mask
        if is_concrete(species, mask):
            numbers = np.where(np.asarray(mask), np.asarray(species), 0)
            bad = np.flatnonzero((numbers < 0) | (numbers >= self.num_species))
            if bad.size:
                argument = f"batch.nodes['species'][{bad[0]}]"
                expected = f"below num_species, {self.num_species}"
                raise bad_input(self._name, argument, expected, numbers[bad[0]])
        radius, is_graph = batch.globals.get("radius"), batch.graph_mask
        if radius is not None and is_concrete(radius, is_graph):
            least = np.min(np.asarray(radius)[np.asarray(is_graph)], initial=np.inf)
            if least < self._least_radius:
                expected = f"at least the cutoff, {self.cutoff:g}, in models.atomic_sample"
                raise bad_input(self._name, "the radius r of the edges", expected, f"{least:g}")

    def energies_of_atoms(
        self,
        graph: CSRGraph,
        species: Int[Array, " nodes"],
        vectors: Float[Array, "edges 3"],
    ) -> Float[Array, " nodes"]:
        """Returns the energy of each atom, from edges that were found elsewhere; under ``jit`` too.

        For neighbour lists of other libraries: a program that moves atoms takes the vectors of its
        own edges, and derives forces from the sum of these energies.

        Args:
          graph: square graph; rows are receivers, columns are senders. Edges longer than the
            cutoff contribute nothing.
          species: row of each atom in the tables of the model; NaN for any other.
          vectors: from receiver to sender of each edge slot. Padding slots may contain anything.

        Raises:
          ValueError: if shapes or dtypes do not match.

        Example:
          >>> import jax.numpy as jnp
          >>> from flax import nnx
          >>> from jaxgnn import CSRGraph, models
          >>> graph = CSRGraph.from_edges([0, 1], [1, 0], 2)
          >>> vectors = jnp.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])  # by receiver: 0, then 1
          >>> model = models.SchNet(1, 16, rngs=nnx.Rngs(0))
          >>> model.energies_of_atoms(graph, jnp.zeros(2, int), vectors).shape
          (2,)
        """
        self._check_graph(graph)
        self._check_square(graph, "since each atom sends and receives")
        species = as_jax(self._name, "species", species)
        vectors = as_jax(self._name, "vectors", vectors)
        if species.shape != (graph.num_rows,) or not jnp.issubdtype(species.dtype, jnp.integer):
            expected = f"integers [{graph.num_rows}], one for each atom"
            raise bad_input(self._name, "species", expected, shown(species))
        if vectors.shape != (graph.num_edges, 3) or not jnp.issubdtype(vectors.dtype, jnp.floating):
            expected = f"floating [{graph.num_edges}, 3], one for each edge slot"
            raise bad_input(self._name, "vectors", expected, shown(vectors))
        graphdef, state = nnx.split(self)
        return run_compiled(_energies_of_vectors, graphdef, (graph, species, vectors, state))

    def _energies_of_atoms(
        self, graph: CSRGraph, species: Int[Array, " nodes"], edges: AtomicEdges
    ) -> Float[Array, " nodes"]:
        """Computes the energy of each atom, without scale and shift; finite in padding.

        Args:
          graph: edges by receiver; its padding slots have vectors and distances of zero.
          species: row of each atom in the tables of the model, for ``rows_of_species``.
          edges: vectors and distances of all edge slots, in float32 or float64.
        """
        raise NotImplementedError(f"{self._name} has no energies of atoms")

    def _scaled_energies(
        self, graph: CSRGraph, species: Int[Array, " nodes"], edges: AtomicEdges
    ) -> Float[Array, " nodes"]:
        """The energy of each atom with scale and shift, in the dtype of the distances."""
        dtype = edges.distances.dtype
        of_atoms = self._energies_of_atoms(graph, species, edges).astype(dtype)
        tables = (self.species_scale, self.species_shift)
        scale, shift = (rows_of_species(table[...].astype(dtype), species) for table in tables)
        if self.lone_share is not None:
            lone = self._energies_of_lone_atoms(dtype) * self.lone_share[...].astype(dtype)
            of_atoms = of_atoms - rows_of_species(lone, species)
        return of_atoms * scale + shift

    def _energies_of_lone_atoms(self, dtype: Any) -> Float[Array, " species"]:
        """The energy of an atom of each species without neighbours, without scale and shift."""
        alone = CSRGraph.from_edges(np.zeros(0, int), np.zeros(0, int), self.num_species)
        edges = AtomicEdges(jnp.zeros((0, 3), dtype), jnp.zeros(0, dtype))
        species = jnp.arange(self.num_species, dtype=jnp.int32)
        return self._energies_of_atoms(alone, species, edges).astype(dtype)

    @property
    def _least_radius(self) -> float:
        return self.cutoff * (1 - _ROUNDING)

    def _features_dtype(self, edges: AtomicEdges) -> Any:
        """The dtype of the network: the option, or that of parameters and distances together."""
        if self.dtype is not None:
            return self.dtype
        return np.promote_types(jnp.dtype(self.param_dtype), edges.distances.dtype)

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
    return nnx.merge(graphdef, state).energies_of_checked(batch)


def _energies_of_vectors(graphdef: Any, arguments: Any) -> Float[Array, " nodes"]:
    graph, species, vectors, state = arguments
    wide = vectors.astype(np.promote_types(vectors.dtype, np.float32))
    edges = AtomicEdges.of_vectors(zero_padding_edges(graph, wide))
    return nnx.merge(graphdef, state)._scaled_energies(graph, species, edges)
