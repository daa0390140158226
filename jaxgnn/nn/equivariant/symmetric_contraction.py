"""MACE's symmetric contraction: products of the features of a node with themselves."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irreps, MulIrrep, symmetric_couplings
from jaxgnn.equivariant.irreps import as_irreps
from jaxgnn.nn.equivariant.channels import check_features, check_species, one_hot_species
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.options import checked_options, int_at_least, one_of, or_none
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.eager import run_compiled
from jaxgnn.ops.shared import PRECISIONS

_kernel_init = nnx.initializers.normal(1.0)


class SymmetricContraction(DocumentedModule):
    """Weighted symmetric products of up to three copies of the features of a node, as in MACE.

    ``y[c] = Σ_ν Σ_p w_ν[p, c] U_ν[p] (x[c] ⊗ ⋯ ⊗ x[c])``, with ν from 1 to ``correlation`` factors:
    channel by channel, over all symmetric equivariant products U of
    ``equivariant.symmetric_couplings``. After a sum over neighbours these are the many-body
    features of MACE (https://arxiv.org/abs/2206.07697). With ``num_species`` each species has its
    own weights. They are drawn from a normal distribution of variance one and divided by the root
    of the number of paths.

    Entries of the input have one number of channels, and so have those of the output. Memory is
    that of ``channels · components^(correlation - 1)`` numbers for a node and output component.

    Args:
      irreps_in: irreps of the input, such as ``"16x0e+16x1o"``.
      irreps_out: irreps of the output.
      correlation: largest number of factors, 1, 2 or 3.
      num_species: number of species with weights of their own; None for the same weights of all
        rows.
      precision: products of float32 numbers in ``"highest"``, ``"tf32"`` or ``"bf16x3"``
        precision; None for the setting of JAX. A lower precision breaks the equivariance by its
        rounding.
      kernel_init: initialiser of the weights, of shape [paths, channels].

    Example:
      >>> layer = nn.SymmetricContraction(
      ...     "16x0e+16x1o", "16x0e+16x1o", num_species=2, rngs=nnx.Rngs(0)
      ... )
      >>> layer(jnp.ones((3, 64)), jnp.array([0, 1, 1])).shape
      (3, 64)
    """

    @checked_options(correlation=one_of(1, 2, 3), num_species=or_none(int_at_least(1)))
    def __init__(
        self,
        irreps_in: Irreps | str,
        irreps_out: Irreps | str,
        *,
        correlation: int = 3,
        num_species: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: ops.Precision | None = "highest",
        kernel_init: nnx.Initializer = _kernel_init,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        self.irreps_in = as_irreps(name, "irreps_in", irreps_in)
        self.irreps_out = as_irreps(name, "irreps_out", irreps_out)
        self.channels = _check_channels(name, self.irreps_in, self.irreps_out)
        self.correlation, self.num_species = correlation, num_species
        self.dtype = dtype
        self.precision: ops.Precision | None = precision
        of_one = Irreps(tuple(MulIrrep(1, entry.irrep) for entry in self.irreps_in))
        species = () if num_species is None else (num_species,)
        # Ordered by the entries of the output, then by the orders that have a path.
        self.kernels = nnx.List()
        self.products: tuple[_Products, ...] = ()
        for entry in self.irreps_out:
            products = _Products.from_entry(of_one, correlation, entry)
            if not products.orders:
                expected = f"of irreps of symmetric products of {self.irreps_in}"
                raise bad_input(name, "irreps_out", expected, f"{self.irreps_out}, with {entry}")
            self.products += (products,)
            for paths in products.num_paths:
                shape = (*species, paths, self.channels)
                self.kernels.append(nnx.Param(kernel_init(rngs.params(), shape, param_dtype)))

    def __call__(
        self,
        x: Float[Array, "*rows in"],
        species: Int[Array, "*rows"] | None = None,
    ) -> Float[Array, "*rows out"]:
        """Contracts the features in the last axis.

        Args:
          x: features of ``irreps_in``.
          species: species of each row, from 0, for a layer with ``num_species``. The result is NaN
            where one is out of range.
        """
        name = type(self).__name__
        x = check_features(name, x, self.irreps_in)
        species = check_species(name, species, self.num_species, x.shape[:-1])
        x, *kernels = promote_dtype((x, *(k[...] for k in self.kernels)), dtype=self.dtype)
        static = _Kind(self.irreps_in, self.channels, self.products, self.precision)
        return run_compiled(_apply, static, (x, kernels, species))


class _Products(NamedTuple):
    """The symmetric products of one entry of the output.

    Attributes:
      irreps: irreps of a factor, of one channel each.
      entry: the entry of the output.
      orders: numbers of factors of which there are products, ascending.
      num_paths: number of paths of each of these.
    """

    irreps: Irreps
    entry: MulIrrep
    orders: tuple[int, ...]
    num_paths: tuple[int, ...]

    @classmethod
    def from_entry(cls, irreps: Irreps, correlation: int, entry: MulIrrep) -> _Products:
        """Finds the products of up to ``correlation`` factors."""
        counts = {
            order: len(symmetric_couplings(irreps, order, entry.irrep))
            for order in range(1, correlation + 1)
        }
        nonzero = {order: count for order, count in counts.items() if count}
        return cls(irreps, entry, tuple(nonzero), tuple(nonzero.values()))

    def table(self, order: int) -> np.ndarray:
        """The tables of an order, with the factor of the number of all paths."""
        tables = symmetric_couplings(self.irreps, order, self.entry.irrep)
        return tables / math.sqrt(sum(self.num_paths))


class _Kind(NamedTuple):
    """Static description of a contraction."""

    irreps_in: Irreps
    channels: int
    products: tuple[_Products, ...]
    precision: ops.Precision | None


def _check_channels(name: str, irreps_in: Irreps, irreps_out: Irreps) -> int:
    """Returns the number of channels; ValueError unless all entries have it."""
    channels = irreps_in[0].multiplicity
    for argument, irreps in (("irreps_in", irreps_in), ("irreps_out", irreps_out)):
        if any(entry.multiplicity != channels for entry in irreps):
            expected = f"of {channels} channels in each entry, as the first of irreps_in"
            raise bad_input(name, argument, expected, str(irreps))
    return channels


def _apply(kind: _Kind, arguments: tuple[Array, list[Array], Array | None]) -> Array:
    """Computes the contraction, one entry of the output after the other."""
    x, kernels, species = arguments
    wide = x.astype(accumulation_dtype(x.dtype))
    entries = [
        wide[..., columns].reshape(*x.shape[:-1], kind.channels, entry.irrep.dim)
        for entry, columns in zip(kind.irreps_in, kind.irreps_in.slices, strict=True)
    ]
    factors = jnp.concatenate(entries, axis=-1)
    weights = [_row_weights(kernel.astype(wide.dtype), species) for kernel in kernels]
    parts = []
    for products in kind.products:
        count = len(products.orders)
        weights_of_orders, weights = weights[:count], weights[count:]
        contracted = _contracted(
            products, factors, dict(zip(products.orders, weights_of_orders, strict=True)), kind
        )
        parts.append(contracted.reshape(*x.shape[:-1], products.entry.dim))
    return jnp.concatenate(parts, axis=-1).astype(x.dtype)


def _row_weights(kernel: Array, species: Array | None) -> Float[Array, "*rows paths channels"]:
    """Returns the weights of each row by its species, or those of all rows without that axis."""
    if species is None:
        return kernel
    one_hot = one_hot_species(species, kernel.shape[0], kernel.dtype)
    return jnp.einsum("...s,spc->...pc", one_hot, kernel, precision="highest")


def _contracted(
    products: _Products,
    x: Float[Array, "*rows channels components"],
    weights: dict[int, Array],
    kind: _Kind,
) -> Float[Array, "*rows channels out"]:
    """``Σ_ν w_ν U_ν x^ν``, from the largest order down by Horner's rule.

    The tables of the largest order are multiplied by one factor. Then, order by order, the tables
    of the next smaller one are added, and the sum is multiplied by the next factor. So no table
    with an axis for each factor has an axis of channels, too.
    """
    options: dict[str, Any] = {"precision": PRECISIONS[kind.precision]}
    axes = "ijk"
    total: Array | None = None
    for order in range(max(products.orders), 0, -1):
        left = axes[: order - 1]  # Factors of these axes are multiplied later.
        last = axes[order - 1]
        if order in weights:
            table = jnp.asarray(products.table(order), x.dtype)
            if total is None:
                weighted = weights[order][..., None] * x[..., None, :, :]
                formula = f"...pc{last},p{left}{last}m->...c{left}m"
                total = jnp.einsum(formula, weighted, table, **options)
                continue
            formula = f"...pc,p{left}{last}m->...c{left}{last}m"
            total = total + jnp.einsum(formula, weights[order], table, **options)
        total = jnp.einsum(f"...c{left}{last}m,...c{last}->...c{left}m", total, x, **options)
    assert total is not None
    return total
