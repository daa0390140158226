"""The optimiser of the experiments that train for a fixed number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax


def matrices(params: Any) -> Any:
    """Returns a mask of the parameters that decay: matrices, but not scales, gates or biases."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def warmed_adamw(
    learning_rate: float,
    steps: int,
    *,
    warm_up: int,
    last: float,
    b2: float,
    weight_decay: float,
    decayed: Callable[[Any], Any] = matrices,
) -> optax.GradientTransformation:
    """AdamW on clipped gradients; its rate rises from zero and then falls along a cosine.

    Args:
      learning_rate: the highest learning rate.
      steps: number of steps of the whole run.
      warm_up: number of steps in which the rate rises.
      last: the rate at the end, as a fraction of the highest.
      b2: decay of AdamW's average of squared gradients.
      weight_decay: weight decay of AdamW.
      decayed: function from the parameters to a mask of those that decay.
    """
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=learning_rate,
        warmup_steps=warm_up,
        decay_steps=steps,
        end_value=last * learning_rate,
    )
    adamw = optax.adamw(rate, b2=b2, weight_decay=weight_decay, mask=decayed)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)
