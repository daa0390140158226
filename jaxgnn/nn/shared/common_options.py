"""Common options of all layers on graphs and hypergraphs, and their lines in docstrings.

A layer takes them as ``**common: Unpack[CommonOptions]`` and passes them to ``Layer``. This module
inserts them into its signature, and their lines into its docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypedDict, Unpack

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxgnn import ops


class CommonOptions(TypedDict, total=False):
    """Optional options of every layer on graphs and hypergraphs."""

    implementation: ops.Name | None
    dtype: DTypeLike | None
    param_dtype: DTypeLike


class Settings(NamedTuple):
    """The common options of one layer, with their defaults."""

    implementation: ops.Name | None = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32


# Lines of ``Args:``, for layers that do not have their own.
_LINES: Mapping[str, str] = {
    "implementation": (
        'name of the kernels of the ops, such as ``"xla"``; None for the default.\n'
        '  Linear layers on graphs run the fastest kernels unless it is ``"xla"``.'
    ),
    "dtype": "dtype of the computation; None for the promoted dtype of input and parameters.",
    "param_dtype": "dtype of the parameters.",
    "rngs": "random streams from which the initial parameters are drawn.",
}
_RAISES = """Raises:
  ValueError: if an option has a type or value other than described above."""


# What follows the line of ``edge_features`` in the docstring of every call that takes some.
_EDGE_ORDER = """\
    They are in the order of the graph's edge slots, which is sorted by receiver. Features in the
    order of the edges that the graph was built of are brought into it by
    ``graph.sort_edges(features)``, of a graph built with ``edge_data``.
"""


def with_common_options(signature: inspect.Signature) -> inspect.Signature:
    """Replaces ``**common`` in the signature of an ``__init__`` by the common options.

    Other keyword options, such as ``**kwargs`` of a user's class, are unchanged, and an option that
    the ``__init__`` names itself keeps its place.
    """
    parameters = list(signature.parameters.values())
    others = [p for p in parameters if not _are_common(p)]
    if others == parameters:
        return signature
    names = [p.name for p in others]
    common = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Settings.__annotations__[name].__forward_arg__,
        )
        for name, default in Settings._field_defaults.items()
        if name not in names
    ]
    place = names.index("rngs") if "rngs" in names else len(others)
    if place < len(others) and others[place].kind is not inspect.Parameter.KEYWORD_ONLY:
        place = len(others)
    return signature.replace(parameters=[*others[:place], *common, *others[place:]])


def _are_common(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is ``**common: Unpack[CommonOptions]``."""
    annotations = "Unpack[CommonOptions]", Unpack[CommonOptions]
    return parameter.kind is parameter.VAR_KEYWORD and parameter.annotation in annotations


def with_common_lines(docstring: str, options: Iterable[str]) -> str:
    """Adds the lines of the common options to the docstring of a layer.

    Args:
      docstring: docstring of the layer, without these lines in its section ``Args:``. A docstring
        without this section is returned unchanged.
      options: names of the options of the layer.
    """
    text = inspect.cleandoc(docstring)
    section = re.search(r"^Args:\n(?:  .*\n?)+", text, re.M)
    if section is None:
        return docstring
    lines = [
        f"  {name}: {_LINES[name]}".replace("\n", "\n  ")
        for name in options
        if name in _LINES and f"\n  {name}:" not in section[0]
    ]
    if not re.search("^Raises:$", text, re.M):
        lines += ["", _RAISES]
    made = "\n".join([section[0].rstrip(), *lines, ""])
    return text[: section.start()] + made + text[section.end() :]


def with_edge_order[**P, Result](call: Callable[P, Result]) -> Callable[P, Result]:
    """Decorates a call that takes ``edge_features``: its docstring says in which order they are."""
    text = inspect.cleandoc(str(call.__doc__))
    entry = re.search(r"^  edge_features: .*\n(?:    .*\n)*", text, re.M)
    assert entry is not None, "a docstring with a line of edge_features"
    call.__doc__ = text[: entry.end()] + _EDGE_ORDER + text[entry.end() :]
    return call
