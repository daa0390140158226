"""Checkpoints of a run, written atomically and restored exactly, or refused."""

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from jaxgnn._errors import require_regular_file

from ._orbax_errors import not_written, reason_of, without_late_reports
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
# Entries of the info of a checkpoint; those of earlier versions had only the first two.
_TYPES, _VALUES, _DIGESTS, _OWN_DIGEST = "types", "info", "digests", "sha256"


class Checkpoints:
    """The checkpoints in one folder; a context manager.

    A save returns when its folder is complete and renamed to its step number. So a process killed
    at any moment leaves the previous checkpoints unchanged, and at worst a temporary folder, which
    the next start removes.

    A checkpoint has a digest of each of its arrays. Arrays that are read are compared with it.

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
        """Writes a checkpoint with ``info``, for JSON, and removes the oldest beyond ``keep``.

        Raises:
          OSError: It can not be written, for example because the disk is full.
        """
        trees = _items(state, best)
        items: dict[str, ocp.args.CheckpointArgs] = {
            item: ocp.args.StandardSave(named(tree)) for item, tree in trees.items()
        }
        # Description of the saved arrays, to name a mismatch before orbax reads them.
        content = {
            _TYPES: {item: types(tree) for item, tree in trees.items()},
            _VALUES: info,
            _DIGESTS: {item: array_digests(tree) for item, tree in trees.items()},
        }
        items[_INFO] = ocp.args.JsonSave({**content, _OWN_DIGEST: json_digest(content)})
        try:
            with without_late_reports():
                is_saved = self._manager.save(step, args=ocp.args.Composite(**items))
        except Exception as error:  # TensorStore raises ValueError and others for a full disk
            raise not_written(self._path(step), error) from None
        if not is_saved:
            raise OSError(f"{self._path(step)} was not written")

    def restore(self, like: TrainState) -> tuple[TrainState, ModelState | None, dict[str, Any]]:
        """Reads the newest checkpoint: the state, the best model if there was one, and the info.

        The state has the structure, dtypes and placement of ``like``, one before its first step.

        Raises:
          ValueError: There is none, it cannot be read, or its arrays do not match ``like``; the
            message names the folder and the first field.
        """
        step, saved = self._read_info(None)
        best_like = like.model if _BEST in saved.types else None
        if (_AVERAGE in saved.types) != (like.average is not None):
            holds = "a" if _AVERAGE in saved.types else "no"
            raise ValueError(
                f"{self._path(step)} holds {holds} moving average of the "
                "parameters: it was written with another LoopConfig.ema_decay"
            )
        items = _items(like, best_like)
        if _REMAINDER not in saved.types:  # an old checkpoint without one starts with that of like
            items.pop(_REMAINDER, None)
        found = self._read_arrays(step, items, saved)
        average = found[_AVERAGE].params if _AVERAGE in found else None
        remainder = found.get(_REMAINDER, like.remainder)
        optimizer, updates = found[_OPTIMIZER]
        state = TrainState(found[_MODEL], optimizer, updates, average, remainder)
        return state, found.get(_BEST), saved.info

    def restore_model(self, like: ModelState, item: str, step: int | None) -> ModelState:
        """Reads the arrays of a model from the checkpoint of a step, or from the newest."""
        step, saved = self._read_info(step)
        if item not in saved.types:
            raise ValueError(f"{self._path(step)} holds no {item} model")
        if item != _AVERAGE:
            return self._read_arrays(step, {item: like}, saved)[item]
        average = ModelState(averages(like.params), like.other)
        params, other = self._read_arrays(step, {item: average}, saved)[item]
        return ModelState(rounded(params, like.params), other)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.close()

    def _path(self, step: int) -> str:
        """Name of a checkpoint, for errors."""
        return f"checkpoint {self.folder / str(step)}"

    def _read_info(self, step: int | None) -> tuple[int, "_Saved"]:
        steps = self._manager.all_steps()
        if not steps or step not in (None, *steps):
            wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
            raise ValueError(f"no {wanted} in {self.folder}; steps there: {sorted(steps)}")
        step = max(steps) if step is None else step
        content = self._read(step, {_INFO: ocp.args.JsonRestore()})[_INFO]
        saved = _Saved.of(content)
        if saved is None:
            got = "an object of types and info with its digest, got"
            raise self._unreadable(step, _INFO, f"expected {got} {content!r:.80}")
        if saved.digests is None:
            warnings.warn(
                f"{self._path(step)} was written by a version without checksums: damage of its "
                "files can not be detected",
                stacklevel=4,
            )
        return step, saved

    def _read_arrays(
        self, step: int, like: dict[str, PyTree], saved: "_Saved"
    ) -> dict[str, PyTree]:
        requests = {}
        for item, tree in like.items():
            difference = first_difference(saved.types[item], types(tree))
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
        if saved.digests is not None:
            for item in like:
                self._compare(step, item, array_digests(found[item]), saved.digests[item])
        return {
            item: jax.tree.unflatten(
                jax.tree.structure(tree),
                [_placed_like(found[item][name], leaf) for name, leaf in named(tree).items()],
            )
            for item, tree in like.items()
        }

    def _compare(
        self, step: int, item: str, digests: dict[str, str], expected: dict[str, str]
    ) -> None:
        """Raises ValueError if an array that was read is not the one that was saved."""
        damaged = [name for name, digest in digests.items() if expected.get(name) != digest]
        if damaged:
            reason = f"{damaged[0]} is not what was saved, as its checksum shows; a file is damaged"
            raise self._unreadable(step, item, reason)

    def _read(self, step: int, requests: dict[str, Any]) -> Any:
        for path in sorted((self.folder / str(step)).rglob("*")):
            if not path.is_dir():
                require_regular_file(path, "a file of a checkpoint")
        try:
            with without_late_reports():
                return self._manager.restore(step, args=ocp.args.Composite(**requests))
        except Exception as error:  # TensorStore raises bare exceptions for damaged files
            raise self._unreadable(step, ", ".join(requests), reason_of(error)) from error

    def _unreadable(self, step: int, items: str, reason: str) -> ValueError:
        """The error about a damaged checkpoint; it names an earlier one, if there is one."""
        earlier = [other for other in self._manager.all_steps() if other < step]
        advice = f"; remove it to resume from step {max(earlier)}" if earlier else ""
        return ValueError(f"{self._path(step)} cannot be read ({items}): {reason}{advice}")


class _Saved(NamedTuple):
    """The info of a checkpoint.

    Attributes:
      types: Dtype and shape of each array, by item and name.
      info: Values of the caller.
      digests: Digest of each array, by item and name; None in checkpoints of earlier versions.
    """

    types: dict[str, dict[str, str]]
    info: dict[str, Any]
    digests: dict[str, dict[str, str]] | None

    @classmethod
    def of(cls, content: Any) -> "_Saved | None":
        """Reads the content of the file; None unless it is whole."""
        if not isinstance(content, dict):
            return None
        parts = {**content}
        digest = parts.pop(_OWN_DIGEST, None)
        expected = {_TYPES, _VALUES} if digest is None else {_TYPES, _VALUES, _DIGESTS}
        is_whole = parts.keys() == expected and digest in (None, json_digest(parts))
        if not is_whole or not all(isinstance(part, dict) for part in parts.values()):
            return None
        return cls(parts[_TYPES], parts[_VALUES], parts.get(_DIGESTS))


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
      ValueError: There is no such checkpoint, its arrays do not match ``model``, or a file of it is
        damaged: the arrays that are read are compared with the checksums of those that were saved.

    Warns:
      UserWarning: The checkpoint is of a version of the library that wrote no checksums.
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


# Orbax stores arrays without checksums, and a byte that changes in a file may decode to other
# numbers. Digests are those of the arrays, not of files: they do not depend on the number of
# devices or processes that hold an array, nor on the files into which orbax divides it.


def array_digests(tree: PyTree) -> dict[str, str]:
    """SHA-256 of the bytes of each array of a pytree, by dotted name, in hexadecimal digits."""
    return {
        name: hashlib.sha256(_bytes_of(array)).hexdigest() for name, array in named(tree).items()
    }


def json_digest(content: Any) -> str:
    """SHA-256 of a value of JSON, in hexadecimal digits, for any order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bytes_of(array: jax.Array) -> Any:
    """The values of an array in C order, as a buffer of bytes."""
    data = jax.random.key_data(array) if is_key(array) else array
    if not data.is_fully_addressable:
        is_whole = data.is_fully_replicated
        data = (
            data.addressable_data(0) if is_whole else multihost_utils.process_allgather(data, True)
        )
    return np.ascontiguousarray(np.asarray(data)).reshape(-1).view(np.uint8).data
