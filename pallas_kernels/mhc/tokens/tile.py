"""Division of the backward pass by SIMT code among blocks, warps and lanes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from pallas_kernels.chip import Chip
from pallas_kernels.mhc.streams import READ_BYTES
from pallas_kernels.simt.warp import LANES
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS

FRAGMENT = 16  # tokens that a warp processes at once; rows of phi are padded to a multiple
TOKENS_PER_LANE = 4  # tokens of a fragment that a lane has
GROUP = 8  # rows of phi of a fragment; lanes with different columns of the same tokens
WARPS = 8
FLOATS = 4  # float32 numbers of 16 bytes
# Padding between the columns of neighbouring lanes, so that four lanes use all banks of shared
# memory.
PADDING = 16
# Part of the second-level cache that the partial sums of the gradient to phi may take.
_CACHE_SHARE = 0.96


@dataclass(frozen=True)
class Form:
    """Shapes of the streams, and whether there is another gradient.

    Attributes:
      n: number of streams.
      dim: width of a stream.
      itemsize: bytes of an entry of the streams.
      adds: whether another gradient of the streams is given, to be added.
    """

    n: int
    dim: int
    itemsize: int
    adds: bool

    @property
    def rows(self) -> int:
        """Number of rows of phi."""
        return self.n * self.n + 2 * self.n

    @property
    def shares(self) -> int:
        """Warps of a block for each stream."""
        return WARPS // self.n

    @property
    def step(self) -> int:
        """Tokens that a block processes at once."""
        return self.shares * FRAGMENT

    @property
    def parts(self) -> int:
        """bfloat16 parts of phi and of dh_mix in the gradient to the streams.

        With two parts the error is less than that of rounding the gradient to bfloat16.
        """
        return PARTS if self.itemsize == 4 else PARTS - 1

    @property
    def vectors(self) -> int:
        """Vectors of neighbouring columns that a lane copies for a step."""
        return TOKENS_PER_LANE * (2 + self.adds)

    def shared(self, entries: int, ahead: int) -> dict[str, tuple[int, ...]]:
        """Shapes in shared memory: the ring of inputs, and phi."""
        rows = -(-self.rows // FRAGMENT) * FRAGMENT
        return {
            "ring": (WARPS, ahead + 1, self.vectors, LANES, entries),
            "phi": (self.parts, self.n * GROUP, entries * rows + PADDING),
        }

    def shared_bytes(self, entries: int, ahead: int) -> int:
        """Shared memory of a block, in bytes."""
        sizes = {"ring": self.itemsize, "phi": 2}
        shapes = self.shared(entries, ahead).items()
        return sum(math.prod(shape) * sizes[name] for name, shape in shapes)


@dataclass(frozen=True)
class StreamsTile:
    """Division of tokens and columns among blocks; the warps of a block have different streams.

    Attributes:
      entries: neighbouring columns of a token that a lane has.
      ranges: number of ranges of tokens.
      tokens: tokens of a range, a multiple of those that a block processes at once.
      ahead: steps whose inputs are copied ahead.
    """

    entries: int
    ranges: int
    tokens: int
    ahead: int

    @classmethod
    def choose(cls, chip: Chip, tokens: int, form: Form) -> StreamsTile | None:
        """The only heuristic: wide reads, copied well ahead, and few idle multiprocessors.

        None if shared memory is too small.
        """
        if tokens == 0:
            return None
        most, widest = chip.shared_bytes, READ_BYTES // form.itemsize
        # A lane has all rows of phi for each of its columns; for 8 streams these are many.
        widths = [width for width in (8, 4, 2) if width <= widest and width * form.n <= 32]
        choices = [*itertools.product(widths, (3, 2, 1)), *itertools.product(widths, (0,))]
        for entries, ahead in choices:
            if form.shared_bytes(entries, ahead) <= most:
                return cls(entries, *cls._cut(chip, tokens, form, entries), ahead)
        return None

    @staticmethod
    def _cut(chip: Chip, tokens: int, form: Form, entries: int) -> tuple[int, int]:
        """Number and length of the ranges."""
        slices, step = form.dim // (GROUP * entries), form.step
        steps = -(-tokens // step)
        bytes_of_range = 4 * form.shares * form.rows * form.n * form.dim
        most = max(1, min(int(_CACHE_SHARE * chip.cache_bytes) // bytes_of_range, steps))

        def duration(ranges: int) -> int:
            # Writing and reading the partial sums of a range costs about as much as two steps.
            return -(-slices * ranges // chip.multiprocessors) * (-(-steps // ranges) + 2)

        length = -(-steps // min(range(1, most + 1), key=duration))
        return -(-steps // length), length * step
