"""Writes the CUDA source of sums of tensor products, with the couplings of a product as constants.

A warp processes a row of the graph and 32 channels, one for each lane. The edges of the row come in
tiles. For each edge of a tile one lane computes the matrices ``M[a, c] = Σ_b C[a, b, c] Y[b]`` of
all couplings from the harmonics ``Y``, without their zeros, and stores them in shared memory. Then
all lanes multiply, edge after edge. Meanwhile a lane reads its numbers of the next edge. There are
no atomic additions.

There are four kinds of kernels. All have the parameters of ``_PARAMETERS``: sums read features of
the other end, harmonics and weights; products read features of the sender, slopes of the receiver,
and the harmonics or the weights. See ``ffi/nvrtc/generated.cc`` for how they are launched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import ZERO, Coupling, couplings

Kind = Literal["rows", "columns", "weights", "harmonics"]

_WARP = 32
_WARPS = 8  # of a block; ffi/nvrtc/generated.cc has the same number
_MOST_NUMBERS = 40  # that a lane keeps for a row, or reads for an edge
_MOST_ENTRIES = 192  # of the matrices of an edge
_TABLE_BYTES = 56 * 1024  # so that two blocks fit a multiprocessor

_PARAMETERS = (
    "int rows, int edges, const int* __restrict__ indptr, const int* __restrict__ indices, "
    "const int* __restrict__ slots, const float* __restrict__ first, "
    "const float* __restrict__ second, const float* __restrict__ third, float* __restrict__ out"
)


class Launch(NamedTuple):
    """A kernel of a source: ``kernel0`` is the first one.

    Attributes:
      columns: number of parts of 32 channels: blocks in the second direction of the grid.
      shared_bytes: dynamic shared memory of a block.
    """

    columns: int
    shared_bytes: int


class Source(NamedTuple):
    """CUDA source and the launches of its kernels, in order."""

    text: str
    launches: tuple[Launch, ...]

    @property
    def columns(self) -> int:
        """The parts of 32 channels of all kernels."""
        return sum(launch.columns for launch in self.launches)


@functools.lru_cache(maxsize=256)
def source(product: TensorProduct, kind: Kind) -> Source:
    """The kernels of one kind for a product.

    Args:
      product: the product, with at least one path.
      kind: sums at the rows, or at the columns as rows of the transposed graph; products at edges,
        for the weights, or for the harmonics in a part for each 32 channels.
    """
    used = couplings(product, exchanged=kind == "columns")
    if kind in ("rows", "columns"):
        widths = product.irreps_in.dim, product.irreps_out.dim
        return _sums(used, *(widths[::-1] if kind == "columns" else widths), product)
    return _products(used, product, kind)


class _Matrix(NamedTuple):
    """The matrix of a coupling, with its place among those of an edge.

    Attributes:
      places: the place of each entry ``[a, c]`` that is not always zero.
      entries: the coefficients of the harmonics in each entry, by their places in the harmonics.
    """

    coupling: Coupling
    places: dict[tuple[int, int], int]
    entries: dict[int, list[tuple[int, float]]]


def _sums(used: Sequence[Coupling], width: int, out_width: int, product: TensorProduct) -> Source:
    kernels, launches, covered = [], [], set[int]()
    groups = list(_sum_groups(used))
    for group in groups:
        covered.update(*(range(c.of_out.start, c.of_out.stop) for c in group))
    missing = list(_runs(sorted(set(range(out_width)) - covered)))
    for number, group in enumerate(groups):
        text, shared = _sum_kernel(number, group, width, out_width, product, missing)
        kernels.append(text)
        launches.append(_launch(group, shared))
        missing = []  # the first kernel has set them to zero
    return Source("\n".join(kernels), tuple(launches))


def _launch(group: Sequence[Coupling], shared: int) -> Launch:
    return Launch(-(-group[0].channels // _WARP), shared)


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


def _tile(stride: int) -> int:
    """Edges of a tile, for matrices of an edge of this size."""
    return 16 if _WARPS * 16 * stride * 4 <= _TABLE_BYTES else 8


def _number(value: float) -> str:
    return f"{value:.9e}f"


def _begin(number: int, registers: int, channels: int, shared: int) -> list[str]:
    """The head of a kernel, up to the edges of the warp's row.

    Lanes behind the last channel read the first one and store nothing.
    """
    blocks = next(n for n, most in ((4, 60), (3, 76), (2, 124), (1, 999)) if registers <= most)
    table = f"float* const table = tables + (threadIdx.x >> 5) * {shared // (4 * _WARPS)};"
    return [
        f'extern "C" __global__ void __launch_bounds__({_WARPS * _WARP}, {blocks})',
        f"kernel{number}({_PARAMETERS}) {{",
        *(["extern __shared__ __align__(16) float tables[];", table] if shared else []),
        "const int lane = threadIdx.x & 31;",
        f"const int row = blockIdx.x * {_WARPS} + (threadIdx.x >> 5);",
        "const int channel = blockIdx.y * 32 + lane;",
        f"const bool inside = channel < {channels};",
        "const int at = inside ? channel : 0;",
    ]


def _tile_begin(tile: int) -> list[str]:
    return [
        f"for (int base = begin; base < end; base += {tile}) {{",
        f"const int count = min({tile}, end - base);",
        "__syncwarp();",
        "int node = 0, slot = 0;",
        "if (lane < count) {",
        "node = indices[base + lane];",
        "slot = slots ? slots[base + lane] : base + lane;",
        "}",
    ]


def _store_matrices(
    matrices: Sequence[_Matrix], stride: int, harmonics: str, width: int
) -> list[str]:
    """A lane computes the matrices of one edge."""
    entries = {place: terms for matrix in matrices for place, terms in matrix.entries.items()}
    read = sorted({b for terms in entries.values() for b, _ in terms})
    lines = ["if (lane < count) {", f"const float* const h = {harmonics} + (size_t)slot * {width};"]
    lines += [f"const float h{b} = __ldg(h + {b});" for b in read]
    for place in range(0, max(entries) + 1, 4):
        values = [
            " + ".join(f"{_number(c)} * h{b}" for b, c in entries.get(place + i, ())) or "0.0f"
            for i in range(4)
        ]
        to = f"*(float4*)(table + lane * {stride} + {place})"
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

    def load(self, edge: str, width: int, weights: str = "", weights_width: int = 0) -> list[str]:
        lines = [
            f"const float* const x = first + (size_t)__shfl_sync(~0u, node, {edge}) * {width};",
        ]
        for start, size in self.parts:
            lines += [
                f"next_x{start}_{a} = __ldg(x + {start} + at * {size} + {a});" for a in range(size)
            ]
        if self.weights:
            slot = f"(size_t)__shfl_sync(~0u, slot, {edge})"
            lines.append(f"const float* const w = {weights} + {slot} * {weights_width} + at;")
            lines += [f"next_w{start} = __ldg(w + {start});" for start in self.weights]
        return ["{", *lines, "}"]

    def take(self) -> str:
        return f"const float {', '.join(f'{name} = next_{name}' for name in self.names())};"


def _load_matrix(matrix: _Matrix) -> list[str]:
    quads = sorted({place // 4 for place in matrix.entries})
    return [f"const float4 m{quad} = m[{quad}];" for quad in quads]


def _entry(place: int) -> str:
    return f"m{place // 4}.{'xyzw'[place % 4]}"


def _each_edge(reads: _Reads, load) -> list[str]:
    """Begins the loop over the edges of a tile, whose reads for the first edge were issued."""
    return [
        "#pragma unroll 1",
        "for (int k = 0; k < count; ++k) {",
        reads.take(),
        "if (k + 1 < count)",
        *load("k + 1"),
    ]


def _sum_kernel(
    number: int,
    group: Sequence[Coupling],
    width: int,
    out_width: int,
    product: TensorProduct,
    missing: Sequence[range],
) -> tuple[str, int]:
    """The kernel of the sums of a group, in passes over the edges if it reads many numbers."""
    alone = len({coupling.of_in.start for coupling in group}) == 1

    def sizes(coupling):
        return 1 if alone else coupling.table.shape[0] + 1, _entries([coupling])

    passes = list(_cut(sorted(group, key=lambda c: c.of_in.start), sizes))
    strides = [_matrices(part)[1] for part in passes]
    shared = max(_WARPS * _tile(stride) * stride * 4 for stride in strides)
    totals = {c.of_out.start: c.table.shape[2] for c in group}
    most = max(_Reads.of(part, weights=True).numbers for part in passes)
    registers = 2 * most + sum(totals.values()) + 24
    lines = _begin(number, registers, group[0].channels, shared)
    lines += ["if (row >= rows) return;", "const int begin = indptr[row], end = indptr[row + 1];"]
    for start, size in totals.items():
        lines += [f"float {', '.join(f'y{start}_{c} = 0.0f' for c in range(size))};"]
    for part in passes:
        lines += _sum_pass(part, width, product)
    lines.append(f"float* const y = out + (size_t)row * {out_width};")
    lines.append("if (inside) {")
    for start, size in totals.items():
        lines += [f"y[{start} + channel * {size} + {c}] = y{start}_{c};" for c in range(size)]
    lines.append("}")
    for places in missing:
        loop = f"for (int i = {places.start} + lane; i < {places.stop}; i += 32)"
        lines.append(f"if (blockIdx.y == 0) {loop} y[i] = 0.0f;")
    return "\n".join([*lines, "}"]), shared


def _sum_pass(part: Sequence[Coupling], width: int, product: TensorProduct) -> list[str]:
    matrices, stride = _matrices(part)
    reads = _Reads.of(part, weights=True)
    load = functools.partial(
        reads.load, width=width, weights="third", weights_width=product.num_weights
    )
    lines = [*_tile_begin(_tile(stride)), reads.declare(), *load("0")]
    lines += _store_matrices(matrices, stride, "second", product.irreps_sh.dim)
    lines += _each_edge(reads, load)
    lines.append(f"const float4* const m = (const float4*)(table + k * {stride});")
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
    return [*lines, "}", "}"]


def _products(used: Sequence[Coupling], product: TensorProduct, kind: Kind) -> Source:
    write = {"weights": _weight_kernel, "harmonics": _harmonic_kernel}[kind]
    kernels, launches, parts = [], [], 0

    def sizes(coupling):
        return coupling.table.shape[2], _entries([coupling])

    groups = [
        part
        for group in _by(used, lambda coupling: coupling.of_in.start).values()
        for part in _cut(group, sizes)
    ]
    all_parts = sum(_launch(group, 0).columns for group in groups)
    for number, group in enumerate(groups):
        text, shared = write(number, group, product, (parts, all_parts))
        kernels.append(text)
        launches.append(_launch(group, shared))
        parts += launches[-1].columns
    text = "\n".join(kernels)
    return Source(_HALVE + text if kind == "harmonics" else text, tuple(launches))


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
    """Sets padding slots of this part of the channels to zero; warps without a row end here."""
    return [
        f"const int warps = gridDim.x * {_WARPS};",
        "for (int slot = indptr[rows] + row; slot < edges; slot += warps) {",
        *store,
        "}",
        "if (row >= rows) return;",
        "const int begin = indptr[row], end = indptr[row + 1];",
    ]


def _weight_kernel(
    number: int, group: Sequence[Coupling], product: TensorProduct, parts: tuple[int, int]
) -> tuple[str, int]:
    """The products of each edge: ``M`` moves the slopes to the components of the features."""
    matrices, stride = _matrices(group)
    reads = _Reads.of(group, weights=False)
    shared = _WARPS * _tile(stride) * stride * 4
    registers = 2 * reads.numbers + _num_slopes(group) + 36
    pointer = f"float* const to = out + (size_t)slot * {product.num_weights} + channel;"
    zeros = " ".join(f"to[{c.of_weights.start}] = 0.0f;" for c in group)
    lines = _begin(number, registers, group[0].channels, shared)
    lines += _zero_padding([pointer, f"if (inside) {{ {zeros} }}"])
    lines += _slopes(group, product.irreps_out.dim)
    load = functools.partial(reads.load, width=product.irreps_in.dim)
    lines += [*_tile_begin(_tile(stride)), reads.declare(), *load("0")]
    lines += _store_matrices(matrices, stride, "third", product.irreps_sh.dim)
    lines += _each_edge(reads, load)
    lines.append(f"const float4* const m = (const float4*)(table + k * {stride});")
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
        lines += [f"if (inside) to[{coupling.of_weights.start}] = sum;", "}"]
    return "\n".join([*lines, "}", "}", "}"]), shared


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
    lines, distance = [], _WARP // 2
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
    number: int, group: Sequence[Coupling], product: TensorProduct, parts: tuple[int, int]
) -> tuple[str, int]:
    """The products of each edge, summed over the channels of a warp: without matrices."""
    width = product.irreps_sh.dim
    reads = _Reads.of(group, weights=True)
    used = sorted({b for c in group for b in range(c.of_sh.start, c.of_sh.stop)})
    registers = 2 * reads.numbers + _num_slopes(group) + len(used) + 24
    part = f"({parts[0]} + blockIdx.y) * {width}"
    pointer = f"float* const to = out + (size_t)slot * {parts[1] * width} + {part};"
    lines = _begin(number, registers, group[0].channels, 0)
    store = f"for (int b = lane; b < {width}; b += 32) to[b] = 0.0f;"
    lines += _zero_padding([pointer, store])
    lines += _slopes(group, product.irreps_out.dim)
    load = functools.partial(
        reads.load, width=product.irreps_in.dim, weights="third", weights_width=product.num_weights
    )
    lines += [*_tile_begin(_WARP), reads.declare(), *load("0"), *_each_edge(reads, load)]
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
        lines += [f"to[{own[0]} + lane / {lanes}] = v[0];", "}"]
    return "\n".join([*lines, "}", "}", "}"]), 0


def _batches(used: Sequence[int]) -> Iterator[Sequence[int]]:
    """Runs of components, of at most one for each lane."""
    for run in _runs(used):
        yield from (run[i : i + _WARP] for i in range(0, len(run), _WARP))


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
