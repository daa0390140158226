"""A model in one file: arrays by name, and its options. No code is stored or run."""

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
from jaxgnn._version import __version__
from jaxgnn.datasets.formats.file_errors import naming
from jaxgnn.datasets.formats.files import parse_json
from jaxgnn.datasets.formats.npy import read_npz
from jaxgnn.models.saveable import UNSAVED

NETWORKS = (
    "CandidateNetwork",
    "CausalLM",
    "EncodeProcessDecode",
    "EquivariantRelationalNetwork",
    "ExpertGraphLM",
    "GCNII",
    "GraphTransformer",
    "HypergraphGNN",
    "MaxKGNN",
    "NequIP",
    "PaiNN",
    "RecurrentRelationalNetwork",
    "SchNet",
    "SudokuGNN",
)
"""Classes of ``jaxgnn.models`` that a file may contain."""

_SUDOKU_NETWORKS = (
    "CandidateNetwork",
    "EquivariantRelationalNetwork",
    "RecurrentRelationalNetwork",
    "SudokuGNN",
)
_DESCRIPTION = "description.json"
_FORMAT = 1
_PLAIN = str | int | float | None
# Options that may be sequences.
_LISTS = ("k", "radial_features", "species_scale", "species_shift", "strategy")
# Limits of sizes that determine tables, which are built before the arrays of a file are checked.
_MAX_SIZES = {
    "box": 16,
    "num_layers": 4096,
    "num_steps": 4096,
    "coupler_layers": 4096,
    "num_experts": 128,
    "num_interactions": 4096,
}
_DTYPES = ("float16", "bfloat16", "float32", "float64")
# The docs have it too, in docs/guides/serving.md.
_RECIPE = """; the arrays of a network of your own are written, and read by the same class, so:

    def arrays_of(network):
        return nnx.to_pure_dict(nnx.state(network, nnx.Not(nnx.RngState)))

    Path("network.msgpack").write_bytes(flax.serialization.to_bytes(arrays_of(network)))

    data = Path("network.msgpack").read_bytes()
    nnx.update(again, flax.serialization.from_bytes(arrays_of(again), data))
"""
# Options that files of earlier versions lack, with what these versions did.
_EARLIER: dict[str, dict[str, Any]] = {
    network: {"subtract_lone_atoms": False} for network in ("NequIP", "PaiNN", "SchNet")
}
# Options that are no sizes; steps are one where each has parameters of its own.
_NO_SIZES = ("cutoff", "num_steps", "recompute_every", "species_scale", "species_shift")
_STEPS_ARE_SIZES = ("EncodeProcessDecode",)


def save_model(path: str | os.PathLike[str], model: nnx.Module) -> None:
    """Writes a network of ``jaxgnn.models`` to a file, from which ``load_model`` restores it.

    The file has the name of its class, its options, and its arrays.

    Args:
      path: the file, an uncompressed ``.npz``.
      model: the network; its training or evaluation mode is not stored.

    Raises:
      ValueError: if the model is none of the networks of ``jaxgnn.models``, with the lines that
        write the arrays of another class; or if it was made with something that is neither a number
        nor a name, such as an ``Incidence``.

    Example:
      >>> import os, tempfile, jaxgnn
      >>> from flax import nnx
      >>> from jaxgnn.models import MaxKGNN
      >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
      >>> jaxgnn.save_model(path, MaxKGNN(8, 32, 5, k=4, rngs=nnx.Rngs(0)))
      >>> type(jaxgnn.load_model(path)).__name__
      'MaxKGNN'
    """
    network = type(model).__name__
    if network not in NETWORKS or type(model) is not getattr(models, network):
        expected = f"one of jaxgnn.models, behind the path: {', '.join(NETWORKS)}"
        raise ValueError(f"{bad_input('save_model', 'model', expected, network)}{_RECIPE}")
    saveable: Any = model
    options = json.loads(saveable.made_with)
    for name, value in options.items():
        if isinstance(value, dict):
            expected = "made of numbers and names, which a file can hold"
            raise bad_input("save_model", f"model: its option {name}", expected, value[UNSAVED])
    _write("save_model", path, model, options)


def load_model(path: str | os.PathLike[str], **options: Any) -> nnx.Module:
    """Creates the network of a file written by ``save_model``.

    Nothing in the file is executed. Its options must be those of a class of ``jaxgnn.models``, and
    its arrays must have the names, shapes and dtypes of that class with these options.

    Args:
      path: the file.
      **options: keyword arguments of the network's class that replace those of the file, such as
        ``dtype`` or ``implementation``.

    Returns:
      The network, like a new one: the ``rngs`` of a call determine dropout, until ``train()`` or
      ``eval()`` is called.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file, is truncated or of a newer format, names another class
        or other options, or has missing or mismatched arrays. Names the file.
    """
    return _read(Path(path), options, NETWORKS, "a model that save_model has written")


def save_weights(
    path: str | os.PathLike[str], model: nnx.Module, options: Mapping[str, Any]
) -> None:
    """Writes the parameters of a model, with its options.

    Args:
      path: the file, an uncompressed ``.npz``.
      model: one of the Sudoku networks of ``jaxgnn.models``.
      options: keyword arguments of its class, without ``rngs``, of types that JSON supports.

    Raises:
      ValueError: if the model is of another class, or its parameters do not match
        ``options``.
    """
    network = type(model).__name__
    if network not in _SUDOKU_NETWORKS:
        raise bad_input("save_weights", "model", f"one of {', '.join(_SUDOKU_NETWORKS)}", network)
    _write("save_weights", path, model, options)


def load_weights(path: str | os.PathLike[str], **options: Any) -> nnx.Module:
    """Creates the model of a file written by ``save_weights``.

    Args:
      path: the file; a file of ``save_model`` with a Sudoku network is supported too.
      **options: keyword arguments of the model's class that replace those of the file, such as
        ``dtype`` or ``implementation``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file, or does not fit the model that it names.
    """
    return _read(Path(path), options, _SUDOKU_NETWORKS, "weights that save_weights has written")


def _write(
    where: str, path: str | os.PathLike[str], model: nnx.Module, options: Mapping[str, Any]
) -> None:
    """Writes a model; raises ValueError if its class and these options could not restore it."""
    network = type(model).__name__
    arrays = {name: np.asarray(leaf) for name, leaf in _named(model).items()}
    _check_sizes(where, network, options, arrays)
    _check(f"{where}: {network} with {dict(options)}", arrays, _make(network, options))
    described = {"format": _FORMAT, "jaxgnn": __version__, "network": network}
    description = json.dumps(described | {"options": dict(options)})
    content: dict[str, Any] = {_DESCRIPTION: np.array(description)} | arrays
    with open(path, "wb") as file:
        np.savez(file, **content)


def _read(
    path: Path, options: Mapping[str, Any], networks: tuple[str, ...], contents: str
) -> nnx.Module:
    """Creates the model of a file.

    Args:
      path: the file.
      options: keyword arguments that replace those of the file.
      networks: names of the allowed classes.
      contents: expected content of the file, for errors.
    """
    try:
        arrays = read_npz(path, None, contents, short_floats=True)
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: expected an .npz file of arrays: {reason}") from error
    network, saved = _described(path, arrays, networks, contents)
    with naming(path, f"weights of a {network}"):
        model = _make(network, saved)
    if options:  # errors of the caller's options do not name the file
        model = _make(network, {**saved, **options})
    expected = _named(model)
    for name, array in arrays.items():
        # NumPy's files know floats such as bfloat16 only by their size.
        if name in expected and array.dtype.kind == expected[name].dtype.kind == "V":
            arrays[name] = array.view(expected[name].dtype)
    _check(str(path), arrays, model)
    graphdef, state = nnx.split(model)
    leaves = [jax.numpy.asarray(arrays[name]) for name in expected]
    return nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(state), leaves))


def _described(
    path: Path, arrays: dict[str, np.ndarray], networks: tuple[str, ...], contents: str
) -> tuple[str, dict[str, Any]]:
    """The network's class and its options, which are removed from the arrays."""
    try:
        description = parse_json(str(arrays.pop(_DESCRIPTION)))
        version, writer = description.get("format", 0), description.get("jaxgnn")
        is_newer = isinstance(version, int) and version > _FORMAT
        network, saved = ("", {}) if is_newer else (description["network"], description["options"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: expected {contents}") from None
    if is_newer:
        expected = f"a format up to {_FORMAT}, which jaxgnn {__version__} reads"
        got = f"{version}, written by jaxgnn {str(writer)[:80]}"
        raise ValueError(f"{path}: expected {expected}, got {got}")
    if network not in networks:
        got = f"{str(network)[:80]!r}"
        raise ValueError(f"{path}: expected one of {', '.join(networks)}, got {got}")
    if not isinstance(saved, dict) or not all(_is_plain(n, v) for n, v in saved.items()):
        raise ValueError(f"{path}: expected options of {network} that are numbers or names")
    _check_sizes(str(path), network, saved, arrays)
    return network, _EARLIER.get(network, {}) | saved


def _is_plain(name: str, value: Any) -> bool:
    """Returns whether an option is a number or a name, or a sequence of them where allowed."""
    if isinstance(value, list) and name in _LISTS:
        return all(_is_plain(name, part) for part in value)
    return isinstance(value, _PLAIN)


def _check_sizes(
    where: str, network: str, options: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Raises for a size that the arrays of a network can not have."""
    entries = sum(array.size for array in arrays.values())
    for name, value in options.items():
        limit = min(entries, _MAX_SIZES.get(name, entries))
        is_size = name not in _NO_SIZES
        is_size |= name == "num_steps" and network in _STEPS_ARE_SIZES
        if isinstance(value, int | float) and is_size and value > max(limit, 1):
            got = f"{name} of {network} is {str(value)[:80]}"
            raise ValueError(f"{where}: {got}, expected at most {limit}")


def _make(network: str, options: Mapping[str, Any]) -> nnx.Module:
    """Makes the model without values: only shapes and dtypes."""
    plain_options = {name: _option(value) for name, value in options.items()}
    return nnx.eval_shape(lambda: getattr(models, network)(**plain_options, rngs=nnx.Rngs(0)))


def _option(value: Any) -> Any:
    """Converts an option to its Python form: a tuple, or a dtype of JAX by its name."""
    if isinstance(value, list):
        return tuple(value)
    is_dtype = isinstance(value, str) and value in _DTYPES
    return getattr(jax.numpy, value) if is_dtype else value


def _named(model: nnx.Module) -> dict[str, Any]:
    """Arrays, or their shapes and dtypes, by dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(model)))
    return {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in leaves}


def _check(where: str, arrays: Mapping[str, np.ndarray], model: nnx.Module) -> None:
    """Raises for the first array that does not match the model."""
    expected = {name: (leaf.dtype, leaf.shape) for name, leaf in _named(model).items()}
    got = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    for name in sorted(expected.keys() | got.keys()):
        if expected.get(name) != got.get(name):
            actual, wanted = _type(got.get(name)), _type(expected.get(name))
            raise ValueError(f"{where}: {name} is {actual}, expected {wanted}")


def _type(kind: tuple[Any, tuple[int, ...]] | None) -> str:
    return "absent" if kind is None else f"{kind[0]}{list(kind[1])}"
