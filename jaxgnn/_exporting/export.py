"""``jaxgnn.export``: converts a function of graphs and arrays to the bytes of a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxgnn import _ffi
from jaxgnn._arrays.arrays import dtype_of_jax
from jaxgnn._errors import bad_input
from jaxgnn._exporting.file import Description, packed, read_program
from jaxgnn._exporting.trees import count_leaves, leaves_of, rebuilt, structure_of
from jaxgnn._modes import evaluated, refusing_changes
from jaxgnn.graph import CSRGraph
from jaxgnn.ops.core.dispatch import Platform, current_platform


def export(
    function: Callable[..., Any],
    *args: Any,
    shapes: Sequence[str | None] | None = None,
    platforms: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> bytes:
    """Lowers a function to a program that other processes can load, without its Python code.

    The program is that of ``jax.export``. It includes the kernels of this library, and the
    parameters of models that the function captures. ``jaxgnn.load_exported`` loads the bytes, from
    a file or directly. Exported sizes are fixed unless ``shapes`` names them.

    Of a graph argument, the edges, weights and scales are passed. They are not validated: senders
    out of range are clamped to the nearest node. The program computes the further input of kernels
    (the plan) at each call; the plan of a captured graph is stored in the program.

    With symbolic sizes, plain JAX replaces kernels that require fixed sizes.

    Args:
      function: maps pytrees of arrays to a pytree of arrays: for example a model, or a function
        that calls one. A model is exported in evaluation mode, and is not changed; of one that a
        function captures, call ``eval()`` before. Pytrees may contain tuples, lists, dicts,
        ``CSRGraph``, ``GraphBatch``, ``Incidence`` and ``CBSR``.
      *args: example arguments, which define structures, shapes and dtypes.
        ``jax.ShapeDtypeStruct`` objects may replace arrays.
      shapes: for each argument None, or its sizes in the notation of
        ``jax.export.symbolic_shape``: for an array one for each axis, such as ``"nodes, _"``; for
        a ``CSRGraph`` those of nodes and edges, such as ``"nodes, edges"``. ``_`` is the size of
        the example. If the example is square, the graph has as many columns as rows; otherwise
        the number of columns is fixed. A named number of edges may be zero in a call: the program
        then has one padding slot, and arrays of edges a row of zeros. Other named sizes are at
        least one.
      platforms: ``"cpu"``, ``"cuda"`` or both; None for the present one. Export for a GPU does not
        require one.
      metadata: values for ``load_exported`` besides the program, in types that JSON supports, such
        as names of classes.

    Returns:
      The bytes of the file.

    Raises:
      ValueError: if an argument or a result is not such a pytree, a shape is invalid, the function
        can not be traced with symbolic sizes, a platform is unknown, the function has callbacks or
        captures a model that it changes, or ``metadata`` is not JSON.
      NotImplementedError: if an implementation requested by name does not support these sizes or
        a platform.

    Example:
      >>> import jax.numpy as jnp, jaxgnn
      >>> from jaxgnn import CSRGraph, ops
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3)
      >>> x = jnp.array([[1.0], [2.0], [4.0]])
      >>> file = jaxgnn.export(ops.spmm, graph, x, shapes=("nodes, edges", "nodes, _"))
      >>> aggregate = jaxgnn.load_exported(file)
      >>> aggregate(CSRGraph.from_edges([0, 1], [1, 0], 2), jnp.array([[3.0], [5.0]])).tolist()
      [[5.0], [3.0]]
    """
    platforms = _checked_platforms(platforms)
    _check_metadata(metadata)
    arguments = _structure("args", args)
    specs = _specs(args, shapes)
    inputs = [spec for _, spec in leaves_of("export", "args", arguments, specs)]
    results: list[Any] = []  # the structure of the result, set by the trace
    function = evaluated(function)

    def flat(*leaves):
        result = function(*rebuilt(arguments, iter(leaves)))
        results[:] = [_structure("the result", result)]
        return [jnp.asarray(leaf) for _, leaf in leaves_of("export", "", results[0], result)]

    with refusing_changes("export", "function"):
        exported = _exported(flat, inputs, platforms)
    description = Description(
        platforms=list(exported.platforms),
        kernels=read_program(exported).kernels,
        arguments=arguments,
        result=results[0],
        inputs=[_named(aval) for aval in exported.in_avals],
        outputs=[_named(aval) for aval in exported.out_avals],
        kept=list(exported.module_kept_var_idx),
        has_symbols=exported.uses_global_constants,
        calling_convention=exported.calling_convention_version,
        metadata=dict(metadata or {}),
    )
    return packed(description, bytes(exported.mlir_module_serialized))


def _structure(name: str, tree: Any) -> Any:
    """The structure of arguments or a result, as ``load_exported`` takes it."""
    structure = structure_of("export", name, tree)
    try:
        count_leaves(structure)
    except ValueError as error:
        raise ValueError(f"export: {name}: {error}") from None
    return structure


def _exported(function: Any, inputs: list[Any], platforms: list[str]) -> jax.export.Exported:
    # The library writes its version to the file, and the reader compares it.
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _ffi.targets()]
    make = jax.export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)
    try:
        return make(*inputs)
    except jax.errors.InconclusiveDimensionOperation as error:
        expected = "sizes with which the function can be traced; name fewer of them"
        raise bad_input("export", "shapes", expected, str(error).strip()) from error
    except NotImplementedError as error:
        if "callback" not in str(error):  # An implementation is not supported.
            raise
        expected = "without callbacks into Python, which another process does not have"
        raise bad_input("export", "function", expected, str(error)) from error


def _named(aval: Any) -> list[str]:
    """Shape and dtype of an array, as text."""
    return [", ".join(map(str, aval.shape)), aval.dtype.name]


def _checked_platforms(platforms: Sequence[str] | None) -> list[str]:
    if platforms is None:
        return [current_platform()]
    supported = get_args(Platform)
    are_known = isinstance(platforms, list | tuple) and set(platforms) <= set(supported)
    if not are_known or not platforms or len(set(platforms)) < len(platforms):
        raise bad_input("export", "platforms", f"some of {', '.join(supported)}", repr(platforms))
    return list(platforms)


def _check_metadata(metadata: Mapping[str, Any] | None) -> None:
    try:
        is_kept = json.loads(json.dumps(dict(metadata or {}), allow_nan=False)) == (metadata or {})
    except (TypeError, ValueError, RecursionError):
        is_kept = False
    if not is_kept:
        expected = "a dict that JSON gives back as it was (strings, numbers, lists, dicts)"
        raise bad_input("export", "metadata", expected, repr(metadata))


# -- shapes and dtypes of the arguments ------------------------------------------------------------


def _specs(args: tuple[Any, ...], shapes: Sequence[str | None] | None) -> tuple[Any, ...]:
    """Replaces the arrays of the arguments by their shapes and dtypes."""
    if shapes is None:
        shapes = (None,) * len(args)
    if not isinstance(shapes, list | tuple) or len(shapes) != len(args):
        expected = f"a tuple with a string or None for each of {len(args)} arguments"
        raise bad_input("export", "shapes", expected, repr(shapes))
    scope = jax.export.SymbolicScope()
    arguments = zip(args, shapes, range(len(args)), strict=True)
    return tuple(_spec(arg, shape, f"shapes[{i}]", scope) for arg, shape, i in arguments)


def _spec(arg: Any, shape: str | None, name: str, scope: jax.export.SymbolicScope) -> Any:
    if shape is None:
        structure = structure_of("export", "args", arg)
        leaves = [_struct(leaf) for _, leaf in leaves_of("export", "args", structure, arg)]
        return rebuilt(structure, iter(leaves))
    if isinstance(arg, CSRGraph):
        rows, edges = _sizes(shape, (arg.num_rows, arg.num_edges), name, scope)
        return _symbolic_graph(arg, rows, edges)
    if not hasattr(arg, "shape"):
        expected = "None, for the sizes of the example, unless the argument is an array or CSRGraph"
        raise bad_input("export", name, expected, f"{shape!r} for a {type(arg).__name__}")
    return _struct(arg, _sizes(shape, arg.shape, name, scope))


def _symbolic_graph(graph: CSRGraph, rows: Any, edges: Any) -> CSRGraph:
    columns = rows if graph.num_cols == graph.num_rows else graph.num_cols
    lengths = {"indptr": rows + 1, "indices": edges, "weights": edges}
    lengths |= {"row_scale": rows, "col_scale": columns}
    arrays = {name: getattr(graph, name) for name in lengths}
    specs: dict[str, Any] = {
        name: None if array is None else _struct(array, (lengths[name], *array.shape[1:]))
        for name, array in arrays.items()
    }
    return dataclasses.replace(graph, **specs, num_cols=columns, plan=None)


def _sizes(shape: Any, like: tuple[int, ...], name: str, scope: Any) -> tuple[Any, ...]:
    try:
        return tuple(jax.export.symbolic_shape(shape, scope=scope, like=like))
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        expected = f"{len(like)} sizes, such as {', '.join(['_'] * len(like))!r}"
        raise bad_input("export", name, expected, f"{shape!r}: {error}") from error


def _struct(leaf: Any, shape: tuple[Any, ...] | None = None) -> jax.ShapeDtypeStruct:
    dtype = dtype_of_jax(getattr(leaf, "dtype", None) or np.result_type(leaf))
    return jax.ShapeDtypeStruct(np.shape(leaf) if shape is None else shape, dtype)
