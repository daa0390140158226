"""How the backward pass of whole tokens is divided among blocks, warps and lanes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from pallas_kernels.chip import Chip
from pallas_kernels.mhc.streams import READ_BYTES
from pallas_kernels.simt.warp import LANES
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS

FRAGMENT = 16  # tokens that a warp takes at once; also rows of phi are padded to so many
OF_LANE = 4  # tokens of these that a lane has
GROUP = 8  # rows of phi of a fragment; lanes that have other columns of the same tokens
WARPS = 8
FLOATS = 4  # in 16 bytes
# Between the columns of neighbouring lanes, so that four of these use all banks of shared memory.
PADDING = 16
# What the partial sums of the gradient to phi may take of the second-level cache.
_CACHE_SHARE = 0.96


@dataclass(frozen=True)
class Form:
    """Shapes, and what is to be done.

    Attributes:
      n: streams.
      dim: their width.
      itemsize: of their entries.
      adds: whether there is a gradient to add.
      posts: whether ``mhc_post`` follows.
    """

    n: int
    dim: int
    itemsize: int
    adds: bool
    posts: bool

    @property
    def rows(self) -> int:
        """Rows of phi."""
        return self.n * self.n + 2 * self.n

    @property
    def shares(self) -> int:
        """Warps of a block for each stream."""
        return WARPS // self.n

    @property
    def step(self) -> int:
        """Tokens that a block takes at once."""
        return self.shares * FRAGMENT

    @property
    def parts(self) -> int:
        """Of phi and of dh_mix, in the gradient to the streams.

        What it loses with two of both is less than its rounding to bfloat16.
        """
        return PARTS if self.itemsize == 4 else PARTS - 1

    @property
    def pieces(self) -> int:
        """That a lane reads of its tokens at once."""
        return OF_LANE * (2 + self.adds + self.posts) + self.posts

    def shared(self, entries: int, ahead: int) -> dict[str, tuple[int, ...]]:
        """Shapes in shared memory: what lanes read, phi, and gradients for each other's streams."""
        rows = -(-self.rows // FRAGMENT) * FRAGMENT
        shapes: dict[str, tuple[int, ...]] = {
            "ring": (WARPS, ahead + 1, self.pieces, LANES, entries),
            "phi": (self.parts, self.n * GROUP, entries * rows + PADDING),
        }
        if self.posts:
            pieces = entries // FLOATS
            shapes["totals"] = (self.shares, self.n, OF_LANE, pieces, LANES, FLOATS)
        return shapes

    def shared_bytes(self, entries: int, ahead: int) -> int:
        """Bytes of ``shared``."""
        sizes = {"ring": self.itemsize, "phi": 2, "totals": 4}
        shapes = self.shared(entries, ahead).items()
        return sum(math.prod(shape) * sizes[name] for name, shape in shapes)


@dataclass(frozen=True)
class StreamsTile:
    """How blocks share tokens and columns; the warps of a block have different streams.

    Attributes:
      entries: neighbouring columns that a lane has of a token.
      ranges: how many parts the tokens are cut into.
      tokens: of a range, a multiple of what the warps take at once.
      ahead: how often they have read on while they work.
    """

    entries: int
    ranges: int
    tokens: int
    ahead: int

    @classmethod
    def choose(cls, chip: Chip, tokens: int, form: Form) -> StreamsTile | None:
        """The one heuristic: wide reads, well ahead, and few multiprocessors idle at the end.

        None if shared memory is too small, or kernels that post are not for so many streams.
        """
        if tokens == 0 or (form.posts and form.n != OF_LANE):
            return None
        most, widest = chip.shared_bytes, READ_BYTES // form.itemsize
        # A lane has all rows of phi for each column: of 8 streams these are many.
        widths = [width for width in (8, 4, 2) if width <= widest and width * form.n <= 32]
        choices = [*itertools.product(widths, (3, 2, 1)), *itertools.product(widths, (0,))]
        for entries, ahead in choices:
            if form.shared_bytes(entries, ahead) <= most and not (form.posts and entries < 4):
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
            # Partial sums, written and read, cost about as much as two steps.
            return -(-slices * ranges // chip.multiprocessors) * (-(-steps // ranges) + 2)

        length = -(-steps // min(range(1, most + 1), key=duration))
        return -(-steps // length), length * step
