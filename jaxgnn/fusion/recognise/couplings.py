"""Recognises tensor products by their numbers.

``coupling_of`` takes the terms of an array of edges, which say for each entry which columns of the
rows, of harmonics and of weights are multiplied, and by what number. It is a tensor product in the
sense of ``jaxgnn.equivariant.TensorProduct`` if each weight belongs to one channel of one path,
and the numbers of that channel are a Clebsch-Gordan table times one factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgnn.equivariant import (
    MAX_DEGREE,
    Irrep,
    Irreps,
    MulIrrep,
    TensorProduct,
    clebsch_gordan,
)
from jaxgnn.fusion.program.matching import NoMatch, Refusal, need
from jaxgnn.fusion.recognise.multilinear import Leaf
from jaxgnn.fusion.recognise.polynomials import Polynomials

NO_COLUMN = -1
"""Stands for a harmonic of degree zero that the code does not multiply with: it is one."""
_MOST_SETS = 4  # Most sets of harmonics of one degree; more belong to channels.
_Columns = tuple[int, ...]  # Columns of one channel.
_Entry = tuple[_Columns, ...]  # Channels of one entry of irreps.


@dataclass(frozen=True)
class Coupling:
    """Tensor product, with the columns of the code's arrays that it reads and computes."""

    product: TensorProduct
    x: np.ndarray  # Columns of the table, in the order of ``product.irreps_in``.
    harmonics: np.ndarray  # Columns of arrays of edges, or ``NO_COLUMN``.
    weights: np.ndarray  # Columns of arrays of edges.
    shared: np.ndarray  # Columns that multiply all products, one number for each edge.
    scales: np.ndarray  # Number that multiplies each weight.
    out: np.ndarray  # Entries of the result, in the order of ``product.irreps_out``.


@dataclass(frozen=True)
class _Channel:
    """Channel of a path: the columns that one weight multiplies."""

    weight: int
    x: _Columns
    harmonics: _Columns
    out: _Columns
    factor: float  # Factor of the Clebsch-Gordan table.


@dataclass(frozen=True)
class _Factors:
    """Columns of each term by their roles."""

    x: np.ndarray
    harmonics: np.ndarray
    weights: np.ndarray


def coupling_of(
    terms: Polynomials, width: int, leaves: Sequence[Leaf], tolerance: float
) -> Coupling:
    """Recognises the tensor product in the polynomials of summed messages.

    Raises ``NoMatch`` if they are not products of a row and of one or two arrays of edges, and of
    numbers of edges that all have, or if all harmonics have degree zero. Raises ``Refusal`` if they
    are no tensor product.

    Args:
      terms: the terms, in which equal products are one term.
      width: the number of columns of the table, which are the first ones.
      leaves: the arrays of edges.
      tolerance: the difference from a table that is a rounding, relative to its largest number.
    """
    shared = [leaf.start for leaf in leaves if leaf.size == 1 and _have_all(terms, leaf.start)]
    for column in shared:
        terms = terms.divided_by(column)
    reason = None
    for factors in _roles(terms, width, leaves):
        try:
            channels = _channels(terms, factors, tolerance)
        except NoMatch:
            continue
        except Refusal as refusal:  # The exchanged roles may match.
            reason = reason or refusal
            continue
        if np.unique(terms.entries).size < terms.size:
            raise Refusal("some entries of its messages are always zero")
        return _assembled(channels, shared, tolerance)
    raise reason or NoMatch


def _have_all(terms: Polynomials, column: int) -> bool:
    """Returns whether each term has a column as a factor, once."""
    return bool(((terms.factors == column).sum(axis=1) == 1).all())


def _roles(terms: Polynomials, width: int, leaves: Sequence[Leaf]) -> Iterator[_Factors]:
    """Yields assignments of columns to rows, harmonics and weights, likely ones first.

    An array of edges that is the only one in some term is one of weights. Of the others, arrays
    that are multiplied with each other have different roles.
    """
    count = (terms.factors >= 0).sum(axis=1)
    each = np.arange(count.size)
    x = terms.factors[each, count - 1]
    need(((count == 2) | (count == 3)).all() and (x < width).all())
    need((terms.factors[each, count - 2] >= width).all())
    columns = terms.factors[:, :2].copy()
    columns[count == 2, 1] = NO_COLUMN
    starts = np.array([leaf.start for leaf in leaves])
    arrays = np.where(columns >= 0, np.searchsorted(starts, columns, "right") - 1, NO_COLUMN)
    pairs = {(int(a), int(b)) for a, b in np.unique(arrays, axis=0)}
    sides = _sides({a for a, b in pairs if b < 0}, {pair for pair in pairs if pair[1] >= 0})
    is_second = np.array([sides.get(i, False) for i in range(len(leaves))])[arrays]
    numbers = [np.unique(columns[(is_second == side) & (columns >= 0)]).size for side in (0, 1)]
    alone = bool((count == 2).any())
    # Sides are those of weights and of harmonics; there are more weights, one for each channel.
    choices = (False,) if alone else (numbers[0] < numbers[1], numbers[0] >= numbers[1])
    for exchanged in choices:
        is_harmonic = is_second[:, 0] != exchanged
        weights = np.where(is_harmonic, columns[:, 1], columns[:, 0])
        yield _Factors(x, np.where(is_harmonic, columns[:, 0], columns[:, 1]), weights)


def _sides(weights: set[int], pairs: set[tuple[int, int]]) -> dict[int, bool]:
    """Assigns roles to arrays: True for harmonics. Paired arrays have different roles."""
    sides = dict.fromkeys(weights, False)
    waiting = set(pairs)
    while waiting:
        ready = [pair for pair in waiting if not sides.keys().isdisjoint(pair)]
        for a, b in ready or [min(waiting)]:
            waiting.discard((a, b))
            if a in sides:
                sides.setdefault(b, not sides[a])
            sides.setdefault(a, not sides.setdefault(b, True))
            need(sides[a] != sides[b])
    return sides


def _channels(terms: Polynomials, factors: _Factors, tolerance: float) -> list[_Channel]:
    """Returns the channel of each weight, in the order of the weights.

    Raises ``NoMatch`` if no weight multiplies several harmonics, and ``Refusal`` if the numbers of
    one are not a table.
    """
    weights, groups = np.unique(factors.weights, return_inverse=True)
    members = [_members(groups, c) for c in (factors.x, factors.harmonics, terms.entries)]
    sizes = np.stack([m.counts for m in members], axis=1)
    need((sizes[:, 1] > 1).any())
    table_factors = np.zeros(weights.size)
    for shape in np.unique(sizes, axis=0):
        has_shape = (sizes == shape).all(axis=1)
        chosen = has_shape[groups]
        positions = np.cumsum(has_shape) - 1
        numbers = np.zeros((int(has_shape.sum()), *shape))
        at = (positions[groups[chosen]], *(m.ranks[chosen] for m in members))
        numbers[at] = terms.coefficients[chosen]
        table_factors[has_shape] = _factors_of_table(numbers, tolerance)
    columns = [m.split() for m in members]
    return [
        _Channel(int(w), x, harmonics, out, float(factor))
        for w, x, harmonics, out, factor in zip(weights, *columns, table_factors, strict=True)
    ]


def _factors_of_table(numbers: np.ndarray, tolerance: float) -> np.ndarray:
    """Returns the factor between the numbers of each channel and a Clebsch-Gordan table."""
    degrees = [(n - 1) // 2 for n in numbers.shape[1:]]
    first, second, third = degrees
    is_odd = all(n % 2 for n in numbers.shape[1:])
    can_be = abs(first - second) <= third <= first + second and max(degrees) <= MAX_DEGREE
    if not (is_odd and can_be):
        raise Refusal("a weight of its messages is not that of one channel of a path")
    table = clebsch_gordan(first, second, third)
    factors = np.tensordot(numbers, table, 3)  # Squares of a table add up to one.
    error = np.abs(numbers - factors[:, None, None, None] * table).max(axis=(1, 2, 3))
    if (error > tolerance * np.abs(factors)).any():
        raise Refusal("the numbers of its messages are not those of Clebsch-Gordan tables")
    return factors


@dataclass(frozen=True)
class _Members:
    """Columns of the terms of each group."""

    ranks: np.ndarray  # Rank of each term's column among those of its group.
    counts: np.ndarray  # Number of columns in each group.
    columns: np.ndarray  # Columns of all groups, ascending in each group.

    def split(self) -> list[_Columns]:
        """Returns the columns of each group."""
        parts = np.split(self.columns, np.cumsum(self.counts)[:-1])
        return [tuple(part.tolist()) for part in parts]


def _members(groups: np.ndarray, columns: np.ndarray) -> _Members:
    count = int(columns.max()) + 2
    keys, positions = np.unique(groups * count + columns + 1, return_inverse=True)
    of_group, first, counts = np.unique(keys // count, return_index=True, return_counts=True)
    assert of_group.size == groups.max() + 1
    return _Members(positions - first[groups], counts, keys % count - 1)


def _assembled(channels: Sequence[_Channel], shared: Sequence[int], tolerance: float) -> Coupling:
    """Builds the tensor product of channels; channels of the same paths are one entry."""
    paths = _paths(channels)
    entries_in = _numbered(tuple(c.x for c in path) for path in paths)
    harmonics = _numbered((path[0].harmonics,) for path in paths)
    if max(Counter(len(h) for (h,) in harmonics).values()) > _MOST_SETS:
        raise Refusal("its messages have harmonics for each channel")
    entries_out = _numbered(tuple(c.out for c in path) for path in paths)
    _check_are_apart([x for entry in entries_in for x in entry])
    _check_are_apart([out for entry in entries_out for out in entry])
    instructions = [
        (
            entries_in[tuple(c.x for c in path)],
            harmonics[path[0].harmonics,],
            entries_out[tuple(c.out for c in path)],
        )
        for path in paths
    ]
    irreps_in, irreps_sh, irreps_out = map(_irreps, (entries_in, harmonics, entries_out))
    product = TensorProduct.of(irreps_in, irreps_sh, irreps_out, instructions)
    norms = [np.linalg.norm(product.table(path)) for path in product.paths]
    pairs = list(zip(paths, norms, strict=True))
    scales = np.array([c.factor / norm for path, norm in pairs for c in path])
    return Coupling(
        product,
        x=_columns(entries_in),
        harmonics=_columns(harmonics),
        weights=np.array([c.weight for path in paths for c in path]),
        shared=np.array(shared, int),
        scales=np.where(np.abs(scales - 1) <= tolerance, 1.0, scales),
        out=_columns(entries_out),
    )


def _paths(channels: Sequence[_Channel]) -> list[list[_Channel]]:
    """Groups channels that differ only in their rows into paths.

    Rows that occur in different paths are different entries, so a path has those of one entry.
    """
    times: Counter[Any] = Counter()
    kinds = []
    for channel in channels:
        kind = channel.harmonics, len(channel.x), len(channel.out)
        kinds.append((*kind, times[kind, channel.x]))  # One row may enter several results.
        times[kind, channel.x] += 1
    occurs: dict[_Columns, set[Any]] = {}
    for channel, kind in zip(channels, kinds, strict=True):
        occurs.setdefault(channel.x, set()).add(kind)
    paths: dict[Any, list[_Channel]] = {}
    for channel, kind in zip(channels, kinds, strict=True):
        paths.setdefault((kind, frozenset(occurs[channel.x])), []).append(channel)
    return [sorted(path, key=lambda channel: channel.x) for path in paths.values()]


def _numbered(entries: Iterable[_Entry]) -> dict[_Entry, int]:
    """Numbers the entries in the order of their first columns."""
    return {entry: i for i, entry in enumerate(sorted(set(entries)))}


def _irreps(entries: Iterable[_Entry]) -> Irreps:
    """Returns the irreps of entries; parities do not matter for numbers, so all are even."""
    irreps = [MulIrrep(len(entry), Irrep((len(entry[0]) - 1) // 2, 1)) for entry in entries]
    return Irreps(tuple(irreps))


def _columns(entries: Iterable[_Entry]) -> np.ndarray:
    return np.array([column for entry in entries for channel in entry for column in channel])


def _check_are_apart(channels: list[_Columns]) -> None:
    """Raises ``Refusal`` if a column occurs twice among the operands or results."""
    columns = [column for channel in set(channels) for column in channel]
    if len(set(columns)) < len(columns) or len(set(channels)) < len(channels):
        raise Refusal("paths of its messages share parts of an entry")
