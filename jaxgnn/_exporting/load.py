"""``jaxgnn.load_exported``: loads the function of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Generator, Mapping
from typing import Any, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxgnn import _ffi
from jaxgnn._arrays.arrays import dtype_of_jax, in_native_order, require_kept_integers
from jaxgnn._errors import bad_input
from jaxgnn._exporting.empty_graphs import empty_sizes, pad_empty_axes, strip_padding
from jaxgnn._exporting.file import Description, Program, read_program, unpacked, versions_of
from jaxgnn._exporting.trees import count_leaves, leaves_of, rebuilt
from jaxgnn._methods import Binding
from jaxgnn.ops.core.dispatch import Platform, current_platform, no_mosaic_gpu

_LONGEST_SHAPE = 1000
# Sizes, names of sizes, sums, products and functions of them.
_SHAPE = re.compile(r"[\w\s+*,()-]*")


class ExportedFunction(Binding):
    """A function from a file of ``jaxgnn.export``, as returned by ``load_exported``.

    It is called like the exported function, eagerly or inside ``jax.jit``, and is compiled once for
    each combination of sizes. It has no gradient; export the gradient function to use one. As an
    attribute of a class it is a method, as a function is, unless ``staticmethod`` wraps it.

    Attributes:
      platforms: supported platforms, ``"cpu"`` and ``"cuda"``.
      kernels: names of the custom calls of this library's kernels in it.
      inputs: shape and dtype of each array among the arguments, such as ``"float32[nodes, 8]"``.
      metadata: metadata passed to ``export``.
      jaxgnn_version: version of the library that exported it.
      jax_version: version of JAX that exported it.
    """

    def __init__(self, source: str, description: Description, exported: jax.export.Exported):
        self.platforms = tuple(description.platforms)
        self.kernels = tuple(description.kernels)
        self.inputs = tuple(f"{dtype}[{shape}]" for shape, dtype in description.inputs)
        self.metadata: Mapping[str, Any] = description.metadata
        self.jaxgnn_version = description.jaxgnn
        self.jax_version = description.jax
        self._where = f"load_exported: {source}"
        self._arguments, self._result = description.arguments, description.result
        self._exported = exported
        # Without this each call would be traced and compiled again.
        self._run = jax.jit(self._exported.call)

    def __repr__(self) -> str:
        """Shows its inputs and platforms."""
        inputs, platforms = ", ".join(self.inputs), ", ".join(self.platforms)
        return f"ExportedFunction({inputs}; platforms={platforms}, jaxgnn={self.jaxgnn_version})"

    def __call__(self, *args: Any) -> Any:
        """Runs the program.

        Args:
          *args: pytrees of the structure, dtypes and sizes of the example. Graphs need no plan. A
            graph without edges may stand for one whose number of edges has a name.

        Returns:
          The result of the function: new pytrees of JAX arrays.

        Raises:
          ValueError: names the first argument of another structure, dtype or shape; or the graph
            has no edges, and a result has a size that is computed from their number.
        """
        named = leaves_of(self._where, "args", self._arguments, args)
        named = [(path, in_native_order(leaf)) for path, leaf in named]
        for (path, leaf), aval in zip(named, self._exported.in_avals, strict=True):
            self._check(path, leaf, aval)
        paths, leaves = [path for path, _ in named], [leaf for _, leaf in named]
        inputs, outputs = self._exported.in_avals, self._exported.out_avals
        empty = empty_sizes(paths, leaves, inputs)
        if empty:
            leaves = [pad_empty_axes(*pair, empty) for pair in zip(leaves, inputs, strict=True)]
        try:
            results = self._run(*leaves)
        except ValueError as error:  # One symbolic name has different sizes.
            text = re.sub(r"args\[(\d+)\]", lambda match: paths[int(match[1])], str(error))
            mismatch = text.partition(" Using the following")[0]
            raise ValueError(f"{self._where}: {mismatch}") from error
        if empty:
            pairs = zip(results, outputs, strict=True)
            results = [strip_padding(self._where, *pair, empty) for pair in pairs]
        return rebuilt(self._result, iter(results))

    def _check(self, path: str, leaf: Any, aval: Any) -> None:
        require_kept_integers(self._where, path, leaf)
        shape = np.shape(leaf)
        leaf_dtype = getattr(leaf, "dtype", None)
        dtype = aval.dtype if leaf_dtype is None else dtype_of_jax(leaf_dtype)
        fits = len(shape) == len(aval.shape) and all(
            jax.export.is_symbolic_dim(expected) or size == expected
            for size, expected in zip(shape, aval.shape, strict=True)
        )
        if dtype != aval.dtype or not fits:
            expected = f"{aval.dtype.name}[{', '.join(map(str, aval.shape))}]"
            got = f"{dtype.name}[{', '.join(map(str, shape))}]"
            raise bad_input(self._where, path, expected, got)


def load_exported(source: str | os.PathLike[str] | bytes) -> ExportedFunction:
    """Loads a function exported by ``jaxgnn.export``, in any process that has this library.

    Kernels that the program calls are registered with XLA. A file is data: no Python code is in it.
    A hash in it finds damage, and is no signature. The program runs with the rights of the process,
    as any model does that XLA compiles, so load only files of people whose code you would run.

    Args:
      source: path of the file, or its bytes.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not such a file, is truncated or damaged, was written by a version with
        another format, kernels or program (the message names both versions), or is for another
        platform than the present one.
      NotImplementedError: if its kernels are not supported here, with the reason.
    """
    name, description, program = unpacked(source)
    with _naming(name, "a damaged description"):
        inputs, outputs = _check_description(description)
    _prepare(name, description)
    with _naming(name, "a damaged description"):
        template = _template(description, inputs, outputs)
    exported = dataclasses.replace(
        template,
        mlir_module_serialized=program,
        module_kept_var_idx=tuple(description.kept),
        uses_global_constants=description.has_symbols,
        calling_convention_version=description.calling_convention,
    )
    versions = versions_of(name, dataclasses.asdict(description))
    try:
        facts = read_program(exported)
    except Exception as error:  # MLIR raises its own classes of errors.
        raise ValueError(f"{versions}: its program can not be read: {error}") from error
    # A callback is an address of the process that exported it.
    callbacks = sorted(call for call in facts.calls if "callback" in call)
    if callbacks:
        raise ValueError(f"load_exported: {name} must call no Python, got a call of {callbacks[0]}")
    with _naming(name, "a description of another program"):
        _check_program(description, read_program(template), facts)
    return ExportedFunction(name, description, exported)


@contextlib.contextmanager
def _naming(name: str, what: str) -> Generator[None]:
    """Raises any error of a description as a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"load_exported: {name} has {what}: {error}") from error


def _prepare(name: str, description: Description) -> None:
    """Registers the calls of the program on this platform, or raises with the reason."""
    platform = current_platform()
    if platform not in description.platforms:
        expected = f"{name} on {' or '.join(description.platforms)}, for which it was exported"
        raise ValueError(f"load_exported: must load {expected}, got {platform}")
    has_compiled = any(platform in _ffi.targets().get(name, ()) for name in description.kernels)
    reasons = [_ffi.why_missing(platform)] if has_compiled else []
    if platform == "cuda" and any(kernel not in _ffi.targets() for kernel in description.kernels):
        reasons.append(no_mosaic_gpu(platform))
    # With several platforms the kernels may belong to another one.
    obstacles = [reason for reason in reasons if reason is not None]
    if obstacles and len(description.platforms) == 1:
        raise NotImplementedError(f"load_exported: {name}: {obstacles[0]}")


def _template(
    description: Description, inputs: list[Any], outputs: list[Any]
) -> jax.export.Exported:
    """Another function, exported here, which takes and returns arrays of the same shapes.

    JAX itself fills in what is not known of the fields of a loaded ``jax.export.Exported``.
    """

    def same_shapes(*_):
        return [jnp.zeros(output.shape, output.dtype) for output in outputs]

    function = jax.jit(same_shapes, keep_unused=True)
    return jax.export.export(function, platforms=description.platforms)(*inputs)


# -- checks of the description, so that each element of it is true ---------------------------------


def _check_description(description: Description) -> tuple[list[Any], list[Any]]:
    """Checks each element by itself; returns the specs of the arguments and of the results."""
    platforms = description.platforms
    _require(bool(platforms) and _are_names(platforms), "names of platforms", platforms)
    are_supported = set(platforms) <= set(get_args(Platform)) and len(set(platforms)) == len(
        platforms
    )
    _require(are_supported, f"platforms among {', '.join(get_args(Platform))}", platforms)
    _require(_are_names(description.kernels), "names of kernels", description.kernels)
    arguments = description.arguments
    is_tuple = type(arguments) is dict and list(arguments) == ["tuple"]
    _require(is_tuple, "a tuple of arguments", arguments)
    scope = jax.export.SymbolicScope()
    specs = []
    for name, structure in (("inputs", arguments), ("outputs", description.result)):
        arrays = getattr(description, name)
        count = count_leaves(structure)
        _require(count == len(arrays), f"{count} {name}, one for each array", len(arrays))
        specs.append([_read_spec(array, scope) for array in arrays])
    kept, inputs = description.kept, range(len(description.inputs))
    are_kept = all(type(i) is int and i in inputs for i in kept) and sorted(set(kept)) == kept
    _require(are_kept, f"rising numbers of {len(inputs)} inputs as kept", kept)
    return specs[0], specs[1]


def _check_program(description: Description, template: Program, program: Program) -> None:
    """Compares a description with its program; ``template`` takes and returns all its arrays."""
    inputs = tuple(template.inputs[i] for i in description.kept)
    pairs = {
        "inputs": (inputs, program.inputs),
        "outputs": (template.outputs, program.outputs),
        "kernels": (description.kernels, program.kernels),
        "has_symbols": (description.has_symbols, program.has_symbols),
        "platforms": (len(description.platforms) > 1, program.has_platform),
    }
    for name, (said, actual) in pairs.items():
        _require(said == actual, f"{name} as the program has them, {actual!r:.80}", said)


def _read_spec(array: Any, scope: jax.export.SymbolicScope) -> jax.ShapeDtypeStruct:
    is_pair = type(array) is list and len(array) == 2 and _are_names(array)
    _require(is_pair, "the shape and the dtype of an array", array)
    shape, dtype = array
    is_shape = len(shape) <= _LONGEST_SHAPE and _SHAPE.fullmatch(shape) is not None
    _require(is_shape, "a shape, such as 'nodes, 8'", shape)
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), jnp.dtype(dtype))


def _are_names(values: Any) -> bool:
    return all(type(value) is str for value in values)


def _require(fits: bool, expected: str, got: Any) -> None:
    if not fits:
        raise ValueError(f"expected {expected}, got {got!r:.80}")
