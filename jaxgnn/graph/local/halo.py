"""The halo of one device's rows: the rows of other devices that their edges read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt

from jaxgnn._arrays.arrays import KeepsArrays, match_varying
from jaxgnn._derivatives.custom_vjp import custom_vjp
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.cbsr import CBSR

Form = Literal["all_gather", "all_to_all"]
"""Method to send rows: each device gets all rows of all devices, or those on static lists."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Halo(KeepsArrays):
    """Exchange of the rows that edges read, among the devices of a mesh axis.

    Inside of ``jax.shard_map`` each device owns ``rows`` rows, and its edges read a table. With
    ``"all_gather"`` the table has the rows of all devices, one device after the other. With
    ``"all_to_all"`` it has the own rows, and then the rows that come from each device, in the order
    of the lists and padded to the longest list.

    Attributes:
      ids: number in the whole graph of each own row, int32; ``num_nodes`` for padding rows.
      send: own rows that each device needs, int32 [devices, slots], padded with ``rows``; None for
        ``"all_gather"``.
      axis: name of the mesh axis.
      devices: number of devices along it.
      num_nodes: number of nodes of the whole graph.
      wire_dtype: name of the floating dtype in which wider numbers are sent, or None for their own.
      records: whether values and columns of a compressed row are sent together, by one collective.
    """

    ids: Int[Array, " rows"]
    send: Int[Array, "devices slots"] | None
    axis: str = field(metadata={"static": True})
    devices: int = field(metadata={"static": True})
    num_nodes: int = field(metadata={"static": True})
    wire_dtype: str | None = field(default=None, metadata={"static": True})
    records: bool = field(default=False, metadata={"static": True})

    @property
    def form(self) -> Form:
        """Method to send rows: all to all devices, or those on lists."""
        return "all_gather" if self.send is None else "all_to_all"

    @property
    def rows(self) -> int:
        """Number of own rows, padding included: the same on all devices."""
        return self.ids.shape[-1]

    @property
    def is_real(self) -> Bool[Array, " rows"]:
        """A mask of the own rows that are nodes of the graph, not padding."""
        return self.ids < self.num_nodes

    @property
    def rows_received(self) -> int:
        """Number of rows that a device receives in an exchange, padding included."""
        others = self.devices - 1
        return others * (self.rows if self.send is None else self.send.shape[-1])

    @property
    def table_rows(self) -> int:
        """Number of rows of the table that edges read."""
        if self.send is None:
            return self.devices * self.rows
        return self.rows + self.devices * self.send.shape[-1]

    @property
    def is_empty(self) -> bool:
        """Whether the table has only the own rows, so that nothing is sent.

        XLA ends the process where arrays without elements are exchanged (jaxlib 0.11.2).
        """
        return self.devices == 1 or self.rows_received == 0

    def first_own(self) -> Int[Array, ""] | int:
        """Returns the place in the table of the first own row."""
        return lax.axis_index(self.axis) * self.rows if self.send is None else 0

    @overload
    def exchange(self, x: Array, row_axis: int = 0) -> Array: ...
    @overload
    def exchange(self, x: CBSR, row_axis: int = 0) -> CBSR: ...
    def exchange(self, x: Array | CBSR, row_axis: int = 0) -> Array | CBSR:
        """Returns the table of the rows that edges read.

        The gradient is the transpose: the gradient of a table entry is added at the owner of the
        row. For compressed rows it is that of the values, since the owner has the columns.

        Args:
          x: own rows, with ``rows`` entries along ``row_axis``; or compressed rows, whose values
            and columns are both sent.
          row_axis: the axis of the rows.

        Raises:
          ValueError: if there is another number of rows.
        """
        if isinstance(x, CBSR) and self.records:
            return self._exchange_records(x, row_axis)
        if isinstance(x, CBSR):
            values = self.exchange(x.values, row_axis)
            columns = self.exchange(x.indices, row_axis)
            return dataclasses.replace(x, values=values, indices=columns)
        self._check_rows("x", x, self.rows, row_axis, "the own rows of a device")
        if self.is_empty:
            return x
        has_gradient = jnp.issubdtype(x.dtype, jnp.inexact)
        return self._apply_along(_gathered if has_gradient else _gather, x, row_axis)

    def _exchange_records(self, x: CBSR, row_axis: int) -> CBSR:
        self._check_rows("x", x.values, self.rows, row_axis, "the own rows of a device")
        if self.is_empty:
            return x
        _, send, values, columns = match_varying(
            self.ids, self.send, jnp.asarray(x.values), jnp.asarray(x.indices)
        )
        move = partial(_records_gathered, self._way(values.dtype), send)
        ends = (jnp.moveaxis(part, row_axis, 0) for part in (values, columns))
        values, columns = (jnp.moveaxis(part, 0, row_axis) for part in move(*ends))
        return dataclasses.replace(x, values=values, indices=columns)

    def add_at_owners(self, table: Array, row_axis: int = 0) -> Array:
        """Sums, for each own row, the entries of all devices at its place in their tables.

        Args:
          table: an array with ``table_rows`` entries along ``row_axis``.
          row_axis: the axis of the rows.

        Raises:
          ValueError: if there is another number of rows.
        """
        self._check_rows("table", table, self.table_rows, row_axis, "those of the table")
        if self.is_empty:
            return table
        has_gradient = jnp.issubdtype(table.dtype, jnp.inexact)
        return self._apply_along(_returned if has_gradient else _give_back, table, row_axis)

    def _apply_along(self, move, x: Array, row_axis: int) -> Array:
        """Applies ``move`` to an array whose rows are moved to the first axis."""
        _, send, x = match_varying(self.ids, self.send, jnp.asarray(x))
        moved = move(self._way(x.dtype), send, jnp.moveaxis(x, row_axis, 0))
        return jnp.moveaxis(moved, 0, row_axis)

    def _way(self, dtype: jnp.dtype) -> _Way:
        return _Way(self.axis, self.devices, self.rows, self._wire(dtype))

    def _wire(self, dtype: jnp.dtype) -> str:
        """Returns the name of the dtype in which numbers of ``dtype`` are sent."""
        if self.wire_dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            return dtype.name
        narrow = jnp.dtype(self.wire_dtype)
        return narrow.name if narrow.itemsize < dtype.itemsize else dtype.name

    def _check_rows(self, argument: str, x: Array, rows: int, row_axis: int, which: str) -> None:
        if x.ndim < max(-row_axis, row_axis + 1) or x.shape[row_axis] != rows:
            expected = f"of {rows} rows along axis {row_axis}, {which}"
            raise bad_input("halo_exchange", argument, expected, f"shape {x.shape}")


class _Way(NamedTuple):
    """Static description of an exchange of rows; numbers are sent in the dtype ``wire``."""

    axis: str
    devices: int
    rows: int
    wire: str

    def swap(self, x: Array) -> Array:
        """Sends the d-th of ``devices`` equal parts to device d, and stacks what arrives."""
        swapped = lax.all_to_all(x.astype(self.wire), self.axis, 0, 0, tiled=True)
        return swapped.astype(x.dtype)


def _gather(way: _Way, send: Array | None, x: Array) -> Array:
    """Returns the table of rows, from the own ones."""
    if send is None:
        table = lax.all_gather(x.astype(way.wire), way.axis, axis=0, tiled=True)
        return table.astype(x.dtype)
    picked = jnp.take(x, send.reshape(-1), axis=0, mode="clip")
    return jnp.concatenate([x, way.swap(picked)])


def _give_back(way: _Way, send: Array | None, table: Array) -> Array:
    """Sums the table entries of all devices at their owners, in the order of the devices."""
    if send is None and way.wire == table.dtype.name:
        return lax.psum_scatter(table, way.axis, scatter_dimension=0, tiled=True)
    if send is None:  # rounded once to the wire's dtype, and summed in their own dtype
        parts = way.swap(table).reshape(way.devices, way.rows, *table.shape[1:])
        return jnp.sum(parts, axis=0)
    received = way.swap(table[way.rows :]).reshape(*send.shape, *table.shape[1:])

    def add(total, part):
        rows, values = part
        # Rows are distinct except for padding, which is dropped, so that results are reproducible.
        return total.at[rows].add(values, mode="drop"), None

    return lax.scan(add, table[: way.rows], (send, received))[0]


def _gather_records(way: _Way, send: Array | None, values: Array, columns: Array):
    """Returns the tables of values and of columns of compressed rows, by one collective.

    A record has the bytes of a row's values, in the dtype of the wire, and then of its columns.
    """
    on_wire = values.astype(way.wire)
    word = _common_word(on_wire, columns)
    parts = [_as_words(part, word) for part in (on_wire, columns)]
    width = parts[0].shape[-1]
    records = _gather(way._replace(wire=word), send, jnp.concatenate(parts, axis=-1))
    table = _from_words(records[..., :width], on_wire.dtype).astype(values.dtype)
    return table, _from_words(records[..., width:], columns.dtype)


def _common_word(*arrays: Array) -> str:
    """Returns the widest word in which the last axis of each array can be written."""
    sizes = [array.shape[-1] * array.dtype.itemsize for array in arrays]
    return next(f"uint{8 * n}" for n in (4, 2, 1) if not any(size % n for size in sizes))


def _as_words(x: Array, word: str) -> UInt[Array, "*rows words"]:
    """Returns the bytes of the last axis as words."""
    ratio = jnp.dtype(word).itemsize / x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], -1, int(ratio))
    words = lax.bitcast_convert_type(x, word)
    return words.reshape(*words.shape[:-2], -1) if ratio < 1 else words


def _from_words(words: UInt[Array, "*rows words"], dtype: jnp.dtype) -> Array:
    """Returns the array of this dtype whose last axis was written as words."""
    ratio = dtype.itemsize / words.dtype.itemsize
    if ratio > 1:
        words = words.reshape(*words.shape[:-1], -1, int(ratio))
    x = lax.bitcast_convert_type(words, dtype)
    return x.reshape(*x.shape[:-2], -1) if ratio < 1 else x


def _add_gradient(move: Callable[..., Any], back: Callable[..., tuple[Array | None, ...]]) -> Any:
    """``move`` of the way, the lists and rows, with gradients of the rows by ``back``."""

    @partial(custom_vjp, nondiff_argnums=(0,))
    def moved(way, send, *rows):
        return move(way, send, *rows)

    def forward(way, send, *rows):
        return moved(way, send, *rows), send

    def backward(way, send, gradient):
        return None, *back(way, send, gradient)

    moved.defvjp(forward, backward)
    return moved


_gathered = _add_gradient(_gather, lambda *given: (_returned(*given),))
_returned = _add_gradient(_give_back, lambda *given: (_gathered(*given),))
_records_gathered = _add_gradient(
    _gather_records, lambda way, send, tables: (_returned(way, send, tables[0]), None)
)
