"""Channels of equivariant features: all of one irrep as an array, and back to the flat layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.equivariant import Irrep, Irreps


def distinct_irreps(irreps: Irreps) -> tuple[Irrep, ...]:
    """Returns each irrep once, in the order of the entries."""
    return tuple(dict.fromkeys(entry.irrep for entry in irreps))


def num_channels(irreps: Irreps, irrep: Irrep) -> int:
    """Returns the number of channels of an irrep, in all of its entries."""
    return sum(entry.multiplicity for entry in irreps if entry.irrep == irrep)


def channels_of(
    x: Float[Array, "*rows in"], irreps: Irreps, irrep: Irrep
) -> Float[Array, "*rows channels components"]:
    """Returns all channels of an irrep, in the order of the entries."""
    parts = [
        x[..., columns].reshape(*x.shape[:-1], entry.multiplicity, irrep.dim)
        for entry, columns in zip(irreps, irreps.slices, strict=True)
        if entry.irrep == irrep
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-2)


def flattened(
    channels: Mapping[Irrep, Float[Array, "*rows channels components"]], irreps: Irreps
) -> Float[Array, "*rows out"]:
    """Returns features of these irreps from all channels of each; the inverse of ``channels_of``.

    Irreps without channels in the mapping are zero.
    """
    like = next(iter(channels.values()))
    rows, parts, used = like.shape[:-2], [], dict.fromkeys(channels, 0)
    for entry in irreps:
        if entry.irrep not in channels:
            parts.append(jnp.zeros((*rows, entry.dim), like.dtype))
            continue
        start = used[entry.irrep]
        used[entry.irrep] = end = start + entry.multiplicity
        entry_channels = channels[entry.irrep][..., start:end, :]
        parts.append(entry_channels.reshape(*rows, entry.dim))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def check_features(where: str, x: Any, irreps: Irreps) -> Array:
    """Returns features as an array of JAX.

    Raises:
      ValueError: if they are not floating [..., irreps.dim].
    """
    x = as_jax(where, "x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise bad_input(where, "x", "of a floating dtype", x.dtype)
    if x.ndim < 1 or x.shape[-1] != irreps.dim:
        expected = f"of shape [..., {irreps.dim}], for irreps_in {irreps}"
        raise bad_input(where, "x", expected, f"shape {x.shape}")
    return x


def check_species(where: str, species: Any, num_species: int | None, rows: Any) -> Any:
    """Returns species as an array of JAX, or None for a layer without weights for each of them.

    Raises:
      ValueError: if they are given to such a layer, or are no integers, one for each row.
    """
    if num_species is None:
        if species is not None:
            expected = "None for a layer without num_species"
            raise bad_input(where, "species", expected, f"shape {jnp.shape(species)}")
        return None
    expected = f"integers of shape {list(rows)}, a species for each row of x"
    if species is None:
        raise bad_input(where, "species", expected, None)
    species = as_jax(where, "species", species)
    if species.shape != rows or not jnp.issubdtype(species.dtype, jnp.integer):
        raise bad_input(where, "species", expected, f"{species.dtype}{list(species.shape)}")
    return species


def one_hot_species(
    species: Int[Array, "*rows"], num_species: int, dtype: Any
) -> Float[Array, "*rows species"]:
    """Returns 1 at the species of each row and 0 elsewhere; NaN where a species is out of range."""
    is_own = species[..., None] == jnp.arange(num_species, dtype=species.dtype)
    is_known = (species >= 0) & (species < num_species)
    return jnp.where(is_known[..., None], is_own.astype(dtype), jnp.asarray(jnp.nan, dtype))
