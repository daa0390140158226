"""Linear maps of the channels of equivariant features."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irrep, Irreps
from jaxgnn.equivariant.irreps import as_irreps
from jaxgnn.nn.equivariant.channels import (
    channels_of,
    check_features,
    check_species,
    distinct_irreps,
    flattened,
    num_channels,
    one_hot_species,
)
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.options import checked_options, int_at_least, one_of, or_none
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.eager import run_compiled
from jaxgnn.ops.shared import PRECISIONS

_kernel_init = nnx.initializers.normal(1.0)


class EquivariantLinear(DocumentedModule):
    """A linear map of the channels of each irrep, also called self-interaction.

    ``y[v] = Σ_u W[u, v] x[u] / √(number of u)``, where u are all channels of x of the irrep of
    v, so components of variance one stay so. It is e3nn's ``Linear`` with its default
    normalisation. Weights are drawn from a normal distribution of variance one. No bias, which
    only scalars could have.

    With ``num_species`` each species has its own weights, as in the self-connection of NequIP
    (https://arxiv.org/abs/2101.03164), and a call takes the species of each row.

    Args:
      irreps_in: irreps of the input, such as ``"8x0e+4x1o"``.
      irreps_out: irreps of the output.
      num_species: number of species with weights of their own; None for the same weights of all
        rows.
      missing: ``"error"``, or ``"zeros"`` for entries of ``irreps_out`` whose irrep the input does
        not have: they are zero.
      precision: products of float32 numbers in ``"highest"``, ``"tf32"`` or ``"bf16x3"``
        precision; None for the setting of JAX. A lower precision breaks the equivariance by its
        rounding.
      kernel_init: initialiser of the weights, of shape [channels in, channels out].

    Example:
      >>> layer = nn.EquivariantLinear("8x0e+4x1o", "16x0e+2x1o", rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((3, 20))).shape
      (3, 22)
      >>> of_species = nn.EquivariantLinear("8x0e", "4x0e", num_species=2, rngs=nnx.Rngs(0))
      >>> of_species(jnp.ones((3, 8)), jnp.array([0, 1, 0])).shape
      (3, 4)
    """

    @checked_options(num_species=or_none(int_at_least(1)), missing=one_of("error", "zeros"))
    def __init__(
        self,
        irreps_in: Irreps | str,
        irreps_out: Irreps | str,
        *,
        num_species: int | None = None,
        missing: Literal["error", "zeros"] = "error",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: ops.Precision | None = "highest",
        kernel_init: nnx.Initializer = _kernel_init,
        rngs: nnx.Rngs,
    ):
        name = type(self).__name__
        self.irreps_in = as_irreps(name, "irreps_in", irreps_in)
        self.irreps_out = as_irreps(name, "irreps_out", irreps_out)
        self.num_species = num_species
        self.dtype = dtype
        self.precision: ops.Precision | None = precision
        available = distinct_irreps(self.irreps_in)
        wanted = distinct_irreps(self.irreps_out)
        absent = [irrep for irrep in wanted if irrep not in available]
        if absent and (missing == "error" or len(absent) == len(wanted)):
            expected = f"of irreps of the input, {self.irreps_in}"
            raise bad_input(name, "irreps_out", expected, f"{self.irreps_out}, with {absent[0]}")
        self.irreps = tuple(irrep for irrep in wanted if irrep in available)
        self.kernels = nnx.List(
            nnx.Param(_kernels(kernel_init, rngs, num_species, self._shape(irrep), param_dtype))
            for irrep in self.irreps
        )

    def __call__(
        self,
        x: Float[Array, "*rows in"],
        species: Int[Array, "*rows"] | None = None,
    ) -> Float[Array, "*rows out"]:
        """Applies the map to the last axis.

        Args:
          x: features of ``irreps_in``.
          species: species of each row, from 0, for a layer with ``num_species``. The result is NaN
            where one is out of range.
        """
        name = type(self).__name__
        x = check_features(name, x, self.irreps_in)
        species = check_species(name, species, self.num_species, x.shape[:-1])
        kernels = [kernel[...] for kernel in self.kernels]
        x, *kernels = promote_dtype((x, *kernels), dtype=self.dtype)
        static = _Map(self.irreps_in, self.irreps_out, self.irreps, self.precision)
        return run_compiled(_apply, static, (x, kernels, species))

    def _shape(self, irrep: Irrep) -> tuple[int, int]:
        return num_channels(self.irreps_in, irrep), num_channels(self.irreps_out, irrep)


class _Map(NamedTuple):
    """Static description of a map; ``irreps`` are those of its kernels."""

    irreps_in: Irreps
    irreps_out: Irreps
    irreps: tuple[Irrep, ...]
    precision: ops.Precision | None


def _kernels(
    init: nnx.Initializer,
    rngs: nnx.Rngs,
    num_species: int | None,
    shape: tuple[int, int],
    dtype: DTypeLike,
) -> Array:
    """Initialises the kernel, [in, out], or one for each species, [species, in, out]."""
    if num_species is None:
        return init(rngs.params(), shape, dtype)
    return jnp.stack([init(rngs.params(), shape, dtype) for _ in range(num_species)])


def _apply(linear: _Map, arguments: tuple[Array, list[Array], Array | None]) -> Array:
    """Applies the map to each irrep."""
    x, kernels, species = arguments
    mapped = {}
    for irrep, kernel in zip(linear.irreps, kernels, strict=True):
        part = channels_of(x, linear.irreps_in, irrep)
        mapped[irrep] = _mixed(part, kernel, species, linear.precision)
    return flattened(mapped, linear.irreps_out)


def _mixed(
    x: Float[Array, "*rows channels components"],
    kernel: Array,
    species: Array | None,
    precision: ops.Precision | None,
) -> Array:
    """Multiplies the channels of one irrep by its kernel, in the dtype of ``x``.

    With species, the channels of a row are put at the place of its species among those of all, so
    that their product is one of matrices.
    """
    dtype = accumulation_dtype(x.dtype)
    # Of 16-bit numbers, products of any precision are exact.
    options = {"precision": PRECISIONS[precision] if x.dtype == jnp.float32 else None}
    wide, kernel = x.astype(dtype), kernel.astype(dtype)
    if species is None:
        y = jnp.einsum("...ui,uv->...vi", wide, kernel, **options)
    else:
        one_hot = one_hot_species(species, kernel.shape[0], dtype)
        spread = one_hot[..., :, None, None] * wide[..., None, :, :]
        y = jnp.einsum("...sui,suv->...vi", spread, kernel, **options)
    return (y * x.shape[-2] ** -0.5).astype(x.dtype)
