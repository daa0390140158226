"""What layers on graphs and on hypergraphs share: dtypes, biases, and the mode of dropout."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn.nn._dropout import training_rngs


class Settings(NamedTuple):
    """The options that all of these layers have.

    Attributes:
      dropout: probability of dropping an entry in training.
      implementation: name of the kernels of the sparse ops, or None.
      dtype: dtype of the computation, or None for the promoted dtype of input and parameters.
      param_dtype: dtype of the parameters.
    """

    dropout: float
    implementation: ops.Name | None
    dtype: DTypeLike | None
    param_dtype: DTypeLike


class Layer(nnx.Module):
    """Base class of layers on graphs and on hypergraphs.

    Attributes:
      bias: what ``_biased`` adds, or None; layers without one need not set it.
      deterministic: None to drop entries when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop nothing.
    """

    bias: nnx.Param | None

    def __init__(self, settings: Settings):
        self.dropout_rate = settings.dropout
        self.deterministic: bool | None = None
        self.implementation = settings.implementation
        self.dtype = settings.dtype
        self.param_dtype = settings.param_dtype

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _dtypes(self) -> dict[str, Any]:
        """The options of a linear layer of the dtypes of this one."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def _zeros(self, width: int, use_bias: bool = True) -> nnx.Param | None:
        """A bias of this width, or None."""
        return nnx.Param(jnp.zeros(width, self.param_dtype)) if use_bias else None

    def _biased(self, y: Array) -> Array:
        """The array with the layer's bias added to its last axis, if there is one."""
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)

    def _training_rngs(self, rngs: nnx.Rngs | None) -> nnx.Rngs | None:
        """The random streams of dropout, or None if nothing is dropped."""
        return training_rngs(self._name, self.deterministic, self.dropout_rate, rngs)
