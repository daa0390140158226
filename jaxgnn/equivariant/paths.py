"""Paths of tensor products: which entries are coupled, and with which numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxgnn._errors import bad_input
from jaxgnn.equivariant.coupling import MAX_DEGREE, clebsch_gordan
from jaxgnn.equivariant.irreps import Irrep, Irreps, MulIrrep, as_irreps


class Path(NamedTuple):
    """An instruction of a tensor product: the entries that it couples, by their index.

    Attributes:
      i_in: the entry of the features.
      i_sh: the entry of the spherical harmonics.
      i_out: the entry of the result.
    """

    i_in: int
    i_sh: int
    i_out: int


@dataclass(frozen=True)
class TensorProduct:
    """A product of features with spherical harmonics, channel by channel: e3nn's ``uvu``.

    ``z[k, u] = c Σ_paths w[path, u] C (x[i, u] ⊗ y[j])``, where a path couples channel u of entry i
    of the features and entry j of the harmonics to channel u of entry k of the result, by the
    Clebsch-Gordan table C of their degrees. A path has a weight for each channel. Component
    normalisation: ``c² = (2 degree_k + 1) / (number of paths to k)``, so a component of the
    result has variance one if those of all factors have. It equals the product of these irreps
    and instructions in e3nn.

    ``TensorProduct.of`` makes one from text and checks it.

    Attributes:
      irreps_in: irreps of the features.
      irreps_sh: irreps of the harmonics, of one channel each.
      irreps_out: irreps of the result.
      paths: the paths, in the order of their weights.

    Example:
      >>> from jaxgnn.equivariant import TensorProduct
      >>> product = TensorProduct.of("8x0e+8x1o", "0e+1o", "8x0e+8x1o")
      >>> [tuple(path) for path in product.paths]
      [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]
      >>> product.num_weights
      32
    """

    irreps_in: Irreps
    irreps_sh: Irreps
    irreps_out: Irreps
    paths: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        irreps_in: Irreps | str,
        irreps_sh: Irreps | str,
        irreps_out: Irreps | str,
        instructions: Iterable[Sequence[int]] | None = None,
        *,
        where: str = "TensorProduct.of",
    ) -> TensorProduct:
        """Makes a product and checks it.

        Args:
          irreps_in: irreps of the features.
          irreps_sh: irreps of the harmonics, of one channel each.
          irreps_out: irreps of the result.
          instructions: triples of indices of entries of the three, in the order of their weights;
            None for all that the irreps allow, between entries of equal multiplicity.
          where: the function that errors name.

        Raises:
          ValueError: on irreps that are not written so, of several channels in ``irreps_sh`` or of
            a degree above ``MAX_DEGREE``; on an instruction whose irreps can not be coupled or
            whose multiplicities differ; on an entry of the result that no path reaches.
        """
        arguments = {"irreps_in": irreps_in, "irreps_sh": irreps_sh, "irreps_out": irreps_out}
        irreps = {name: as_irreps(where, name, value) for name, value in arguments.items()}
        for name, value in irreps.items():
            if value.max_degree > MAX_DEGREE:
                raise bad_input(where, name, f"of degree at most {MAX_DEGREE}", str(value))
        if any(entry.multiplicity != 1 for entry in irreps["irreps_sh"]):
            raise bad_input(where, "irreps_sh", "of one channel each", str(irreps["irreps_sh"]))
        unchecked = cls(**irreps, paths=())
        paths = unchecked._all_paths() if instructions is None else tuple(instructions)
        product = cls(**irreps, paths=tuple(unchecked._checked(where, path) for path in paths))
        product._check_all_are_reached(where)
        return product

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by which ``jaxgnn.ops.tensor_product_sum`` computes this product."""
        irreps = {name: getattr(self, name) for name in ("irreps_in", "irreps_sh", "irreps_out")}
        return irreps | {"instructions": self.paths}

    @property
    def num_weights(self) -> int:
        """Number of weights of an edge: the channels of all paths."""
        return sum(self.channels(path) for path in self.paths)

    @property
    def weight_slices(self) -> tuple[slice, ...]:
        """The part of the last axis of the weights that each path has."""
        ends = np.cumsum([0, *map(self.channels, self.paths)]).tolist()
        return tuple(map(slice, ends[:-1], ends[1:]))

    def channels(self, path: Path) -> int:
        """Number of channels of a path."""
        return self.irreps_in[path.i_in].multiplicity

    def table(self, path: Path) -> Float[np.ndarray, "in sh out"]:
        """The Clebsch-Gordan table of a path, with the factor of the component normalisation."""
        ends = self._irreps_of(path)
        shared = sum(other.i_out == path.i_out for other in self.paths)
        return sqrt(ends[2].dim / shared) * clebsch_gordan(*(irrep.degree for irrep in ends))

    def _irreps_of(self, path: Path) -> tuple[Irrep, Irrep, Irrep]:
        return (
            self.irreps_in[path.i_in].irrep,
            self.irreps_sh[path.i_sh].irrep,
            self.irreps_out[path.i_out].irrep,
        )

    def _all_paths(self) -> tuple[Path, ...]:
        """The paths between entries of equal multiplicity whose irreps can be coupled."""
        return tuple(
            Path(i, j, k)
            for i, entry in enumerate(self.irreps_in)
            for j, harmonic in enumerate(self.irreps_sh)
            for k, out in enumerate(self.irreps_out)
            if entry.multiplicity == out.multiplicity
            and out.irrep in entry.irrep.products(harmonic.irrep)
        )

    def _checked(self, where: str, instruction: Any) -> Path:
        """The instruction as a path.

        Raises:
          ValueError: if it is not three indices of entries that can be coupled.
        """
        sizes = len(self.irreps_in), len(self.irreps_sh), len(self.irreps_out)
        is_triple = isinstance(instruction, Sequence) and len(instruction) == 3
        if not is_triple or not all(
            isinstance(i, int) and 0 <= i < size for i, size in zip(instruction, sizes, strict=True)
        ):
            expected = f"triples of indices below {sizes} of entries of the irreps"
            raise bad_input(where, "instructions", expected, repr(instruction))
        path = Path(*instruction)
        first, second, third = self._irreps_of(path)
        if third not in first.products(second):
            expected = "paths whose irreps can be coupled"
            got = f"{tuple(path)}: {first} x {second} has no {third}"
            raise bad_input(where, "instructions", expected, got)
        entry, out = self.irreps_in[path.i_in], self.irreps_out[path.i_out]
        if entry.multiplicity != out.multiplicity:
            expected = "paths between entries of equal multiplicity"
            raise bad_input(where, "instructions", expected, f"{tuple(path)}: {entry} to {out}")
        return path

    def _check_all_are_reached(self, where: str) -> None:
        """Raises ValueError if an entry of the result would always be zero."""
        reached = {path.i_out for path in self.paths}
        for index, entry in enumerate(self.irreps_out):
            if index not in reached:
                expected = "of entries that a path reaches"
                got = f"{self.irreps_out}; remove entry {index}, {entry}, or give its instruction"
                raise bad_input(where, "irreps_out", expected, got)


def separate_paths(
    irreps_in: Irreps | str, irreps_sh: Irreps | str, keep: Irreps | str | None = None
) -> TensorProduct:
    """Makes the product in which each path has its own entry of the result.

    This is the product of NequIP and of networks like it, which mix the paths by a linear map after
    the sum. The entries are sorted as e3nn does: by degree, and then 0e, 0o, 1o, 1e, 2e, 2o.

    Args:
      irreps_in: irreps of the features.
      irreps_sh: irreps of the harmonics, of one channel each.
      keep: the irreps that the result may have, whatever their multiplicity; None for all up to
        degree ``MAX_DEGREE``.

    Raises:
      ValueError: as ``TensorProduct.of``, or if no path is left.

    Example:
      >>> from jaxgnn.equivariant import separate_paths
      >>> product = separate_paths("8x0e+4x1o", "0e+1o", keep="0e+1o")
      >>> str(product.irreps_out), product.num_weights
      ('8x0e+4x0e+8x1o+4x1o', 24)
    """
    where = "separate_paths"
    irreps_in = as_irreps(where, "irreps_in", irreps_in)
    irreps_sh = as_irreps(where, "irreps_sh", irreps_sh)
    kept = None if keep is None else {e.irrep for e in as_irreps(where, "keep", keep)}
    products = [
        (irrep, i, j)
        for i, entry in enumerate(irreps_in)
        for j, harmonic in enumerate(irreps_sh)
        for irrep in entry.irrep.products(harmonic.irrep)
        if irrep.degree <= MAX_DEGREE and (kept is None or irrep in kept)
    ]
    if not products:
        expected = f"irreps of the product of {irreps_in} and {irreps_sh}"
        raise bad_input(where, "keep", expected, str(keep))
    products.sort(key=lambda path: (path[0].degree, -path[0].parity * (-1) ** path[0].degree))
    out = Irreps(tuple(MulIrrep(irreps_in[i].multiplicity, irrep) for irrep, i, _ in products))
    instructions = [(i, j, k) for k, (_, i, j) in enumerate(products)]
    return TensorProduct.of(irreps_in, irreps_sh, out, instructions, where=where)
