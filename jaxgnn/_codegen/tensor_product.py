"""Writes the CUDA source of sums of tensor products, with the couplings of a product as constants.

A warp processes a row of the graph and 32 channels, one for each lane. The edges of the row come in
tiles. For each edge of a tile one lane computes the matrices ``M[a, c] = Σ_b C[a, b, c] Y[b]`` of
all couplings from the harmonics ``Y``, without their zeros, and stores them in shared memory. Then
all lanes multiply, edge after edge. Meanwhile a lane reads its numbers of the next edge. There are
no atomic additions.

There are four kinds of kernels. All have the parameters of the frame, see
``frame.py``: sums read features of the other end, harmonics and weights; products
read features of the sender, slopes of the receiver, and the harmonics or the weights. Kernels that
make the weights (``radial_weights.py``) read the basis in the place of weights.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxgnn._codegen.frame import (
    WARP,
    WARPS,
    Call,
    Frame,
    Kernel,
    Kind,
    Source,
    Tile,
    joined,
)
from jaxgnn._codegen.radial_weights import EDGES, RadialWeights
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import ZERO, Coupling, couplings

_MOST_NUMBERS = 40  # Limit of what a lane keeps for a row, or reads for an edge.
_MOST_ENTRIES = 192  # Limit for the matrices of an edge.


@functools.lru_cache(maxsize=256)
def source(
    product: TensorProduct,
    kind: Kind,
    radial: RadialWeights | None = None,
    paths: tuple[int, ...] | None = None,
) -> Source:
    """The kernels of one kind for a product.

    Args:
      product: the product, with at least one path.
      kind: sums at the rows, or at the columns as rows of the transposed graph; products at edges,
        for the weights, or for the harmonics in a part for each 32 channels. Those of tangents are
        the derivatives of these in the direction of tangents, of features (unless at the columns),
        harmonics and weights.
      radial: the layer that makes weights in the kernels; None for kernels that read them.
      paths: the paths for which products are computed, by their numbers, one after the other in the
        result; None for all.
    """
    of_columns = kind.startswith("columns")
    used = couplings(product, exchanged=of_columns)
    if paths is not None:
        used = [c._replace(of_weights=w) for c, w in zip(*_chosen(used, paths), strict=True)]
    call = Call(kind, product, radial, sum(c.channels for c in used))
    if of_columns or kind.startswith("rows"):
        widths = product.irreps_in.dim, product.irreps_out.dim
        return _sums(call, used, *(widths[::-1] if of_columns else widths))
    return _products(call, used)


def _chosen(used: Sequence[Coupling], paths: tuple[int, ...]) -> tuple[list[Coupling], list[slice]]:
    """The couplings of these paths, and their weights without gaps between."""
    chosen = [used[i] for i in paths]
    ends = list(itertools.accumulate((c.channels for c in chosen), initial=0))
    return chosen, list(map(slice, ends[:-1], ends[1:]))


class _Table(NamedTuple):
    """The matrices of an edge in shared memory; behind them their tangents, if there are any.

    A matrix begins at a multiple of four floats. The distance of the tables of two edges is an odd
    multiple of four, so that lanes store to different banks.

    Attributes:
      matrices: the matrices.
      size: floats of the matrices.
      stride: floats from one edge to the next.
    """

    matrices: list[_Matrix]
    size: int
    stride: int

    @classmethod
    def of(cls, group: Sequence[Coupling], call: Call) -> _Table:
        """The matrices of the couplings."""
        matrices, place = [], 0
        for coupling in group:
            places, entries = {}, {}
            for c, a in itertools.product(*map(range, coupling.table.shape[::-2])):
                row, start = coupling.table[a, :, c], coupling.of_sh.start
                terms = [(start + b, row[b]) for b in np.flatnonzero(np.abs(row) > ZERO)]
                if terms:
                    places[a, c], entries[place] = place, terms
                    place += 1
            matrices.append(_Matrix(coupling, places, entries))
            place = -(-place // 4) * 4
        stride = 2 * place if call.is_tangent else place
        return cls(matrices, place, stride + (4 if stride // 4 % 2 == 0 else 0))

    def store(self, call: Call, harmonics: str) -> list[str]:
        """A lane computes the matrices of one edge, and their tangents by those of harmonics."""
        lines = ["if (lane >= from && lane < to) {", *self._store(call, harmonics, 0), "}"]
        if call.is_tangent:
            stores = self._store(call, f"{harmonics}_tangent", self.size)
            lines += ["if (lane >= from && lane < to) {", *stores, "}"]
        return [*lines, "__syncwarp();"]

    def _store(self, call: Call, harmonics: str, offset: int) -> list[str]:
        entries = {place: terms for m in self.matrices for place, terms in m.entries.items()}
        read = sorted({b for terms in entries.values() for b, _ in terms})
        width = call.product.irreps_sh.dim
        lines = [f"const float* const h = {harmonics} + (size_t)slot * {width};"]
        lines += [f"const float h{b} = __ldg(h + {b});" for b in read]
        for place in range(0, max(entries) + 1, 4):
            values = [
                " + ".join(f"{_number(c)} * h{b}" for b, c in entries.get(place + i, ())) or "0.0f"
                for i in range(4)
            ]
            to = f"*(float4*)(table + (lane - from) * {self.stride} + {offset + place})"
            lines.append(f"{to} = make_float4({', '.join(values)});")
        return lines

    def of_edge(self) -> str:
        """The pointer to the table of edge k."""
        return f"const float4* const m = (const float4*)(table + (k - from) * {self.stride});"

    def load(self, matrix: _Matrix, call: Call) -> list[str]:
        """All lanes read a matrix, and its tangent."""
        quads = sorted({place // 4 for place in matrix.entries})
        lines = [f"const float4 m{quad} = m[{quad}];" for quad in quads]
        if call.is_tangent:
            lines += [f"const float4 n{quad} = m[{self.size // 4 + quad}];" for quad in quads]
        return lines


class _Matrix(NamedTuple):
    """The matrix of a coupling, with its place among those of an edge.

    Attributes:
      places: the place of each entry ``[a, c]`` that is not always zero.
      entries: the coefficients of the harmonics in each entry, by their places in the harmonics.
    """

    coupling: Coupling
    places: dict[tuple[int, int], int]
    entries: dict[int, list[tuple[int, float]]]


def _sums(call: Call, used: Sequence[Coupling], width: int, out_width: int) -> Source:
    kernels, covered = [], set[int]()
    groups = list(_sum_groups(used))
    for group in groups:
        covered.update(*(range(c.of_out.start, c.of_out.stop) for c in group))
    missing = list(_runs(sorted(set(range(out_width)) - covered)))
    for number, group in enumerate(groups):
        kernels.append(_sum_kernel(call, number, group, width, out_width, missing))
        missing = []  # the first kernel has set them to zero
    return joined(kernels)


def _sum_groups(used: Sequence[Coupling]) -> Iterator[list[Coupling]]:
    """Couplings whose sums one warp keeps: all that add to an entry of the result are in one group.

    Entries of the result that are made of the same single entry share the reading of it.
    """
    of_out = _by(used, lambda coupling: coupling.of_out.start)
    alone: dict[int, list[list[Coupling]]] = {}
    for group in of_out.values():
        sources = {coupling.of_in.start for coupling in group}
        if len(sources) == 1:
            alone.setdefault(sources.pop(), []).append(group)
        else:
            yield group
    for groups in alone.values():
        for part in _cut(groups, lambda group: (group[0].table.shape[2], _entries(group))):
            yield list(itertools.chain(*part))


def _by(used: Iterable[Coupling], key) -> dict[int, list[Coupling]]:
    groups: dict[int, list[Coupling]] = {}
    for coupling in used:
        groups.setdefault(key(coupling), []).append(coupling)
    return groups


def _entries(group: Iterable[Coupling]) -> int:
    """The number of entries of their matrices that are not always zero."""
    return sum(int((np.abs(c.table).max(axis=1) > ZERO).sum()) for c in group)


def _cut(items: Iterable, sizes) -> Iterator[list]:
    """Runs of items whose sizes (numbers of a lane, entries of matrices) are within the limits."""
    run, numbers, entries = [], 0, 0
    for item in items:
        more, more_entries = sizes(item)
        if run and (numbers + more > _MOST_NUMBERS or entries + more_entries > _MOST_ENTRIES):
            yield run
            run, numbers, entries = [], 0, 0
        run.append(item)
        numbers, entries = numbers + more, entries + more_entries
    if run:
        yield run


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """Ranges of the numbers, which ascend."""
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield range(members[0], members[-1] + 1)


def _number(value: float) -> str:
    return f"{value:.9e}f"


class _Reads(NamedTuple):
    """Numbers that a lane reads for an edge, one edge ahead.

    Attributes:
      call: the options of the source.
      parts: the entries of the features: their start and number of components.
      weights: the starts of the weights.
    """

    call: Call
    parts: tuple[tuple[int, int], ...]
    weights: tuple[int, ...] = ()

    @classmethod
    def of(cls, call: Call, group: Sequence[Coupling], *, weights: bool) -> _Reads:
        parts = dict.fromkeys((c.of_in.start, c.table.shape[0]) for c in group)
        starts = tuple(c.of_weights.start for c in group) if weights else ()
        return cls(call, tuple(parts), starts)

    @property
    def numbers(self) -> int:
        return len(list(self.names()))

    def names(self) -> Iterator[str]:
        """The names of the numbers; those of tangents begin with t."""
        features = [f"x{start}_{a}" for start, size in self.parts for a in range(size)]
        weights = [f"w{start}" for start in self.weights]
        yield from (*features, *weights)
        if self.call.has_tangent_of_features:
            yield from (f"t{name}" for name in features)
        if self.call.is_tangent:
            yield from (f"t{name}" for name in weights)

    def declare(self) -> str:
        return f"float {', '.join(f'next_{name} = 0.0f' for name in self.names())};"

    def load(self, edge: str, width: int) -> list[str]:
        """The reads for an edge of the tile.

        Args:
          edge: its number in the tile.
          width: width of a row of features.
        """
        lines = [f"const size_t x = (size_t)__shfl_sync(~0u, node, {edge}) * {width};"]
        for start, size in self.parts:
            lines += [
                f"next_{t}x{start}_{a} = __ldg(first{tangent} + x + {start} + at * {size} + {a});"
                for t, tangent in (("", ""), ("t", "_tangent"))[: 1 + self.has_tangents]
                for a in range(size)
            ]
        return ["{", *lines, *(self._load_weights(edge) if self.weights else ()), "}"]

    @property
    def has_tangents(self) -> bool:
        """Whether features have tangents."""
        return self.call.has_tangent_of_features

    def _load_weights(self, edge: str) -> list[str]:
        if self.call.radial:
            lines = [f"const float* const w = tile + ({edge}) * {32 * len(self.weights)} + lane;"]
            reads = enumerate(self.weights)
            return lines + [f"next_w{start} = w[{32 * j}];" for j, start in reads]
        slot = f"(size_t)__shfl_sync(~0u, slot, {edge})"
        lines = [f"const size_t w = {slot} * {self.call.num_weights} + at;"]
        for start in self.weights:
            lines.append(f"next_w{start} = __ldg(third + w + {start});")
            if self.call.is_tangent:
                lines.append(f"next_tw{start} = __ldg(third_tangent + w + {start});")
        return lines

    def take(self) -> str:
        return f"const float {', '.join(f'{name} = next_{name}' for name in self.names())};"


def _entry(place: int, matrix: str = "m") -> str:
    return f"{matrix}{place // 4}.{'xyzw'[place % 4]}"


def _each_edge(reads: _Reads, width: int) -> list[str]:
    """Begins the loop over edges of a tile, whose reads for the first edge were issued."""
    return [
        "#pragma unroll 1",
        "for (int k = from; k < to; ++k) {",
        reads.take(),
        "if (k + 1 < count)",
        *reads.load("k + 1", width),
    ]


def _sum_kernel(
    call: Call,
    number: int,
    group: Sequence[Coupling],
    width: int,
    out_width: int,
    missing: Sequence[range],
) -> Kernel:
    """The kernel of the sums of a group, in passes over the edges if it reads many numbers."""
    alone = len({coupling.of_in.start for coupling in group}) == 1

    def sizes(coupling):
        return 1 if alone else coupling.table.shape[0] + 1, _entries([coupling])

    passes = list(_cut(sorted(group, key=lambda c: c.of_in.start), sizes))
    tables = [_Table.of(part, call) for part in passes]
    fragments = call.radial.fragment_floats(len(group)) if call.radial else 0
    tiles = [Tile.of(table.stride, call.radial, fragments) for table in tables]
    floats = max(
        tile.with_matrices * table.stride for tile, table in zip(tiles, tables, strict=True)
    )
    starts = tuple(c.of_weights.start for part in passes for c in part)
    frame = Frame(call, number, group[0].channels, floats, starts, max(map(len, passes)))
    totals = {c.of_out.start: c.table.shape[2] for c in group}
    all_reads = [_Reads.of(call, part, weights=True) for part in passes]
    most = max(reads.numbers for reads in all_reads)
    lines = ["if (row < rows) {", "const int begin = indptr[row], end = indptr[row + 1];"]
    for start, size in totals.items():
        lines += [f"float {', '.join(f'y{start}_{c} = 0.0f' for c in range(size))};"]
    first_path = 0
    for tile, table, reads in zip(tiles, tables, all_reads, strict=True):
        lines += _sum_pass(call, tile, table, reads, width, first_path)
        first_path += len(table.matrices)
    lines.append(f"float* const y = out + (size_t)row * {out_width};")
    lines.append("if (inside) {")
    for start, size in totals.items():
        lines += [f"y[{start} + channel * {size} + {c}] = y{start}_{c};" for c in range(size)]
    lines.append("}")
    for places in missing:
        loop = f"for (int i = {places.start} + lane; i < {places.stop}; i += 32)"
        lines.append(f"if (part == 0) {loop} y[i] = 0.0f;")
    return frame.kernel(2 * most + sum(totals.values()) + 24, [*lines, "}"])


def _sum_pass(
    call: Call, tile: Tile, table: _Table, reads: _Reads, width: int, first_path: int
) -> list[str]:
    lines = tile.begin()
    lines += call.radial.make_tile(first_path, len(table.matrices)) if call.radial else []
    lines += [reads.declare(), *reads.load("0", width), *tile.begin_part()]
    lines += [*table.store(call, "second"), *_each_edge(reads, width), table.of_edge()]
    for matrix in table.matrices:
        lines += ["{", *table.load(matrix, call), *_add_to_sums(call, matrix), "}"]
    return [*lines, "}", "}", "}"]


def _add_to_sums(call: Call, matrix: _Matrix) -> list[str]:
    """Adds the product of a path, or its derivative, to the sums of the row."""
    coupling, lines = matrix.coupling, []
    w, x = f"w{coupling.of_weights.start}", f"x{coupling.of_in.start}"
    if call.has_tangent_of_features:  # w (M tx + N x) + tw M x
        for a in range(coupling.table.shape[0]):
            lines.append(f"const float u{a} = {w} * t{x}_{a} + t{w} * {x}_{a};")
            lines.append(f"const float v{a} = {w} * {x}_{a};")
    for c in range(coupling.table.shape[2]):
        factors = [(a, place) for (a, of), place in matrix.places.items() if of == c]
        if not factors:
            continue
        total = f"y{coupling.of_out.start}_{c}"
        product, changed = (
            " + ".join(f"{_entry(place, m)} * {x}_{a}" for a, place in factors) for m in "mn"
        )
        if call.has_tangent_of_features:
            terms = (f"{_entry(p)} * u{a} + {_entry(p, 'n')} * v{a}" for a, p in factors)
            lines.append(f"{total} += {' + '.join(terms)};")
        elif call.is_tangent:
            lines.append(f"{total} += {w} * ({changed}) + t{w} * ({product});")
        else:
            lines.append(f"{total} += {w} * ({product});")
    return lines


def _products(call: Call, used: Sequence[Coupling]) -> Source:
    is_harmonics = call.kind == "harmonics"
    write = _harmonic_kernel if is_harmonics else _weight_kernel

    def sizes(coupling):
        return coupling.table.shape[2], _entries([coupling])

    groups = [
        part
        for group in _by(used, lambda coupling: coupling.of_in.start).values()
        for part in _cut(group, sizes)
    ]
    columns = [-(-group[0].channels // WARP) for group in groups]
    kernels = [
        write(call, number, group, (sum(columns[:number]), sum(columns)))
        for number, group in enumerate(groups)
    ]
    return joined(kernels, _HALVE if is_harmonics else "")


def _slopes(group: Sequence[Coupling], width: int) -> list[str]:
    """Reads the slopes of the row for each entry of the result that the group reaches."""
    lines = [f"const float* const g = second + (size_t)row * {width};"]
    for start, size in dict.fromkeys((c.of_out.start, c.table.shape[2]) for c in group):
        reads = (f"g{start}_{c} = __ldg(g + {start} + at * {size} + {c})" for c in range(size))
        lines.append(f"const float {', '.join(reads)};")
    return lines


def _num_slopes(group: Sequence[Coupling]) -> int:
    return sum(dict((c.of_out.start, c.table.shape[2]) for c in group).values())


def _zero_padding(store: Sequence[str]) -> list[str]:
    """Sets padding slots of this part of the channels to zero; then begins the row."""
    return [
        f"for (int slot = indptr[rows] + row; slot < edges; slot += row_blocks * {WARPS}) {{",
        *store,
        "}",
        "if (row < rows) {",
        "const int begin = indptr[row], end = indptr[row + 1];",
    ]


def _weight_kernel(
    call: Call, number: int, group: Sequence[Coupling], parts: tuple[int, int]
) -> Kernel:
    """The products of each edge: ``M`` moves the slopes to the components of the features."""
    product, width = call.product, call.product.irreps_in.dim
    table, reads = _Table.of(group, call), _Reads.of(call, group, weights=False)
    tile = Tile.of(table.stride, None, 0)
    frame = Frame(call, number, group[0].channels, tile.with_matrices * table.stride)
    pointer = f"float* const of_edge = out + (size_t)slot * {call.num_weights} + channel;"
    zeros = " ".join(f"of_edge[{c.of_weights.start}] = 0.0f;" for c in group)
    lines = _zero_padding([pointer, f"if (inside) {{ {zeros} }}"])
    lines += _slopes(group, product.irreps_out.dim)
    lines += [*tile.begin(), reads.declare(), *reads.load("0", width), *tile.begin_part()]
    lines += [*table.store(call, "third"), *_each_edge(reads, width), table.of_edge()]
    lines.append(pointer.replace("(size_t)slot", "(size_t)(base + k)"))
    for matrix in table.matrices:
        coupling = matrix.coupling
        lines += ["{", *table.load(matrix, call), "float sum = 0.0f;"]
        for a in range(coupling.table.shape[0]):
            factors = [(c, place) for (of, c), place in matrix.places.items() if of == a]
            if not factors:
                continue
            moved, changed = (
                " + ".join(f"{_entry(p, m)} * g{coupling.of_out.start}_{c}" for c, p in factors)
                for m in "mn"
            )
            x = f"x{coupling.of_in.start}_{a}"
            product = f"t{x} * ({moved}) + {x} * ({changed})"
            lines.append(f"sum += {product if call.is_tangent else f'{x} * ({moved})'};")
        lines += [f"if (inside) of_edge[{coupling.of_weights.start}] = sum;", "}"]
    registers = 2 * reads.numbers + _num_slopes(group) + 36
    return frame.kernel(registers, [*lines, "}", "}", "}", "}"])


# Adds ``v[0..2n-1]`` over pairs of lanes: of each pair one lane keeps one half of the sums.
_HALVE = """template <int n>
__device__ __forceinline__ void Halve(float* v, int lane, int distance) {
  const bool upper = lane & distance;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float kept = upper ? v[i + n] : v[i], sent = upper ? v[i] : v[i + n];
    v[i] = kept + __shfl_xor_sync(~0u, sent, distance);
  }
}
"""


def _sum_lanes(count: int) -> tuple[list[str], int]:
    """Adds ``v[0..count-1]``, a power of two up to 32, over the lanes.

    The sum ``lane // lanes_of_each`` is in each lane's ``v[0]``; returns these lanes, too.
    """
    lines, distance = [], WARP // 2
    while count > 1:
        count //= 2
        lines.append(f"Halve<{count}>(v, lane, {distance});")
        distance //= 2
    lanes_of_each = 2 * distance if distance else 1
    while distance:
        lines.append(f"v[0] += __shfl_xor_sync(~0u, v[0], {distance});")
        distance //= 2
    return lines, lanes_of_each


def _harmonic_kernel(
    call: Call, number: int, group: Sequence[Coupling], parts: tuple[int, int]
) -> Kernel:
    """The products of each edge, summed over the channels of a warp: without matrices."""
    product = call.product
    width = product.irreps_sh.dim
    reads = _Reads.of(call, group, weights=True)
    used = sorted({b for c in group for b in range(c.of_sh.start, c.of_sh.stop)})
    frame = Frame(call, number, group[0].channels, 0, reads.weights, len(group))
    pointer = f"float* const of_edge = out + (size_t)slot * {parts[1] * width}"
    pointer += f" + ({parts[0]} + part) * {width};"
    store = f"for (int b = lane; b < {width}; b += 32) of_edge[b] = 0.0f;"
    lines = _zero_padding([pointer, store])
    lines += _slopes(group, product.irreps_out.dim)

    in_width = product.irreps_in.dim
    tile = Tile(*[EDGES if call.radial else WARP] * 2)
    lines += tile.begin()
    lines += call.radial.make_tile(0, len(group)) if call.radial else []
    lines += [reads.declare(), *reads.load("0", in_width), *tile.begin_part()]
    lines += _each_edge(reads, in_width)
    lines.append(pointer.replace("(size_t)slot", "(size_t)(base + k)"))
    lines.append(f"float {', '.join(f'h{b} = 0.0f' for b in used)};")
    for coupling in group:
        lines += _harmonic_terms(coupling)
    if len(used) < width:
        lines.append(store)
        lines.append("__syncwarp();")
    for batch in _batches(used):
        size = 1 << (len(batch) - 1).bit_length()
        values = ", ".join(
            [f"inside ? h{b} : 0.0f" for b in batch] + ["0.0f"] * (size - len(batch))
        )
        steps, lanes = _sum_lanes(size)
        lines += ["{", f"float v[{size}] = {{{values}}};", *steps]
        lines.append(f"if (lane % {lanes} == 0 && lane / {lanes} < {len(batch)})")
        lines += [f"of_edge[{batch[0]} + lane / {lanes}] = v[0];", "}"]
    registers = 2 * reads.numbers + _num_slopes(group) + len(used) + 24
    return frame.kernel(registers, [*lines, "}", "}", "}", "}"])


def _batches(used: Sequence[int]) -> Iterator[Sequence[int]]:
    """Runs of components, of at most one for each lane."""
    for run in _runs(used):
        yield from (run[i : i + WARP] for i in range(0, len(run), WARP))


def _harmonic_terms(coupling: Coupling) -> list[str]:
    lines = []
    start, sh, out = coupling.of_in.start, coupling.of_sh.start, coupling.of_out.start
    for a in range(coupling.table.shape[0]):
        lines += ["{", f"const float u = w{coupling.of_weights.start} * x{start}_{a};"]
        for c in range(coupling.table.shape[2]):
            row = coupling.table[a, :, c]
            terms = [(sh + b, row[b]) for b in np.flatnonzero(np.abs(row) > ZERO)]
            if terms:
                adds = " ".join(f"h{b} += {_number(value)} * q;" for b, value in terms)
                lines.append(f"{{ const float q = u * g{out}_{c}; {adds} }}")
        lines.append("}")
    return lines
