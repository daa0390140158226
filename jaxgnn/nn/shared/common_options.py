"""Options that layers share: their defaults, and what ``help`` says about them.

A layer takes the common options as ``**common: Unpack[CommonOptions]``, which ``DocumentedModule``
replaces in its signature. ``DocumentedModule`` also completes the docstrings of a class and of its
call: lines of ``Args:`` for options that have one meaning in most layers, ``Raises:``, and the
imports of an example. A docstring that has a line of its own keeps it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxgnn import ops
from jaxgnn._arrays.arrays import checked_numbers


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

    @property
    def dtypes(self) -> dict[str, Any]:
        """The options of a linear layer."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}


# Lines of ``Args:`` in the docstrings of classes, for an option or an option of one type.
OPTION_LINES: dict[str, str] = {
    "add_self_loops": (
        "whether nodes without a self loop get one, of weight one; None for the value\n"
        "  of ``normalize``."
    ),
    "concat": "whether to concatenate the heads; False for their mean.",
    "dtype": "dtype of the computation; None for the promoted dtype of input and parameters.",
    "edge_dim": "width of the features of edges; None if there are none.",
    "epsilon": "``ε``.",
    "features": "width of the node features.",
    "heads": "number of attention heads.",
    "implementation": 'name of the kernels of the ops, such as ``"xla"``; None for the default.',
    "in_features": "width of the input.",
    "in_features: int | tuple[int, int]": (
        "width of the input, or a pair of the widths of receivers and of senders."
    ),
    "input_features": "width of the inputs, zero if there are none.",
    "k": 'kept entries per row, for ``"maxk"``.',
    "kernel_mode": (
        '``"auto"``, ``"maxk"`` (require a k-sparse kernel) or ``"dense"`` (expand\n'
        "  compressed rows)."
    ),
    "message_features": "width of the messages.",
    "negative_slope": "slope of the leaky ReLU of the attention scores below zero.",
    "normalize": ("whether to divide by ``√(d_i d_j)``; without it the graph is used unchanged."),
    "num_steps": "number of steps, unless a call gives another.",
    "out_features": "width of the output.",
    "param_dtype": "dtype of the parameters.",
    "precision": (
        'products of float32 numbers in ``"highest"``, ``"tf32"`` or ``"bf16x3"``\n'
        "  precision; None for the setting of JAX."
    ),
    "recompute_every": (
        "number of steps between states that are stored for the backward pass,\n"
        '  ``"auto"`` to bound their number, or None to store everything.'
    ),
    "residual": "whether to add a linear map of the receiver's own features.",
    "rngs": "random streams from which the initial parameters are drawn.",
    "root_weight": "whether to add a linear map of the receiver's own features.",
    "use_bias": "whether to add the bias b.",
}
_RAISES = "if an option has a type or value other than described above."

# Lines of ``Args:`` in the docstrings of calls.
_CALL_LINES: dict[str, str] = {
    "batch": "the graphs of the nodes.",
    "edge_features": "features of the edge slots, with the leading axes of ``x`` or without.",
    "graph": "rows are receivers, columns are senders.",
    "incidence": "the hypergraph.",
    "inputs": "inputs of each node, equal at every step.",
    "k": "number of kept entries instead of the layer's ``k``; None keeps the layer's.",
    "messages": "aggregated messages of each node.",
    "num_steps": "number of steps; None for the model's.",
    "rngs": "random streams with one named ``dropout`` in training; None in evaluation.",
    "state": "state before the step.",
    "x": "features of the nodes.",
    "x: Nodes": (
        "features of the nodes of a square graph, whose leading axes share the graph; or a pair\n"
        "  ``(x_dst, x_src)`` of those of the receivers and those of the senders."
    ),
}
_CALL_RAISES = "if an argument does not fit the others or the layer."

# Lines that follow the one of ``edge_features`` in the docstring of every call that takes some.
_EDGE_ORDER = """
    They are in the order of the graph's edge slots, which is sorted by receiver. Features in the
    order of the edges that the graph was built of are brought into it by
    ``graph.sort_edges(features)``, of a graph built with ``edge_data``."""

# Packages of the names that examples use.
_PACKAGES: Mapping[str, str] = {
    "nnx": "flax",
    "nn": "jaxgnn",
    "ops": "jaxgnn",
    "CSRGraph": "jaxgnn.graph",
    "GraphBatch": "jaxgnn.graph",
    "GraphSample": "jaxgnn.graph",
    "HeteroGraph": "jaxgnn.graph",
    "Incidence": "jaxgnn.graph",
}


class DocumentedModule(nnx.Module):
    """Base class of public layers and networks, whose docstrings are completed.

    Attributes:
      option_lines: lines of ``Args:``, by the name of the option.
    """

    option_lines: ClassVar[dict[str, str]] = OPTION_LINES

    def __init_subclass__(cls, **options: Any):
        """Makes ``help`` and editors show the class with all of its options, without Flax's."""
        super().__init_subclass__(**options)
        signature = add_common_options(inspect.signature(cls.__init__))
        parameters = list(signature.parameters.values())[1:]
        cls.__signature__ = _ClassSignature(signature.replace(parameters=parameters))  # pyrefly: ignore
        is_own = cls.__module__.startswith("jaxgnn.")  # A user's class is not.
        if vars(cls).get("__doc__"):
            lines = _lines_for(signature, cls.option_lines)
            text = add_common_lines(str(cls.__doc__), signature.parameters, lines)
            cls.__doc__ = _add_imports(text, cls) if is_own else text
        call = vars(cls).get("__call__")
        if is_own and call is not None and call.__doc__:
            signature = inspect.signature(call)
            lines = _lines_for(signature, _CALL_LINES)
            text = add_common_lines(call.__doc__, signature.parameters, lines, _CALL_RAISES)
            edges = re.search(r"^  edge_features: .*(?:\n    .*)*", text, re.M)
            if edges is not None and "sort_edges" not in edges[0]:
                text = text[: edges.end()] + _EDGE_ORDER + text[edges.end() :]
            call.__doc__ = text
        if is_own and call is not None:
            cls.__call__ = _convert_arguments(call)


def _convert_arguments(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a ``__call__`` so that it reads NumPy arrays in both byte orders, and never cuts them.

    Graphs and other objects are passed on unchanged; they check their arrays themselves.
    """
    names = list(inspect.signature(call).parameters)[1:]

    @functools.wraps(call)
    def checked(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        where = type(self).__name__
        places = [names[min(at, len(names) - 1)] for at in range(len(args))] if names else []
        read = [_read(where, name, value) for name, value in zip(places, args, strict=False)]
        by_name = {name: _read(where, name, value) for name, value in kwargs.items()}
        return call(self, *read, *args[len(read) :], **by_name)

    return checked


def _read(where: str, argument: str, value: Any) -> Any:
    """Returns an argument of a layer after checks of all NumPy arrays in it and its containers."""
    if isinstance(value, np.ndarray | np.generic):
        return checked_numbers(where, argument, value)
    if isinstance(value, tuple | list):
        parts = [_read(where, f"{argument}[{i}]", part) for i, part in enumerate(value)]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {key: _read(where, f"{argument}[{key!r}]", part) for key, part in value.items()}
    return value


class _ClassSignature:
    """Signature of a class, which its objects do not have, because they are called otherwise."""

    def __init__(self, signature: inspect.Signature):
        self.signature = signature

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return self.signature


def add_common_options(signature: inspect.Signature) -> inspect.Signature:
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
    """Returns whether a parameter is ``**common: Unpack[CommonOptions]``."""
    annotations = "Unpack[CommonOptions]", Unpack[CommonOptions]
    return parameter.kind is parameter.VAR_KEYWORD and parameter.annotation in annotations


def _lines_for(signature: inspect.Signature, table: Mapping[str, str]) -> dict[str, str]:
    """The lines of a table for parameters, by name and type, or by name."""
    lines = dict(table)
    for name, parameter in signature.parameters.items():
        typed = f"{name}: {parameter.annotation}"
        if typed in table:
            lines[name] = table[typed]
    return lines


def add_common_lines(
    docstring: str,
    options: Iterable[str],
    lines: Mapping[str, str] = OPTION_LINES,
    raises: str = _RAISES,
) -> str:
    """Adds lines to ``Args:`` in a docstring, in the order of the options, and ``Raises:``.

    Args:
      docstring: docstring without some of these lines. One without the section ``Args:`` is
        returned unchanged.
      options: names of the options.
      lines: the line of each option.
      raises: description of the ``ValueError``, for a docstring without the section ``Raises:``.
    """
    text = inspect.cleandoc(docstring)
    section = re.search(r"^Args:\n((?:  .*\n?)+)", text, re.M)
    if section is None:
        return docstring
    entries = dict(re.findall(r"^  (\S+): (.*(?:\n    .*)*)", section[1], re.M))
    shared = {name: lines[name].replace("\n", "\n  ") for name in options if name in lines}
    names = [name for name in options if name in entries or name in shared]
    names += [name for name in entries if name not in names]
    listed = "\n".join(f"  {name}: {(shared | entries)[name]}" for name in names)
    text = f"{text[: section.start(1)]}{listed}\n{text[section.end() :]}"
    if re.search("^Raises:$", text, re.M):
        return text.rstrip()
    head, *tail = re.split(r"^(?=(?:Example|Warns):$)", text, maxsplit=1, flags=re.M)
    return "\n\n".join([head.rstrip(), f"Raises:\n  ValueError: {raises}", *tail]).rstrip()


def _add_imports(text: str, cls: type) -> str:
    """Adds the imports of the names that the example of a class uses."""
    head, title, code = text.partition("\nExample:\n")
    package = "jaxgnn.models"
    packages = dict(_PACKAGES)
    if cls.__module__.startswith(package):
        packages[cls.__name__] = package
    imports: dict[str, list[str]] = {}
    for name in sorted(set(re.findall(r"\b[A-Za-z]\w*", code)) & set(packages)):
        if not re.search(rf"import .*\b{name}\b", code):
            imports.setdefault(packages[name], []).append(name)
    import_lines = [
        f"from {home} import {', '.join(names)}" for home, names in sorted(imports.items())
    ]
    if "jnp." in code and "as jnp" not in code:
        import_lines.insert(0, "import jax.numpy as jnp")
    return head + title + "".join(f"  >>> {line}\n" for line in import_lines) + code
