"""PaiNN: a potential of scalars and vectors."""

from __future__ import annotations

from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.models.atomic_geometry import AtomicEdges
from jaxgnn.models.interatomic import InteratomicPotential, SpeciesNumbers, rows_of_species
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import BesselBasis, FusedMLP, check_widths, cosine_cutoff
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer
from jaxgnn.nn.shared.options import anything, checked_options, flag, int_at_least, positive

# Added to squared lengths of vectors, so that the slope of a length is finite at zero.
_EPSILON = 1e-8


@saveable
class PaiNN(InteratomicPotential):
    """The potential PaiNN, https://arxiv.org/abs/2102.03150: atoms have scalars and vectors.

    Each of several steps sums messages of the neighbours within the cutoff, and then mixes scalars
    and vectors of each atom. With filters ``w = (basis · kernel + bias) C`` of the distance, unit
    vectors ``u_ij`` and ``[φ, ψ, χ]_j = mlp(s_j)``::

        s_i = s_i + Σ_j φ_j w_ij
        v_i = v_i + Σ_j v_j ψ_j w'_ij + u_ij χ_j w''_ij
        [a, b, c]_i = mlp([s_i ; |V v_i|])
        s_i = s_i + a_i + b_i ⟨U v_i, V v_i⟩,  v_i = v_i + c_i U v_i
        e_i = mlp(s_i)
        E = Σ_i species_scale[species_i] (e_i - lone[species_i]) + species_shift[species_i]

    ``lone`` is e of an atom without neighbours, whose energy is thus ``species_shift``.

    The basis is ``nn.BesselBasis``, and C is ``nn.cosine_cutoff``. No array of edges times
    features is stored. The energy is invariant under rotations, reflections and translations. It
    and its forces are continuous at the cutoff. ``models.energy_forces_stress`` computes forces and
    stress.

    Args:
      features: number of scalars, and of vectors, of an atom.
      num_interactions: number of steps, each of which reaches the cutoff further.
      num_basis: number of features of a distance.

    Example:
      >>> import numpy as np
      >>> from jaxgnn import models
      >>> water = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])
      >>> sample = models.atomic_sample(water, [1, 0, 0], 5.0)
      >>> batch = GraphBatch.from_graphs([sample, sample], pad_to="power_of_two")
      >>> model = PaiNN(2, 32, cutoff=5.0, rngs=nnx.Rngs(0))
      >>> model(batch).shape, models.energy_forces_stress(model, batch).forces.shape
      ((4,), (8, 3))
    """

    @checked_options(
        cutoff=positive,
        num_basis=int_at_least(1),
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
        num_basis: int = 20,
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
        shape = num_species, features
        initial = nnx.initializers.normal(1.0)(rngs.params(), shape, self.param_dtype)
        self.embedding = nnx.Param(initial)
        self.basis = BesselBasis(num_basis, cutoff)
        options = self._dtypes | {"implementation": self.implementation, "rngs": rngs}
        self.messages = nnx.List(
            _Message(features, num_basis, **options) for _ in range(num_interactions)
        )
        self.mixings = nnx.List(_Mixing(features, **options) for _ in range(num_interactions))
        widths = [features, max(features // 2, 1), 1]
        self.readout = FusedMLP(widths, activation="silu", **options)

    def _energies_of_atoms(
        self, graph: CSRGraph, species: Int[Array, " nodes"], edges: AtomicEdges
    ) -> Float[Array, " nodes"]:
        dtype = self._features_dtype(edges)
        s = rows_of_species(self.embedding[...].astype(dtype), species)
        v = jnp.zeros((s.shape[0], 3, s.shape[1]), dtype)
        basis = self.basis(edges.distances)
        cutoff = cosine_cutoff(edges.distances, self.cutoff)
        # The factors of the filters of a scalar, and of those of the components of a vector.
        factors = [cutoff, *(edges.directions() * cutoff[:, None]).T]
        for message, mixing in zip(self.messages, self.mixings, strict=True):
            s, v = message(graph, s, v, basis, factors)
            s, v = mixing(s, v)
        return self._apply_mlp(self.readout, s)[:, 0]


class _Message(GraphLayer):
    """Adds to scalars and vectors of atoms the messages of their neighbours."""

    def __init__(self, features: int, num_basis: int, *, rngs: nnx.Rngs, **common: Any):
        super().__init__(**common)
        options = self._dtypes | {"implementation": self.implementation, "rngs": rngs}
        self.mlp = FusedMLP([features, features, 3 * features], activation="silu", **options)
        self.filters = self._linear(num_basis, 3 * features, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph,
        s: Float[Array, "nodes features"],
        v: Float[Array, "nodes 3 features"],
        basis: Float[Array, "edges basis"],
        factors: list[Float[Array, " edges"]],
    ) -> tuple[Array, Array]:
        of_senders = jnp.split(self._apply_mlp(self.mlp, s), 3, axis=-1)
        kernels = jnp.split(self.filters.kernel[...], 3, axis=-1)
        assert self.filters.bias is not None
        biases = jnp.split(self.filters.bias[...], 3)
        scalar, along, outward = zip(of_senders, kernels, biases, strict=True)

        def summed(x: Array, kernel: Array, bias: Array, factor: Array) -> Array:
            filters = {"basis": basis, "kernel": kernel, "bias": bias, "envelope": factor}
            return ops.filtered_sum(graph, x, **filters, implementation=self.implementation)

        cutoff, *directed = factors
        # The scalar and the three components of the vector, with the filters of each.
        turned = jnp.concatenate([scalar[0][:, None], v * along[0][:, None]], axis=1)
        kernel = jnp.stack([scalar[1], *[along[1]] * 3], axis=1)
        sums = summed(turned, kernel, jnp.stack([scalar[2], *[along[2]] * 3]), cutoff)
        directed_sums = jnp.stack([summed(*outward, factor) for factor in directed], axis=1)
        return s + sums[:, 0], v + sums[:, 1:] + directed_sums


class _Mixing(GraphLayer):
    """Mixes the scalars and the vectors of each atom."""

    def __init__(self, features: int, *, rngs: nnx.Rngs, **common: Any):
        super().__init__(**common)
        options = self._dtypes | {"implementation": self.implementation, "rngs": rngs}
        self.vectors = self._linear(features, 2 * features, use_bias=False, rngs=rngs)
        self.mlp = FusedMLP([2 * features, features, 3 * features], activation="silu", **options)

    def __call__(
        self, s: Float[Array, "nodes features"], v: Float[Array, "nodes 3 features"]
    ) -> tuple[Array, Array]:
        first, second = jnp.split(self._apply(self.vectors, v), 2, axis=-1)
        lengths = jnp.sqrt(jnp.sum(jnp.square(second), axis=1) + _EPSILON)
        changes = self._apply_mlp(self.mlp, jnp.concatenate([s, lengths], axis=-1))
        added, factor, stretch = jnp.split(changes, 3, axis=-1)
        products = jnp.sum(first * second, axis=1)
        return s + added + factor * products, v + stretch[:, None] * first
