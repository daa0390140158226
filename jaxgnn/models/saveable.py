"""Networks that keep the options of their constructor, so that a file can store them."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn.equivariant import Irreps

UNSAVED = "unsaved"
"""Key of the object that replaces an option that JSON can not hold."""

_DTYPES = ("dtype", "param_dtype")


def saveable[Network: type[nnx.Module]](network: Network) -> Network:
    """Decorates a network: its objects keep their options, except ``rngs``, as a text of JSON.

    The text is a static attribute. It includes defaults, so that later changes of defaults have no
    effect. Objects of subclasses do not keep it, since their options may differ.
    """
    init = network.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def keeping(self, *args, **options):
        init(self, *args, **options)
        if type(self) is network:
            bound = signature.bind(self, *args, **options)
            bound.apply_defaults()
            options_used = {n: v for n, v in list(bound.arguments.items())[1:] if n != "rngs"}
            self.made_with = json.dumps({name: _plain(name, v) for name, v in options_used.items()})

    network.__init__ = keeping
    return network


def _plain(name: str, value: Any) -> Any:
    """An option as JSON: dtypes by name, irreps as text, numbers, names, and sequences of them."""
    if name in _DTYPES and value is not None:
        return jnp.dtype(value).name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Irreps):
        return str(value)
    if isinstance(value, np.ndarray | jax.Array) and is_concrete(value):
        value = np.asarray(value).tolist()
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float):
        return value.item()
    if isinstance(value, tuple | list):
        parts = [_plain(name, part) for part in value]
    elif isinstance(value, set | frozenset):
        parts = sorted((_plain(name, part) for part in value), key=str)
    else:
        return {UNSAVED: type(value).__name__}
    lost = [part for part in parts if isinstance(part, dict)]
    return lost[0] if lost else parts
