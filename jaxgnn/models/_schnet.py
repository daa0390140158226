"""SchNet: a potential of distances, by continuous-filter convolutions."""

from __future__ import annotations

from typing import Unpack

from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.models.atomic_geometry import AtomicEdges
from jaxgnn.models.interatomic import InteratomicPotential, SpeciesNumbers, rows_of_species
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import SchNetInteraction, check_widths, shifted_softplus
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.options import anything, checked_options, flag, int_at_least, positive


@saveable
class SchNet(InteratomicPotential):
    """The potential SchNet, https://arxiv.org/abs/1706.08566: energies from distances alone.

    Atoms start as a vector for their species, and several ``nn.SchNetInteraction`` add to it what
    neighbours within the cutoff contribute::

        x_i = embedding[species_i],  x = x + interaction(x, distances)
        e_i = w₂ · shifted_softplus(W₁ x_i + b₁) + b₂
        E = Σ_i species_scale[species_i] (e_i - lone[species_i]) + species_shift[species_i]

    ``lone`` is e of an atom without neighbours, whose energy is thus ``species_shift``.

    The energy is invariant under rotations, reflections and translations. It and its forces are
    continuous at the cutoff. ``models.energy_forces_stress`` computes forces and stress.

    Args:
      features: width of the atoms.
      num_interactions: number of interactions, each of which reaches the cutoff further.
      num_filters: width of the filters; None for ``features``.
      num_gaussians: number of features of a distance.

    Example:
      >>> import numpy as np
      >>> from jaxgnn import models
      >>> water = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])
      >>> sample = models.atomic_sample(water, [1, 0, 0], 5.0)
      >>> batch = GraphBatch.from_graphs([sample, sample], pad_to="power_of_two")
      >>> model = SchNet(2, 32, cutoff=5.0, rngs=nnx.Rngs(0))
      >>> model(batch).shape, models.energy_forces_stress(model, batch).forces.shape
      ((4,), (8, 3))
    """

    @checked_options(
        cutoff=positive,
        num_filters=lambda value: None if value is None else int_at_least(1)(value),
        num_gaussians=int_at_least(2),
        num_interactions=int_at_least(1),
        num_species=int_at_least(1),
        species_scale=anything,
        species_shift=anything,
        subtract_lone_atoms=flag,
    )
    def __init__(
        self,
        num_species: int,
        features: int = 128,
        *,
        cutoff: float = 5.0,
        num_interactions: int = 3,
        num_filters: int | None = None,
        num_gaussians: int = 50,
        species_shift: SpeciesNumbers = 0.0,
        species_scale: SpeciesNumbers = 1.0,
        subtract_lone_atoms: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        tables = {"species_shift": species_shift, "species_scale": species_scale}
        options = {"cutoff": cutoff, "subtract_lone_atoms": subtract_lone_atoms}
        super().__init__(num_species, **options, **tables, **common)
        check_widths(self._name, features)
        initial = nnx.initializers.normal(1.0)(
            rngs.params(), (num_species, features), self.param_dtype
        )
        self.embedding = nnx.Param(initial)
        self.interactions = nnx.List(
            SchNetInteraction(
                features,
                num_filters=num_filters or features,
                num_gaussians=num_gaussians,
                cutoff=cutoff,
                implementation=self.implementation,
                rngs=rngs,
                **self._dtypes,
            )
            for _ in range(num_interactions)
        )
        hidden = max(features // 2, 1)
        self.hidden = self._linear(features, hidden, rngs=rngs)
        self.readout = self._linear(hidden, 1, rngs=rngs)

    def _energies_of_atoms(
        self, graph: CSRGraph, species: Int[Array, " nodes"], edges: AtomicEdges
    ) -> Float[Array, " nodes"]:
        table = self.embedding[...].astype(self._features_dtype(edges))
        x = rows_of_species(table, species)
        for interaction in self.interactions:
            x = x + interaction(graph, x, edges.distances)
        x = shifted_softplus(self._apply(self.hidden, x))
        return self._apply(self.readout, x)[:, 0]
