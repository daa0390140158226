"""Arguments of training loops, and their checks before anything is compiled or written."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from flax import nnx

from jaxgnn._errors import bad_input

from ._config import LoopConfig
from .run import RunFolder

PyTree = Any

_BATCHES = (
    "a function of the step that returns its batch, a loader such as sampling.NeighborLoader, or a "
    "list of batches"
)


class Steps(Protocol):
    """Batches of successive steps, made ahead."""

    def __call__(self, step: int) -> PyTree:
        """Returns the batch of a step, counted from 1."""
        ...

    def close(self) -> None:
        """Ends what makes batches ahead."""
        ...


class Loader(Protocol):
    """A source of batches that ``fit`` takes, such as ``sampling.NeighborLoader``."""

    def steps(self, start: int) -> Steps:
        """Returns the batches of a training that begins with step ``start``."""
        ...


def check_training(
    where: str, model: Any, optimizer: Any, config: Any, functions: dict[str, Any]
) -> None:
    """Raises ValueError for arguments that are not of the kind that a training loop takes.

    Args:
      where: The public function.
      model: The model, which must be an ``nnx.Module``.
      optimizer: The optimizer, which must be a transformation of optax.
      config: The configuration, which must be a ``LoopConfig``.
      functions: Arguments that must be functions, by name; optional ones that are None are left
        out.
    """
    if not isinstance(model, nnx.Module):
        expected = "an nnx.Module, as an object"
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise bad_input(where, "model", expected, got)
    parts = (getattr(optimizer, name, None) for name in ("init", "update"))
    if isinstance(optimizer, nnx.Optimizer) or not all(map(callable, parts)):
        is_of_flax = isinstance(optimizer, nnx.Optimizer)
        got = "an nnx.Optimizer; pass its tx" if is_of_flax else type(optimizer).__name__
        expected = "a transformation of optax, such as optax.adam(1e-3)"
        raise bad_input(where, "optimizer", expected, got)
    if not isinstance(config, LoopConfig):
        raise bad_input(where, "config", "a training.LoopConfig", type(config).__name__)
    for name, function in functions.items():
        if not callable(function):
            raise bad_input(where, name, "a function", type(function).__name__)


def check_run(where: str, run: Any) -> None:
    """Raises ValueError unless ``run`` is a ``RunFolder`` or None."""
    if run is not None and not isinstance(run, RunFolder):
        expected = "a training.RunFolder or None"
        raise bad_input(where, "run", expected, f"{run!r:.80}; use RunFolder(path, config)")


def batch_function(batches: Any) -> Callable[[int], PyTree] | None:
    """Converts a list of batches, or a function, to a function of the step.

    A list is repeated in its order, so that the batch of a step depends on the step alone.

    Returns:
      The function; None for a loader, an object with ``steps``.

    Raises:
      ValueError: ``batches`` is neither, or an empty list.
    """
    if callable(getattr(batches, "steps", None)):
        return None
    if callable(batches):
        return batches
    if isinstance(batches, list):
        if not batches:
            raise bad_input("fit", "batches", _BATCHES, "an empty list")
        kept = list(batches)
        return lambda step: kept[(step - 1) % len(kept)]
    got = type(batches).__name__
    if isinstance(batches, Iterator):
        got = f"a {got}, which a resumed run can not repeat; make a list of it"
    elif isinstance(batches, tuple | dict) or hasattr(batches, "shape"):
        got = f"a {got}; for the same batch at every step, use lambda step: batch"
    raise bad_input("fit", "batches", _BATCHES, got)
