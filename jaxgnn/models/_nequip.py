"""NequIP: an equivariant potential of scalars, vectors and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irrep, Irreps, MulIrrep, spherical_harmonics
from jaxgnn.equivariant.irreps import as_irreps
from jaxgnn.graph import CSRGraph
from jaxgnn.models.atomic_geometry import AtomicEdges
from jaxgnn.models.interatomic import InteratomicPotential, SpeciesNumbers, rows_of_species
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import (
    BesselBasis,
    EquivariantConv,
    EquivariantLinear,
    EquivariantRMSNorm,
    Gate,
    polynomial_envelope,
)
from jaxgnn.nn.equivariant.channels import distinct_irreps, num_channels
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.options import (
    anything,
    checked_options,
    flag,
    int_at_least,
    one_of,
    or_none,
    positive,
)

_EVEN = Irrep(0, 1)


@saveable
class NequIP(InteratomicPotential):
    """The potential NequIP, https://arxiv.org/abs/2101.03164: atoms have tensors of any degree.

    Atoms start as scalars for their species. Each of several steps convolves them with the
    spherical harmonics of the directions to their neighbours, adds a map of the atom's own
    features, with weights for each species, and applies a gate that knows parities::

        x_i = embedding[species_i]
        x_i = gate(conv(linear(x))_i + self_connection(x_i, species_i))
        e_i = linear(x_i)
        E = Σ_i species_scale[species_i] (e_i - lone[species_i]) + species_shift[species_i]

    ``lone`` is e of an atom without neighbours, whose energy is thus ``species_shift``.

    The layers are ``nn.EquivariantConv``, ``nn.EquivariantLinear`` and ``nn.Gate``; the basis is
    ``nn.BesselBasis`` times ``nn.polynomial_envelope``. A step has those irreps that its input can
    reach, and the last one even scalars alone, since the energy reads no others. The energy is
    invariant under rotations, reflections and translations. It, its forces and their slopes are
    continuous at the cutoff. ``models.energy_forces_stress`` computes forces and stress.

    Args:
      irreps: irreps of an atom between the steps, with even scalars, ``0e``, among them.
      max_degree: largest degree of the spherical harmonics.
      num_interactions: number of steps, each of which reaches the cutoff further.
      num_basis: number of functions in the basis of a distance.
      radial_features: widths of the hidden layers of the radial networks.
      envelope_power: power p of the envelope; the larger, the later the decay.
      num_neighbours: typical number of neighbours within the cutoff, whose root divides sums.
      embedding: initial features of an atom: ``"learnt"``, as many as ``irreps`` has even scalars,
        or ``"one_hot"``, 1 at its species and 0 at all others.
      species_weights: whether the self-connection has weights for each species.
      norm: ``"rms"`` for an ``nn.EquivariantRMSNorm`` before each gate, or ``"nequix"`` for one
        whose shares are those of nequix (https://arxiv.org/abs/2508.16067): the channels of an
        irrep over its components; None for no norm.
      precision: products of float32 numbers in all layers, in ``"highest"``, ``"tf32"`` or
        ``"bf16x3"`` precision; None for the setting of JAX. A lower precision is faster on a GPU,
        and breaks the invariance by its rounding.
      recompute_weights: whether kernels of a GPU make the weights of the convolutions wherever
        they use them, in about a third of the memory, but slower; None if those of a step would
        take more than 2 GiB.

    Example:
      >>> import numpy as np
      >>> from jaxgnn import models
      >>> water = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])
      >>> sample = models.atomic_sample(water, [1, 0, 0], 5.0)
      >>> batch = GraphBatch.from_graphs([sample, sample], pad_to="power_of_two")
      >>> model = NequIP(2, "8x0e+4x1o", cutoff=5.0, max_degree=1, rngs=nnx.Rngs(0))
      >>> model(batch).shape, models.energy_forces_stress(model, batch).forces.shape
      ((4,), (8, 3))
    """

    @checked_options(
        cutoff=positive,
        embedding=one_of("learnt", "one_hot"),
        envelope_power=int_at_least(2),
        max_degree=int_at_least(0),
        norm=one_of(None, "rms", "nequix"),
        num_basis=int_at_least(1),
        num_interactions=int_at_least(1),
        num_neighbours=positive,
        num_species=int_at_least(1),
        recompute_weights=or_none(flag),
        species_scale=anything,
        species_shift=anything,
        species_weights=flag,
        subtract_lone_atoms=flag,
    )
    def __init__(
        self,
        num_species: int,
        irreps: Irreps | str = "32x0e+32x1o+32x2e",
        *,
        cutoff: float = 5.0,
        max_degree: int = 2,
        num_interactions: int = 4,
        num_basis: int = 8,
        radial_features: Sequence[int] = (64, 64),
        envelope_power: int = 6,
        num_neighbours: float = 20.0,
        embedding: Literal["learnt", "one_hot"] = "learnt",
        species_weights: bool = True,
        norm: Literal["rms", "nequix"] | None = None,
        species_shift: SpeciesNumbers = 0.0,
        species_scale: SpeciesNumbers = 1.0,
        subtract_lone_atoms: bool = True,
        precision: ops.Precision | None = "highest",
        recompute_weights: bool | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        tables = {"species_shift": species_shift, "species_scale": species_scale}
        options = {"cutoff": cutoff, "subtract_lone_atoms": subtract_lone_atoms}
        super().__init__(num_species, **options, **tables, **common)
        self.irreps = as_irreps(self._name, "irreps", irreps)
        scalars = tuple(entry for entry in self.irreps if entry.irrep == _EVEN)
        if not scalars:
            raise bad_input(self._name, "irreps", "with even scalars, 0e", str(self.irreps))
        before = last = Irreps(scalars)
        self.irreps_sh = Irreps.harmonics(max_degree)
        if embedding == "one_hot":
            before, self.embedding = Irreps((MulIrrep(num_species, _EVEN),)), None
        else:
            shape = num_species, last.dim
            initial = nnx.initializers.normal(1.0)(rngs.params(), shape, self.param_dtype)
            self.embedding = nnx.Param(initial)
        self.basis, self.envelope_power = BesselBasis(num_basis, cutoff), envelope_power
        conv: dict[str, Any] = {"num_basis": num_basis, "radial_features": radial_features}
        conv |= {"num_neighbours": num_neighbours, "implementation": self.implementation}
        conv |= {"recompute_weights": recompute_weights}
        linear: dict[str, Any] = {"precision": precision, "rngs": rngs, **self._dtypes}
        self.interactions = nnx.List()
        for step in range(num_interactions):
            wanted = last if step == num_interactions - 1 else self.irreps
            after = _reachable(before, self.irreps_sh, wanted)
            self.interactions.append(
                _Interaction(
                    (before, self.irreps_sh, after),
                    conv,
                    num_species if species_weights else None,
                    norm=norm,
                    **linear,
                )
            )
            before = after
        self.readout = EquivariantLinear(last, "1x0e", **linear)

    def _energies_of_atoms(
        self, graph: CSRGraph, species: Int[Array, " nodes"], edges: AtomicEdges
    ) -> Float[Array, " nodes"]:
        dtype = self._features_dtype(edges)
        table = jnp.eye(self.num_species) if self.embedding is None else self.embedding[...]
        x = rows_of_species(table.astype(dtype), species)
        harmonics = spherical_harmonics(self.irreps_sh, edges.vectors)
        envelope = polynomial_envelope(edges.distances, self.cutoff, self.envelope_power)
        basis = self.basis(edges.distances) * envelope[:, None]
        for interaction in self.interactions:
            x = interaction(graph, x, species, harmonics, basis)
        return self.readout(x)[:, 0]


class _Interaction(nnx.Module):
    """A step of the network: ``gate(norm(conv(linear(x)) + self_connection(x, species)))``."""

    def __init__(
        self,
        irreps: tuple[Irreps, Irreps, Irreps],
        conv: dict[str, Any],
        num_species: int | None,
        *,
        norm: str | None,
        **linear: Any,
    ):
        before, harmonics, after = irreps
        self.gate = Gate(after, gate_activation="silu")
        gated = self.gate.irreps_in
        self.linear = EquivariantLinear(before, before, **linear)
        self.conv = EquivariantConv(before, harmonics, gated, **conv, **linear)
        self.self_connection = EquivariantLinear(
            before, gated, num_species=num_species, missing="zeros", **linear
        )
        self.norm = None if norm is None else _norm(norm, gated, linear["param_dtype"])

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "nodes before"],
        species: Int[Array, " nodes"],
        harmonics: Float[Array, "edges sh"],
        basis: Float[Array, "edges num_basis"],
    ) -> Float[Array, "nodes after"]:
        y = self.conv(graph, self.linear(x), harmonics, basis)
        linear_species = None if self.self_connection.num_species is None else species
        y = y + self.self_connection(x, linear_species)
        return self.gate(y if self.norm is None else self.norm(y))


def _reachable(before: Irreps, harmonics: Irreps, wanted: Irreps) -> Irreps:
    """Selects the wanted entries whose irreps are in the product of the other two."""
    reachable = {
        irrep
        for entry in before
        for harmonic in harmonics
        for irrep in entry.irrep.products(harmonic.irrep)
    }
    return Irreps(tuple(entry for entry in wanted if entry.irrep in reachable))


def _norm(kind: str, irreps: Irreps, param_dtype: DTypeLike) -> EquivariantRMSNorm:
    """Makes the norm of features of these irreps; kinds are ``"rms"`` and ``"nequix"``."""
    if kind == "rms":
        return EquivariantRMSNorm(irreps, param_dtype=param_dtype)
    distinct = distinct_irreps(irreps)
    shares = [num_channels(irreps, one) / (one.dim * len(distinct)) for one in distinct]
    return EquivariantRMSNorm(irreps, shares=shares, param_dtype=param_dtype)
