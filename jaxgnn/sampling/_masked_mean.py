"""Mean over the seeds or pairs of a batch, of which a process may have none."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from jaxgnn._errors import bad_input


def masked_mean(
    values: Shaped[Array, "entries *rest"], mask: Bool[Array, " entries"]
) -> Float[Array, ""]:
    """Mean of the values where a mask is True; zero, with zero gradients, where it never is.

    It is the loss of a batch from the losses of its seeds or pairs,
    ``masked_mean(losses, batch.seed_mask)``. Of several processes, some may have no seeds in the
    last step of an epoch. ``jnp.mean(losses, where=batch.seed_mask)`` is NaN there, which ends the
    training of these processes alone.

    The mean over processes of such means weights each process equally, also one that has fewer
    seeds than the others. ``drop_last=True`` leaves out the only step where numbers differ.

    Args:
      values: losses, or what else is averaged, [entries, ...]; integers and bools count as float32.
      mask: False for entries that do not count, [entries], or of the shape of ``values``.

    Returns:
      A scalar, in the dtype of ``values`` if that is floating, summed in float32 at least.

    Raises:
      ValueError: if ``mask`` is not of bools, or has not the leading shape of ``values``.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([1.0, 3.0, jnp.nan])
      >>> masked_mean(losses, jnp.array([True, True, False])).item()
      2.0
      >>> masked_mean(losses, jnp.zeros(3, bool)).item()
      0.0
    """
    values, mask = jnp.asarray(values), jnp.asarray(mask)
    if mask.dtype != bool:
        raise bad_input("sampling.masked_mean", "mask", "of bools", f"dtype {mask.dtype}")
    if not mask.ndim or mask.shape != values.shape[: mask.ndim]:
        expected = f"of the leading shape of values, {values.shape}"
        raise bad_input("sampling.masked_mean", "mask", expected, f"shape {mask.shape}")
    dtype = values.dtype if jnp.issubdtype(values.dtype, jnp.floating) else jnp.dtype("float32")
    wide = dtype if dtype.itemsize > 4 else jnp.dtype("float32")
    entries = mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim))
    total = jnp.sum(jnp.where(entries, values.astype(wide), 0))
    count = jnp.sum(mask) * (values.size // max(mask.size, 1))
    # The count is at least one before it divides, or the gradient would be NaN.
    return (total / jnp.maximum(count, 1).astype(wide)).astype(dtype)
