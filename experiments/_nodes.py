"""The loss of networks that classify nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax


def node_loss(logits: jax.Array, labels: jax.Array, counted: jax.Array) -> jax.Array:
    """Mean cross entropy of the nodes that count and have a label, binary where labels are tasks.

    Labels mean what they do in the scores of ``jaxgnn.training``: below zero, or NaN, a node (or
    one of its tasks) has none and is left out; one beyond the classes makes the loss NaN.

    Args:
      logits: [nodes, classes] or [nodes, tasks].
      labels: [nodes] class ids, or [nodes, tasks] of zeros and ones.
      counted: [nodes] bool.
    """
    labelled = labels >= 0  # which a NaN is not
    known = jnp.where(labelled, labels, 0)
    if labels.ndim == 2:
        losses = optax.sigmoid_binary_cross_entropy(logits, known)
        is_class = (known == 0) | (known == 1)
        counted = counted[:, None] & labelled
    else:
        is_class = known < logits.shape[-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, known)
        counted = counted & labelled
    losses = jnp.where(is_class, losses, jnp.nan)
    # The sum of the flags is one of integers, and exact.
    return jnp.sum(jnp.where(counted, losses, 0)) / jnp.sum(counted).astype(losses.dtype)
