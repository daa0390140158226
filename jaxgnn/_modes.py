"""Evaluation mode of networks that are handed to the library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jaxgnn._errors import bad_input


def in_evaluation_mode[M](model: M) -> M:
    """Returns a copy of a Flax module, or of a pytree of modules, in evaluation mode.

    The copy has the arrays of the model, whose mode and random streams stay as they are.

    Args:
      model: an ``nnx.Module``, or a pytree of arrays and modules.
    """
    from flax import nnx

    copy = nnx.merge(*nnx.split(model))
    for _, part in nnx.iter_graph(copy):
        if isinstance(part, nnx.Module):
            part.eval()
    return copy


@contextlib.contextmanager
def require_evaluation_mode(where: str, argument: str) -> Iterator[None]:
    """Raises ValueError if a module that a traced function only refers to changes its state.

    Dropout and batch norms do so in training mode. Such a module cannot be copied.

    Args:
      where: the public function.
      argument: the argument that has the function.
    """
    from flax.errors import TraceContextError

    try:
        yield
    except TraceContextError as error:
        expected = "in evaluation mode; call model.eval() on what the function refers to"
        got = "a module whose state changes"
        raise bad_input(where, argument, expected, got) from error
