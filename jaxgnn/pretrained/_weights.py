"""A model in one file: numbers by name, and what it is made with. No code is stored or run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgnn import models
from jaxgnn._errors import bad_input
from jaxgnn.datasets._file_errors import naming
from jaxgnn.datasets._files import parse_json
from jaxgnn.datasets._npy import read_npz

_DESCRIPTION = "description.json"
_PLAIN = str | int | float | None
_WIDTHS = ("features", "embedding_features", "num_layers")
_MOST = {"box": 16}
_NETWORKS = (
    "CandidateNetwork",
    "EquivariantRelationalNetwork",
    "RecurrentRelationalNetwork",
    "SudokuGNN",
)


def save_weights(
    path: str | os.PathLike[str], model: nnx.Module, options: Mapping[str, Any]
) -> None:
    """Writes the parameters of a model, with what it takes to make it again.

    Args:
      path: the file, an uncompressed ``.npz``.
      model: one of the Sudoku networks of ``jaxgnn.models``.
      options: keyword arguments of its class, without ``rngs``, that JSON can hold.

    Raises:
      ValueError: if the model is of another class, or has other parameters than one made with
        ``options``.
    """
    network = type(model).__name__
    if network not in _NETWORKS:
        raise bad_input("save_weights", "model", f"one of {', '.join(_NETWORKS)}", network)
    arrays = {name: np.asarray(leaf) for name, leaf in _named(model).items()}
    _check(f"save_weights: {network} with {dict(options)}", arrays, _make(network, options))
    description = json.dumps({"network": network, "options": dict(options)})
    content: dict[str, Any] = {_DESCRIPTION: np.array(description)} | arrays
    with open(path, "wb") as file:
        np.savez(file, **content)


def load_weights(path: str | os.PathLike[str], **options: Any) -> nnx.Module:
    """Makes the model of a file that ``save_weights`` has written.

    Args:
      path: the file.
      **options: keyword arguments of the model's class in the place of those of the file, such as
        ``dtype`` or ``implementation``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file, or does not fit the model that it names.
    """
    found = _read(Path(path))
    network, saved = _described(Path(path), found)
    with naming(Path(path), f"weights of a {network}"):
        model = _make(network, saved)
    if options:  # those of the caller, of which errors do not name the file
        model = _make(network, saved | options)
    found = _with_short_floats(found, _named(model))
    _check(str(path), found, model)
    graphdef, state = nnx.split(model)
    names, treedef = list(_named(model)), jax.tree.structure(state)
    return nnx.merge(
        graphdef, jax.tree.unflatten(treedef, [jax.numpy.asarray(found[n]) for n in names])
    )


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path, None, "weights that save_weights has written", short_floats=True)
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: expected an .npz file of arrays: {reason}") from error


def _described(path: Path, found: dict[str, np.ndarray]) -> tuple[str, dict[str, Any]]:
    """The network's class, and the options that it was made with; takes them out of the arrays."""
    try:
        description = parse_json(str(found.pop(_DESCRIPTION)))
        network, saved = description["network"], description["options"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: expected weights that save_weights has written") from None
    if network not in _NETWORKS:
        raise ValueError(
            f"{path}: expected one of {', '.join(_NETWORKS)}, got {str(network)[:80]!r}"
        )
    if not isinstance(saved, dict) or not all(isinstance(v, _PLAIN) for v in saved.values()):
        raise ValueError(f"{path}: expected options of {network} that are numbers or names")
    # What a network is made of is in the file; its sizes are tables that are made at once.
    most = dict.fromkeys(_WIDTHS, sum(array.size for array in found.values())) | _MOST
    for name, limit in most.items():
        if isinstance(saved.get(name), int | float) and saved[name] > limit:
            raise ValueError(
                f"{path}: {name} of {network} is {str(saved[name])[:80]}, expected at most {limit}"
            )
    return network, saved


def _make(network: str, options: Mapping[str, Any]) -> nnx.Module:
    """The model without numbers: shapes and dtypes alone."""
    return nnx.eval_shape(lambda: getattr(models, network)(**options, rngs=nnx.Rngs(0)))


def _named(model: nnx.Module) -> dict[str, Any]:
    """Dotted name -> array, or its shape and dtype."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(model)))
    return {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in leaves}


def _with_short_floats(
    arrays: dict[str, np.ndarray], expected: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Names the dtypes that NumPy's files know by their size alone, such as bfloat16."""
    named = {}
    for name, array in arrays.items():
        dtype = expected[name].dtype if name in expected else array.dtype
        is_short_float = array.dtype.kind == dtype.kind == "V"
        named[name] = array.view(dtype) if is_short_float else array
    return named


def _check(where: str, arrays: Mapping[str, np.ndarray], model: nnx.Module) -> None:
    """Complains about the first array that is not that of the model."""
    expected = {name: (leaf.dtype, leaf.shape) for name, leaf in _named(model).items()}
    got = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    for name in sorted(expected.keys() | got.keys()):
        if expected.get(name) != got.get(name):
            raise ValueError(
                f"{where}: {name} is {_type(got.get(name))}, expected {_type(expected.get(name))}"
            )


def _type(kind: tuple[Any, tuple[int, ...]] | None) -> str:
    return "absent" if kind is None else f"{kind[0]}{list(kind[1])}"
