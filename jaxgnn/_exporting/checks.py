"""Compares the description of a file with its program, so that each element of it is true."""

from __future__ import annotations

import re
from typing import Any, get_args

import jax
import jax.export
import jax.numpy as jnp

from jaxgnn._exporting.file import Description
from jaxgnn._exporting.program import Program
from jaxgnn._exporting.trees import count_leaves
from jaxgnn.ops._core.dispatch import Platform

_LONGEST_SHAPE = 1000
# Sizes, names of sizes, sums, products and functions of them.
_SHAPE = re.compile(r"[\w\s+*,()-]*")


def check_description(description: Description) -> tuple[list[Any], list[Any]]:
    """Checks each element of a description by itself.

    Returns:
      Shape and dtype of each array that the function takes, and of each that it returns.

    Raises:
      ValueError: says what is wrong.
    """
    platforms = description.platforms
    _require(bool(platforms) and _are_names(platforms), "names of platforms", platforms)
    known = set(platforms) <= set(get_args(Platform)) and len(set(platforms)) == len(platforms)
    _require(known, f"platforms among {', '.join(get_args(Platform))}", platforms)
    _require(_are_names(description.kernels), "names of kernels", description.kernels)
    arguments = description.arguments
    is_tuple = type(arguments) is dict and list(arguments) == ["tuple"]
    _require(is_tuple, "a tuple of arguments", arguments)
    scope = jax.export.SymbolicScope()
    found = []
    for name, structure in (("inputs", arguments), ("outputs", description.result)):
        arrays = getattr(description, name)
        count = count_leaves(structure)
        _require(count == len(arrays), f"{count} {name}, one for each array", len(arrays))
        found.append([_spec(array, scope) for array in arrays])
    kept, inputs = description.kept, range(len(description.inputs))
    are_kept = all(type(i) is int and i in inputs for i in kept) and sorted(set(kept)) == kept
    _require(are_kept, f"rising numbers of {len(inputs)} inputs as kept", kept)
    return found[0], found[1]


def check_program(description: Description, template: Program, program: Program) -> None:
    """Compares what a description says of a program with the program.

    Args:
      description: the description.
      template: a program that reads all arrays of the description, and returns all.
      program: the program of the file.

    Raises:
      ValueError: names the first difference.
    """
    inputs = tuple(template.inputs[i] for i in description.kept)
    pairs = {
        "inputs": (inputs, program.inputs),
        "outputs": (template.outputs, program.outputs),
        "kernels": (description.kernels, program.kernels),
        "has_symbols": (description.has_symbols, program.has_symbols),
        "platforms": (len(description.platforms) > 1, program.has_platform),
    }
    for name, (said, found) in pairs.items():
        _require(said == found, f"{name} as the program has them, {found!r:.80}", said)


def _spec(array: Any, scope: jax.export.SymbolicScope) -> jax.ShapeDtypeStruct:
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
