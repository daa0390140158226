"""Writes the CUDA source of sums of tensor products, with the couplings of a product as constants.

A warp processes a row of the graph and 32 channels, one for each lane. The edges of the row come in
tiles. For each edge of a tile one lane computes the matrices ``M[a, c] = Σ_b C[a, b, c] Y[b]`` of
all couplings from the harmonics ``Y``, without their zeros, and stores them in shared memory. Then
all lanes multiply, edge after edge. Meanwhile a lane reads its numbers of the next edge. There are
no atomic additions.

There are four kinds of kernels. All have the parameters of the frame, see
``_tensor_product_frame.py``: sums read features of the other end, harmonics and weights; products
read features of the sender, slopes of the receiver, and the harmonics or the weights. Kernels that
make the weights (``_made_weights_source.py``) read the basis in the place of weights.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxgnn._ffi._made_weights_source import EDGES, MadeWeights
from jaxgnn._ffi._tensor_product_frame import (
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
from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import ZERO, Coupling, couplings

_MOST_NUMBERS = 40  # that a lane keeps for a row, or reads for an edge
_MOST_ENTRIES = 192  # of the matrices of an edge


@functools.lru_cache(maxsize=256)
def source(
    product: TensorProduct,
    kind: Kind,
    made: MadeWeights | None = None,
    paths: tuple[int, ...] | None = None,
) -> Source:
    """The kernels of one kind for a product.

    Args:
      product: the product, with at least one path.
      kind: sums at the rows, or at the columns as rows of the transposed graph; products at edges,
        for the weights, or for the harmonics in a part for each 32 channels.
      made: the layer that makes weights in the kernels; None for kernels that read them.
      paths: the paths for which products are computed, by their numbers, one after the other in the
        result; None for all.
    """
    used = couplings(product, exchanged=kind == "columns")
    if paths is not None:
        used = [c._replace(of_weights=w) for c, w in zip(*_chosen(used, paths), strict=True)]
    call = Call(kind, product, made, sum(c.channels for c in used))
    if kind in ("rows", "columns"):
        widths = product.irreps_in.dim, product.irreps_out.dim
        return _sums(call, used, *(widths[::-1] if kind == "columns" else widths))
    return _products(call, used, kind)


def _chosen(used: Sequence[Coupling], paths: tuple[int, ...]) -> tuple[list[Coupling], list[slice]]:
    """The couplings of these paths, and their weights without gaps between."""
    own = [used[i] for i in paths]
    ends = list(itertools.accumulate((c.channels for c in own), initial=0))
    return own, list(map(slice, ends[:-1], ends[1:]))


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
        own = [number for _, number in run]
        yield range(own[0], own[-1] + 1)


def _matrices(group: Sequence[Coupling]) -> tuple[list[_Matrix], int]:
    """The matrices of an edge, and the floats from one edge to the next.

    A matrix begins at a multiple of four floats. The distance is an odd multiple of four, so that
    lanes store to different banks.
    """
    matrices, place = [], 0
    for coupling in group:
        places, entries = {}, {}
        for c, a in itertools.product(*map(range, coupling.table.shape[::-2])):
            row = coupling.table[a, :, c]
            terms = [(coupling.of_sh.start + b, row[b]) for b in np.flatnonzero(np.abs(row) > ZERO)]
            if terms:
                places[a, c], entries[place] = place, terms
                place += 1
        matrices.append(_Matrix(coupling, places, entries))
        place = -(-place // 4) * 4
    return matrices, place + (4 if place // 4 % 2 == 0 else 0)


def _number(value: float) -> str:
    return f"{value:.9e}f"


def _store_matrices(
    matrices: Sequence[_Matrix], stride: int, harmonics: str, width: int
) -> list[str]:
    """A lane computes the matrices of one edge."""
    entries = {place: terms for matrix in matrices for place, terms in matrix.entries.items()}
    read = sorted({b for terms in entries.values() for b, _ in terms})
    lines = [
        "if (lane >= from && lane < to) {",
        f"const float* const h = {harmonics} + (size_t)slot * {width};",
    ]
    lines += [f"const float h{b} = __ldg(h + {b});" for b in read]
    for place in range(0, max(entries) + 1, 4):
        values = [
            " + ".join(f"{_number(c)} * h{b}" for b, c in entries.get(place + i, ())) or "0.0f"
            for i in range(4)
        ]
        to = f"*(float4*)(table + (lane - from) * {stride} + {place})"
        lines.append(f"{to} = make_float4({', '.join(values)});")
    return [*lines, "}", "__syncwarp();"]


class _Reads(NamedTuple):
    """Numbers that a lane reads for an edge, one edge ahead.

    Attributes:
      parts: the entries of the features: their start and number of components.
      weights: the starts of the weights.
    """

    parts: tuple[tuple[int, int], ...]
    weights: tuple[int, ...] = ()

    @classmethod
    def of(cls, group: Sequence[Coupling], *, weights: bool) -> _Reads:
        parts = dict.fromkeys((c.of_in.start, c.table.shape[0]) for c in group)
        starts = tuple(c.of_weights.start for c in group) if weights else ()
        return cls(tuple(parts), starts)

    @property
    def numbers(self) -> int:
        return sum(size for _, size in self.parts) + len(self.weights)

    def names(self) -> Iterator[str]:
        for start, size in self.parts:
            yield from (f"x{start}_{a}" for a in range(size))
        yield from (f"w{start}" for start in self.weights)

    def declare(self) -> str:
        return f"float {', '.join(f'next_{name} = 0.0f' for name in self.names())};"

    def load(self, edge: str, width: int, weights: Sequence[str] = ()) -> list[str]:
        """The reads for an edge of the tile.

        Args:
          edge: its number in the tile.
          width: width of a row of features.
          weights: the pointer ``w`` to the first weight of the edge, and that to each weight.
        """
        lines = [
            f"const float* const x = first + (size_t)__shfl_sync(~0u, node, {edge}) * {width};",
        ]
        for start, size in self.parts:
            lines += [
                f"next_x{start}_{a} = __ldg(x + {start} + at * {size} + {a});" for a in range(size)
            ]
        return ["{", *lines, *weights, "}"]

    def load_weights(self, edge: str, call: Call) -> list[str]:
        """The reads of weights for an edge, as ``load`` takes them."""
        if call.made:
            lines = [f"const float* const w = tile + ({edge}) * {32 * len(self.weights)} + lane;"]
            reads = ((start, f"w[{32 * j}]") for j, start in enumerate(self.weights))
        else:
            slot = f"(size_t)__shfl_sync(~0u, slot, {edge})"
            lines = [f"const float* const w = third + {slot} * {call.num_weights} + at;"]
            reads = ((start, f"__ldg(w + {start})") for start in self.weights)
        return lines + [f"next_w{start} = {read};" for start, read in reads]

    def take(self) -> str:
        return f"const float {', '.join(f'{name} = next_{name}' for name in self.names())};"


def _load_matrix(matrix: _Matrix) -> list[str]:
    quads = sorted({place // 4 for place in matrix.entries})
    return [f"const float4 m{quad} = m[{quad}];" for quad in quads]


def _entry(place: int) -> str:
    return f"m{place // 4}.{'xyzw'[place % 4]}"


def _each_edge(reads: _Reads, load) -> list[str]:
    """Begins the loop over edges of a tile, whose reads for the first edge were issued."""
    return [
        "#pragma unroll 1",
        "for (int k = from; k < to; ++k) {",
        reads.take(),
        "if (k + 1 < count)",
        *load("k + 1"),
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
    fragments = call.made.fragment_floats(len(group)) if call.made else 0
    tiles = [Tile.of(_matrices(part)[1], call.made, fragments) for part in passes]
    floats = max(
        tile.with_matrices * _matrices(part)[1] for tile, part in zip(tiles, passes, strict=True)
    )
    starts = tuple(c.of_weights.start for part in passes for c in part)
    frame = Frame(call, number, group[0].channels, floats, starts, max(map(len, passes)))
    totals = {c.of_out.start: c.table.shape[2] for c in group}
    most = max(_Reads.of(part, weights=True).numbers for part in passes)
    lines = ["if (row < rows) {", "const int begin = indptr[row], end = indptr[row + 1];"]
    for start, size in totals.items():
        lines += [f"float {', '.join(f'y{start}_{c} = 0.0f' for c in range(size))};"]
    first_path = 0
    for tile, part in zip(tiles, passes, strict=True):
        lines += _sum_pass(call, tile, part, width, first_path)
        first_path += len(part)
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
    call: Call, tile: Tile, part: Sequence[Coupling], width: int, first_path: int
) -> list[str]:
    matrices, stride = _matrices(part)
    reads = _Reads.of(part, weights=True)

    def load(edge):
        return reads.load(edge, width, reads.load_weights(edge, call))

    lines = tile.begin()
    lines += call.made.make_tile(first_path, len(part)) if call.made else []
    lines += [reads.declare(), *load("0"), *tile.begin_part()]
    lines += _store_matrices(matrices, stride, "second", call.product.irreps_sh.dim)
    lines += _each_edge(reads, load)
    lines.append(f"const float4* const m = (const float4*)(table + (k - from) * {stride});")
    for matrix in matrices:
        coupling = matrix.coupling
        lines += ["{", *_load_matrix(matrix)]
        for c in range(coupling.table.shape[2]):
            terms = [
                f"{_entry(place)} * x{coupling.of_in.start}_{a}"
                for (a, to), place in matrix.places.items()
                if to == c
            ]
            if terms:
                total = f"y{coupling.of_out.start}_{c}"
                lines.append(f"{total} += w{coupling.of_weights.start} * ({' + '.join(terms)});")
        lines.append("}")
    return [*lines, "}", "}", "}"]


def _products(
    call: Call, used: Sequence[Coupling], kind: Literal["weights", "harmonics"]
) -> Source:
    write = {"weights": _weight_kernel, "harmonics": _harmonic_kernel}[kind]

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
    return joined(kernels, _HALVE if kind == "harmonics" else "")


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
    product = call.product
    matrices, stride = _matrices(group)
    tile, reads = Tile.of(stride, None, 0), _Reads.of(group, weights=False)
    frame = Frame(call, number, group[0].channels, tile.with_matrices * stride)
    pointer = f"float* const of_edge = out + (size_t)slot * {call.num_weights} + channel;"
    zeros = " ".join(f"of_edge[{c.of_weights.start}] = 0.0f;" for c in group)
    lines = _zero_padding([pointer, f"if (inside) {{ {zeros} }}"])
    lines += _slopes(group, product.irreps_out.dim)
    load = functools.partial(reads.load, width=product.irreps_in.dim)
    lines += [*tile.begin(), reads.declare(), *load("0"), *tile.begin_part()]
    lines += _store_matrices(matrices, stride, "third", product.irreps_sh.dim)
    lines += _each_edge(reads, load)
    lines.append(f"const float4* const m = (const float4*)(table + (k - from) * {stride});")
    lines.append(pointer.replace("(size_t)slot", "(size_t)(base + k)"))
    for matrix in matrices:
        coupling = matrix.coupling
        lines += ["{", *_load_matrix(matrix), "float sum = 0.0f;"]
        for a in range(coupling.table.shape[0]):
            terms = [
                f"{_entry(place)} * g{coupling.of_out.start}_{c}"
                for (of, c), place in matrix.places.items()
                if of == a
            ]
            if terms:
                lines.append(f"sum += x{coupling.of_in.start}_{a} * ({' + '.join(terms)});")
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
    reads = _Reads.of(group, weights=True)
    used = sorted({b for c in group for b in range(c.of_sh.start, c.of_sh.stop)})
    frame = Frame(call, number, group[0].channels, 0, reads.weights, len(group))
    pointer = f"float* const of_edge = out + (size_t)slot * {parts[1] * width}"
    pointer += f" + ({parts[0]} + part) * {width};"
    store = f"for (int b = lane; b < {width}; b += 32) of_edge[b] = 0.0f;"
    lines = _zero_padding([pointer, store])
    lines += _slopes(group, product.irreps_out.dim)

    def load(edge):
        return reads.load(edge, product.irreps_in.dim, reads.load_weights(edge, call))

    tile = Tile(*[EDGES if call.made else WARP] * 2)
    lines += tile.begin()
    lines += call.made.make_tile(0, len(group)) if call.made else []
    lines += [reads.declare(), *load("0"), *tile.begin_part(), *_each_edge(reads, load)]
    lines.append(pointer.replace("(size_t)slot", "(size_t)(base + k)"))
    lines.append(f"float {', '.join(f'h{b} = 0.0f' for b in used)};")
    for coupling in group:
        lines += _harmonic_terms(coupling)
    if len(used) < width:
        lines.append(store)
        lines.append("__syncwarp();")
    for own in _batches(used):
        size = 1 << (len(own) - 1).bit_length()
        values = ", ".join([f"inside ? h{b} : 0.0f" for b in own] + ["0.0f"] * (size - len(own)))
        steps, lanes = _sum_lanes(size)
        lines += ["{", f"float v[{size}] = {{{values}}};", *steps]
        lines.append(f"if (lane % {lanes} == 0 && lane / {lanes} < {len(own)})")
        lines += [f"of_edge[{own[0]} + lane / {lanes}] = v[0];", "}"]
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
