"""CBSR: compressed rows with a fixed number of entries, the output of MaxK."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt

from jaxgnn._arrays.arrays import KeepsArrays, is_concrete
from jaxgnn._errors import bad_input


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class CBSR(KeepsArrays):
    """Compressed balanced sparse rows: ``k`` values and their column ids per row.

    Column ids are distinct and ascending within a row. They are stored in the smallest unsigned
    type that holds ``dim - 1``: uint8 up to 256 columns, uint16 up to 65,536, uint32 beyond.
    Ops ignore entries whose id is out of range, unless it is known that there are none;
    ``validate`` finds them in rows that were not computed by an op. See "MaxK-GNN: Extremely Fast
    GPU Kernel Design for Accelerating Graph Neural Networks Training"
    (https://arxiv.org/abs/2312.08656).

    Attributes:
      values: kept entries, [*batch, rows, k].
      indices: column of each kept entry, [*batch, rows, k].
      dim: number of columns of the dense matrix.
      in_range: whether the ids are known to be below ``dim``: an op computed them, or ``validate``
        checked them.
    """

    values: Float[Array, "*batch rows k"]
    indices: UInt[Array, "*batch rows k"]
    dim: int = field(metadata={"static": True})
    in_range: bool = field(default=False, metadata={"static": True})

    @property
    def k(self) -> int:
        """Number of kept entries per row."""
        return self.values.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense matrix."""
        return (*self.values.shape[:-1], self.dim)

    @property
    def dtype(self) -> jnp.dtype:
        """Dtype of the values."""
        return self.values.dtype

    def todense(self) -> Float[Array, "*batch rows dim"]:
        """Returns the dense matrix, zeros where nothing was kept.

        Raises:
          ValueError: if ``indices`` does not have the shape of ``values``.
        """
        self._check_shapes()
        flat_values = self.values.reshape(-1, self.k)
        flat_columns = self.indices.reshape(-1, self.k).astype(jnp.int32)
        rows = jnp.arange(flat_values.shape[0])[:, None]
        dense = jnp.zeros((flat_values.shape[0], self.dim), self.dtype)
        dense = dense.at[rows, flat_columns].set(flat_values, unique_indices=True)
        return dense.reshape(self.shape)

    def validate(self) -> CBSR:
        """Checks shapes, dtypes and values on the host, returns itself; call it outside ``jit``.

        Raises:
          ValueError: names the first bad entry: ``indices`` of another shape than ``values`` or not
            of the dtype for ``dim``, a column id that is not below ``dim``, or ids of a row that
            are not strictly ascending.
        """
        if not is_concrete(self.values, self.indices):
            raise bad_input("CBSR.validate", "self", "concrete; call it outside jit", "a tracer")
        self._check_shapes(least_axes=2)
        if not jnp.issubdtype(self.values.dtype, jnp.floating):
            raise bad_input("CBSR", "values", "of a floating dtype", self.values.dtype)
        if self.indices.dtype != column_dtype(self.dim):
            expected = f"{column_dtype(self.dim)} for dim = {self.dim}"
            raise bad_input("CBSR", "indices", expected, self.indices.dtype)
        columns = np.asarray(self.indices).astype(np.int64)
        outside = columns >= self.dim
        if outside.any():
            at = tuple(int(i) for i in np.argwhere(outside)[0])
            raise bad_input("CBSR", f"indices{list(at)}", f"below dim = {self.dim}", columns[at])
        unordered = np.diff(columns, axis=-1) <= 0
        if unordered.any():
            at = tuple(int(i) for i in np.argwhere(unordered)[0])
            row = columns[at[:-1]].tolist()
            raise bad_input("CBSR", f"indices{list(at[:-1])}", "strictly ascending", row)
        object.__setattr__(self, "in_range", True)
        return self

    def _check_shapes(self, least_axes: int = 1) -> None:
        if self.indices.shape != self.values.shape or self.values.ndim < least_axes:
            expected = f"of the shape [..., rows, k] of the values, {self.values.shape}"
            raise bad_input("CBSR", "indices", expected, self.indices.shape)


def column_dtype(dim: int) -> np.dtype:
    """Smallest unsigned dtype that holds every column id below ``dim``."""
    if dim <= 2**8:
        return np.dtype(np.uint8)
    return np.dtype(np.uint16) if dim <= 2**16 else np.dtype(np.uint32)


def bounded_rows(cbsr: CBSR) -> CBSR:
    """Compressed rows with all columns in range: entries out of range count as zeros."""
    if cbsr.in_range:
        return cbsr
    columns = jnp.asarray(cbsr.indices)
    if cbsr.dim <= np.iinfo(columns.dtype).max:
        exists = columns < cbsr.dim
        # As columns ascend, those up to the first free one are at the place of their number.
        taken = lax.cumprod(
            (columns == jnp.arange(cbsr.k, dtype=columns.dtype)).astype(jnp.int32), columns.ndim - 1
        )
        free = jnp.sum(taken, -1, keepdims=True).clip(0, cbsr.dim - 1).astype(columns.dtype)
        values = jnp.where(exists, cbsr.values, 0)
        cbsr = dataclasses.replace(cbsr, values=values, indices=jnp.where(exists, columns, free))
    return dataclasses.replace(cbsr, in_range=True)
