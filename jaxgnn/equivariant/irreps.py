"""Descriptions of equivariant features, as e3nn writes them: ``"128x0e+64x1o"``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxgnn._errors import bad_input

_ENTRY = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)([eo])", re.ASCII)
_EXPECTED = "irreps such as '8x0e+4x1o'"


@dataclass(frozen=True)
class Irrep:
    """An irreducible representation of rotations and reflections.

    Its components are those of the real spherical harmonics of its degree, from -degree to degree,
    in e3nn's order: x, y, z for degree 1.

    Attributes:
      degree: 0 for scalars, 1 for vectors, and so on.
      parity: the factor under inversion: 1 for even, written ``e``, and -1 for odd, written ``o``.

    Example:
      >>> from jaxgnn.equivariant import Irrep
      >>> vector = Irrep(1, -1)
      >>> str(vector), vector.dim
      ('1o', 3)
      >>> [str(irrep) for irrep in vector.products(vector)]
      ['0e', '1e', '2e']
    """

    degree: int
    parity: int

    def __post_init__(self) -> None:
        is_int = isinstance(self.degree, int) and not isinstance(self.degree, bool)
        if not is_int or self.degree < 0:
            raise bad_input("Irrep", "degree", "an int of at least 0", repr(self.degree))
        if self.parity not in (1, -1):
            raise bad_input("Irrep", "parity", "1 (even) or -1 (odd)", repr(self.parity))

    @property
    def dim(self) -> int:
        """Number of components, ``2 degree + 1``."""
        return 2 * self.degree + 1

    def products(self, other: Irrep) -> tuple[Irrep, ...]:
        """Returns the irreps in the product with ``other``, by degree."""
        low, high = abs(self.degree - other.degree), self.degree + other.degree
        return tuple(Irrep(d, self.parity * other.parity) for d in range(low, high + 1))

    def __str__(self) -> str:
        """Writes the irrep as e3nn does, for example ``1o``."""
        return f"{self.degree}{'e' if self.parity == 1 else 'o'}"


class MulIrrep(NamedTuple):
    """Several channels of one irrep: an entry of ``Irreps``.

    Attributes:
      multiplicity: number of channels.
      irrep: the irrep of each.
    """

    multiplicity: int
    irrep: Irrep

    @property
    def dim(self) -> int:
        """Number of components of all channels."""
        return self.multiplicity * self.irrep.dim

    def __str__(self) -> str:
        """Writes the entry as e3nn does, for example ``4x1o``."""
        return f"{self.multiplicity}x{self.irrep}"


@dataclass(frozen=True)
class Irreps:
    """The irreps in the last axis of an array, entry after entry.

    An entry of m channels has m times its components, channel after channel, as in e3nn. Functions
    that take irreps also take their text.

    Attributes:
      entries: the entries, in order.

    Example:
      >>> from jaxgnn.equivariant import Irreps
      >>> irreps = Irreps.parse("8x0e + 4x1o + 2e")
      >>> str(irreps), irreps.dim
      ('8x0e+4x1o+1x2e', 25)
      >>> irreps.slices[1]
      slice(8, 20, None)
      >>> str(Irreps.harmonics(2))
      '1x0e+1x1o+1x2e'
    """

    entries: tuple[MulIrrep, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.entries, tuple) or not self.entries:
            raise bad_input("Irreps", "entries", "a tuple of at least one entry", self.entries)
        for entry in self.entries:
            if not isinstance(entry, MulIrrep) or not isinstance(entry.irrep, Irrep):
                raise bad_input("Irreps", "entries", "of type MulIrrep", repr(entry))
            if not isinstance(entry.multiplicity, int) or entry.multiplicity < 1:
                raise bad_input("Irreps", "entries", "of multiplicity at least 1", str(entry))

    @classmethod
    def parse(cls, text: str) -> Irreps:
        """Reads irreps as e3nn writes them; a multiplicity of one may be omitted.

        Raises:
          ValueError: if an entry is not written so, or has no channel.
        """
        return as_irreps("Irreps.parse", "text", text)

    @classmethod
    def harmonics(cls, max_degree: int) -> Irreps:
        """Returns the irreps of spherical harmonics: one of each degree, with its own parity.

        Raises:
          ValueError: if ``max_degree`` is no int of at least 0.
        """
        if not isinstance(max_degree, int) or isinstance(max_degree, bool) or max_degree < 0:
            expected = "an int of at least 0"
            raise bad_input("Irreps.harmonics", "max_degree", expected, repr(max_degree))
        return cls(tuple(MulIrrep(1, Irrep(d, (-1) ** d)) for d in range(max_degree + 1)))

    @property
    def dim(self) -> int:
        """Size of the last axis of an array of these irreps."""
        return sum(entry.dim for entry in self.entries)

    @property
    def max_degree(self) -> int:
        """The largest degree of the irreps."""
        return max(entry.irrep.degree for entry in self.entries)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part of the last axis that each entry has."""
        slices, start = [], 0
        for entry in self.entries:
            slices.append(slice(start, start + entry.dim))
            start += entry.dim
        return tuple(slices)

    def __len__(self) -> int:
        """Number of entries, each of which has a multiplicity and an irrep."""
        return len(self.entries)

    def __iter__(self) -> Iterator[MulIrrep]:
        """Iterates over the entries."""
        return iter(self.entries)

    def __getitem__(self, index: int) -> MulIrrep:
        """The entry at an index."""
        return self.entries[index]

    def __str__(self) -> str:
        """Writes the irreps as e3nn does."""
        return "+".join(map(str, self.entries))


def as_irreps(where: str, argument: str, value: Any) -> Irreps:
    """Converts an argument to irreps, from their text if need be.

    Args:
      where: the function that errors name.
      argument: its argument.
      value: the value: ``Irreps`` or text.

    Raises:
      ValueError: if it is neither, or the text has an invalid entry, which is named.
    """
    if isinstance(value, Irreps):
        return value
    if not isinstance(value, str):
        raise bad_input(where, argument, f"{_EXPECTED} or Irreps", type(value).__name__)
    entries = []
    for part in value.split("+"):
        match = _ENTRY.fullmatch(part.strip())
        if match is None:
            got = f"{value!r}; write {part.strip()!r} as multiplicity, x, degree, and e or o"
            raise bad_input(where, argument, _EXPECTED, got)
        multiplicity, degree, parity = match.groups()
        if multiplicity is not None and int(multiplicity) == 0:
            got = f"{value!r}; remove {part.strip()!r}, which has no channel"
            raise bad_input(where, argument, f"{_EXPECTED} of multiplicity at least 1", got)
        irrep = Irrep(int(degree), 1 if parity == "e" else -1)
        entries.append(MulIrrep(int(multiplicity or 1), irrep))
    return Irreps(tuple(entries))
