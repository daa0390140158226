"""Shared parts of layers on graphs and hypergraphs: dtypes, biases, and the mode of dropout."""

from __future__ import annotations

import inspect
from typing import Any, Unpack

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from jaxgnn.nn.shared.common_options import (
    CommonOptions,
    Settings,
    with_common_lines,
    with_common_options,
)
from jaxgnn.nn.shared.dropout import training_rngs


class Layer(nnx.Module):
    """Base class of layers on graphs and on hypergraphs.

    A layer is its formula: it names its own options, and has the common ones as ``**common``. Their
    checks, defaults and lines of ``Args:`` are defined in one place.

    Attributes:
      bias: bias that ``_biased`` adds, or None; layers without one need not set it.
      deterministic: None to drop entries when a call has ``rngs``; False, which ``train()`` sets,
        to require them; True, which ``eval()`` sets, to drop nothing.
    """

    bias: nnx.Param | None

    def __init_subclass__(cls, **options: Any):
        """Makes ``help`` and editors show the class with all of its options, without Flax's."""
        super().__init_subclass__(**options)
        signature = with_common_options(inspect.signature(cls.__init__))
        own = list(signature.parameters.values())[1:]
        cls.__signature__ = signature.replace(parameters=own)
        if vars(cls).get("__doc__"):
            cls.__doc__ = with_common_lines(str(cls.__doc__), signature.parameters)

    def __init__(self, *, dropout: float = 0.0, **common: Unpack[CommonOptions]):
        settings = Settings(**common)
        self.dropout_rate = dropout
        self.deterministic: bool | None = None
        self.implementation = settings.implementation
        self.dtype = settings.dtype
        self.param_dtype = settings.param_dtype

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _dtypes(self) -> dict[str, Any]:
        """The options of a linear layer with the dtypes of this one."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def _zeros(self, width: int, use_bias: bool = True) -> nnx.Param | None:
        """A bias of this width, or None."""
        return nnx.Param(jnp.zeros(width, self.param_dtype)) if use_bias else None

    def _biased(self, y: Array) -> Array:
        """Adds the layer's bias, if there is one, to the last axis of an array."""
        return y if self.bias is None else y + self.bias[...].astype(y.dtype)

    def _training_rngs(self, rngs: nnx.Rngs | None) -> nnx.Rngs | None:
        """The random streams of dropout, or None if nothing is dropped."""
        return training_rngs(self._name, self.deterministic, self.dropout_rate, rngs)
