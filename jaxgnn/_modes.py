"""Evaluation mode for models that the library runs for predictions; the caller's do not change."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxgnn._errors import bad_input


def in_evaluation_mode(model: Any) -> Any:
    """Returns a model in evaluation mode, as ``model.eval()`` sets it; the caller's is unchanged.

    The result shares the arrays of the model, and has variables of its own: it keeps the parameters
    that the model has now.

    Args:
      model: an ``nnx.Module``, a method of one, a ``functools.partial`` of them, or a list, tuple
        or dictionary of them. Anything else is returned as it is: a model that a function captures
        stays in its mode.
    """
    if _is_module(model):
        copy = _copied(model)
        copy.eval()
        return copy
    if isinstance(model, types.MethodType) and _is_module(model.__self__):
        return types.MethodType(model.__func__, in_evaluation_mode(model.__self__))
    if isinstance(model, functools.partial):
        func, args, keywords = map(in_evaluation_mode, (model.func, model.args, model.keywords))
        return type(model)(func, *args, **keywords)
    if type(model) is dict:
        return {name: in_evaluation_mode(part) for name, part in model.items()}
    if type(model) in (list, tuple):
        return type(model)(map(in_evaluation_mode, model))
    return model


def evaluated(model: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of a model in evaluation mode; a module is unchanged by its calls.

    A module that changes its state also in evaluation mode, such as one that counts its calls, has
    the same state in each call, which may be traced anywhere.
    """
    model = in_evaluation_mode(model)
    return (lambda *args, **kwargs: _copied(model)(*args, **kwargs)) if _is_module(model) else model


@contextmanager
def refusing_changes(where: str, argument: str) -> Iterator[None]:
    """Names a function whose trace changes the state of a model that it captures.

    Raises:
      ValueError: The block changes state of an object of Flax that was made outside of its trace.
    """
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "TraceContextError":  # Flax may not be imported.
            raise
        expected = (
            "a function that changes no model, as batch norm and dropout do in training mode; call "
            "model.eval() before"
        )
        got = f"one that does: {str(error).split(' (')[0]}"
        raise bad_input(where, argument, expected, got) from None


def _is_module(model: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")  # If Flax is not imported there are no modules.
    return nnx is not None and isinstance(model, nnx.Module)


def _copied(model: Any) -> Any:
    """A copy of a module with variables of its own, which have the same arrays."""
    nnx: Any = sys.modules["flax.nnx"]
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(lambda array: array, state))
