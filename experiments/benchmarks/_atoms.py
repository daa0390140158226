"""Workloads of equivariant convolutions: atoms, their neighbours, and irreps of the features."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.benchmarks._workloads import Platform, Scale, uniform_graph
from jaxgnn.equivariant import Irreps, TensorProduct, separate_paths
from jaxgnn.graph import CSRGraph


@dataclass(frozen=True)
class Atoms:
    """Atoms with neighbours drawn uniformly, and a tensor product of their features.

    Attributes:
      name: name of the workload in the tables.
      nodes: number of atoms.
      neighbours: edges of an atom on average.
      irreps: irreps of the features.
      degree: degree up to which there are harmonics, and results where paths are separate.
      separate: whether each path has an entry of the result of its own, as in NequIP. Else the
        results have the irreps of the features.
      features: number of radial functions that weights are made of.
      dtypes: dtypes of features, harmonics and weights.
    """

    name: str
    nodes: int
    neighbours: int
    irreps: str
    degree: int
    separate: bool = True
    features: int = 8
    dtypes: tuple[str, ...] = ("float32",)

    @property
    def dim(self) -> int:
        """Width of the features."""
        return self.product().irreps_in.dim

    def graph(self) -> CSRGraph:
        """The graph with its transpose and schedules."""
        return uniform_graph(self.nodes, self.nodes * self.neighbours)

    def product(self) -> TensorProduct:
        """The tensor product of features and harmonics."""
        harmonics = Irreps.harmonics(self.degree)
        if self.separate:
            return separate_paths(self.irreps, harmonics, keep=harmonics)
        return TensorProduct.of(self.irreps, harmonics, self.irreps)


_NEQUIX = "128x0e+64x1o+32x2e+32x3o"
_TINY = Atoms("atoms-tiny", 12, 4, "3x0e+3x1o", 1)
ATOMS: dict[tuple[Platform, Scale], tuple[Atoms, ...]] = {
    ("cpu", "tiny"): (_TINY,),
    ("cpu", "small"): (Atoms("atoms-200", 200, 60, _NEQUIX, 3),),
    ("cpu", "full"): (
        Atoms("atoms-200", 200, 60, _NEQUIX, 3),
        Atoms("atoms-2k", 2000, 60, "32x0e+32x1o+32x2e", 2, separate=False),
    ),
    ("gpu", "tiny"): (_TINY,),
    ("gpu", "small"): (Atoms("atoms-200", 200, 60, _NEQUIX, 3),),
    # The two shapes of published kernels: a layer of Nequix, and one of 128 channels.
    ("gpu", "full"): (
        Atoms("atoms-nequix", 2000, 62, _NEQUIX, 3),
        Atoms("atoms-3k", 3000, 53, "128x0e+128x1o+128x2e+128x3o", 3),
    ),
}
