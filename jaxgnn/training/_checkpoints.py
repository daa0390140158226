"""Checkpoints of a run, written atomically and restored exactly."""

import os
from pathlib import Path
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from orbax.checkpoint import checkpoint_managers

from jaxgnn._errors import require_regular_file

from ._step import (
    ModelState,
    PyTree,
    TrainState,
    averages,
    first_difference,
    is_key,
    merge_model,
    named,
    rounded,
    split_model,
    types,
)

# Separate items of orbax, so that a model can be loaded without an optimizer.
_MODEL, _OPTIMIZER, _BEST, _INFO = "model", "optimizer", "best", "info"
_AVERAGE, _REMAINDER = "average", "average_remainder"


class Checkpoints:
    """The checkpoints in one folder; a context manager.

    A save returns when its folder is complete and renamed to its step number. So a process killed
    at any moment leaves the previous checkpoints unchanged, and at worst a temporary folder, which
    the next start removes.

    Args:
      folder: Absolute path, created if missing.
      keep: Number of newest checkpoints to keep; None opens the folder only for reading, which
        does not disturb another process that writes there.
    """

    def __init__(self, folder: Path, keep: int | None):
        self.folder = folder
        if keep is None:
            policy: dict[str, Any] = {"create": False}
        else:
            policy = {
                "preservation_policy": checkpoint_managers.LatestN(keep),
                "cleanup_tmp_directories": True,
            }
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False, **policy)
        self._manager = ocp.CheckpointManager(folder, options=options)

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(
        self, step: int, state: TrainState, best: ModelState | None, info: dict[str, Any]
    ) -> None:
        """Writes a checkpoint with ``info``, for JSON, and removes the oldest beyond ``keep``."""
        trees = _items(state, best)
        items: dict[str, ocp.args.CheckpointArgs] = {
            item: ocp.args.StandardSave(named(tree)) for item, tree in trees.items()
        }
        # Description of the saved arrays, to name a mismatch before orbax reads them.
        saved = {item: types(tree) for item, tree in trees.items()}
        items[_INFO] = ocp.args.JsonSave({"types": saved, "info": info})
        if not self._manager.save(step, args=ocp.args.Composite(**items)):
            raise RuntimeError(f"checkpoint {self.folder / str(step)} was not written")

    def restore(self, like: TrainState) -> tuple[TrainState, ModelState | None, dict[str, Any]]:
        """Reads the newest checkpoint: the state, the best model if there was one, and the info.

        The state has the structure, dtypes and placement of ``like``, one before its first step.

        Raises:
          ValueError: There is none, it cannot be read, or its arrays do not match ``like``; the
            message names the folder and the first field.
        """
        step, saved, info = self._read_info(None)
        best_like = like.model if _BEST in saved else None
        if (_AVERAGE in saved) != (like.average is not None):
            holds = "a" if _AVERAGE in saved else "no"
            raise ValueError(
                f"checkpoint {self.folder / str(step)} holds {holds} moving average of the "
                "parameters: it was written with another LoopConfig.ema_decay"
            )
        items = _items(like, best_like)
        if _REMAINDER not in saved:  # an old checkpoint without one starts with that of ``like``
            items.pop(_REMAINDER, None)
        found = self._read_arrays(step, items, saved)
        average = found[_AVERAGE].params if _AVERAGE in found else None
        remainder = found.get(_REMAINDER, like.remainder)
        optimizer, updates = found[_OPTIMIZER]
        state = TrainState(found[_MODEL], optimizer, updates, average, remainder)
        return state, found.get(_BEST), info

    def restore_model(self, like: ModelState, item: str, step: int | None) -> ModelState:
        """Reads the arrays of a model from the checkpoint of a step, or from the newest."""
        step, saved, _ = self._read_info(step)
        if item not in saved:
            raise ValueError(f"checkpoint {self.folder / str(step)} holds no {item} model")
        if item != _AVERAGE:
            return self._read_arrays(step, {item: like}, saved)[item]
        average = ModelState(averages(like.params), like.other)
        params, other = self._read_arrays(step, {item: average}, saved)[item]
        return ModelState(rounded(params, like.params), other)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.close()

    def _read_info(self, step: int | None) -> tuple[int, dict[str, dict[str, str]], dict[str, Any]]:
        steps = self._manager.all_steps()
        if not steps or step not in (None, *steps):
            wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
            raise ValueError(f"no {wanted} in {self.folder}; steps there: {sorted(steps)}")
        step = max(steps) if step is None else step
        content = self._read(step, {_INFO: ocp.args.JsonRestore()})[_INFO]
        parts = content if isinstance(content, dict) else {}
        saved, info = parts.get("types"), parts.get("info")
        if not isinstance(saved, dict) or not isinstance(info, dict):
            raise ValueError(
                f"checkpoint {self.folder / str(step)} cannot be read ({_INFO}): expected an "
                f"object of types and info, got {content!r:.80}"
            )
        return step, saved, info

    def _read_arrays(
        self, step: int, like: dict[str, PyTree], saved: dict[str, dict[str, str]]
    ) -> dict[str, PyTree]:
        requests = {}
        for item, tree in like.items():
            difference = first_difference(saved[item], types(tree))
            if difference:
                name, there, wanted = difference
                raise ValueError(
                    f"{self.folder / str(step) / item} does not fit: {name} is {there} there, "
                    f"expected {wanted}"
                )
            leaves = {
                name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
                for name, leaf in named(tree).items()
            }
            requests[item] = ocp.args.StandardRestore(leaves)
        found = self._read(step, requests)
        return {
            item: jax.tree.unflatten(
                jax.tree.structure(tree),
                [_placed_like(found[item][name], leaf) for name, leaf in named(tree).items()],
            )
            for item, tree in like.items()
        }

    def _read(self, step: int, requests: dict[str, Any]) -> Any:
        for path in sorted((self.folder / str(step)).rglob("*")):
            if not path.is_dir():
                require_regular_file(path, "a file of a checkpoint")
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**requests))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"checkpoint {self.folder / str(step)} cannot be read ({', '.join(requests)}): "
                f"{error}"
            ) from error


def load_model[M: nnx.Module](
    path: str | os.PathLike[str],
    model: M,
    *,
    which: Literal["last", "best", "average"] = "last",
    step: int | None = None,
) -> M:
    """Loads a trained model from a run's folder, without its optimizer.

    Args:
      path: The run's folder, ``RunFolder.path``.
      model: A model with the structure of the trained one; it is not changed.
      which: The model at the checkpoint, the best model up to there, or the model with the
        moving average of the parameters, for a run with ``LoopConfig.ema_decay``.
      step: Step of the checkpoint; None for the newest.

    Returns:
      A new model. Its arrays have the placement of those of ``model``.

    Raises:
      ValueError: There is no such checkpoint, or its arrays do not match ``model``.
    """
    items = {"last": _MODEL, "best": _BEST, "average": _AVERAGE}
    if which not in items:
        raise ValueError(f"load_model: which: expected 'last', 'best' or 'average', got {which!r}")
    folder = Path(path).absolute() / "checkpoints"
    if not folder.is_dir():
        raise ValueError(f"load_model: no checkpoint in {folder}")
    graphdef, like = split_model(model)
    with Checkpoints(folder, keep=None) as checkpoints:
        return merge_model(graphdef, checkpoints.restore_model(like, items[which], step))


def _items(state: TrainState, best: ModelState | None) -> dict[str, PyTree]:
    items = {_MODEL: state.model, _OPTIMIZER: (state.optimizer, state.step)}
    if state.average is not None:
        items[_AVERAGE] = ModelState(state.average, state.model.other)
    if state.remainder is not None:
        items[_REMAINDER] = state.remainder
    return items if best is None else {**items, _BEST: best}


def _placed_like(array: jax.Array, like: jax.Array) -> jax.Array:
    """Makes ``array`` uncommitted to a device if ``like`` is.

    Orbax commits every array to a device. JAX moves an uncommitted array to the devices of the
    batch. A committed one beside a batch on several devices is an error, only after a resume.
    """
    if like.committed:
        return array
    if is_key(array):
        data = jnp.array(np.asarray(jax.random.key_data(array)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    return jnp.array(np.asarray(array))
