"""All public names of jraph, with segment functions and models on this library's kernels.

Replace ``import jraph`` by ``from jaxgnn.interop import jraph``; nothing else changes. Segment
functions are those of ``jaxgnn``, also inside the models and as defaults of their arguments. They
drop the entries of negative ids, as jraph does, where ``jaxgnn`` raises an error. ``GraphsTuple``
and other classes are jraph's own, so graphs can be exchanged freely. Everything else in jraph's
models is jraph's code.
"""

from __future__ import annotations

import sys
import types
from typing import Any

try:
    import jraph as _jraph
except ImportError as error:
    raise ImportError("jaxgnn.interop.jraph needs jraph: pip install jraph") from error

from jaxgnn.ops.shared import segments as _segments


def _dropping(name: str) -> Any:
    """Returns a segment function that drops entries of negative ids, as jraph does."""
    dropping = _segments.dropping_negative_ids(getattr(_segments, name))
    dropping.__module__ = __name__
    return dropping


_SEGMENTS = ("sum", "mean", "variance", "normalize", "softmax")
_SEGMENTS += ("max", "max_or_constant", "min", "min_or_constant")
_OURS = {f"segment_{name}": _dropping(f"segment_{name}") for name in _SEGMENTS}


def _rebuilt(module: types.ModuleType, names: dict[str, Any]) -> dict[str, Any]:
    """The names of a module, whose own functions look up other functions in ``names`` first.

    Args:
      module: a module of jraph.
      names: replacements of names of that module, which may also be modules.
    """
    rebuilt: dict[str, Any] = {**vars(module), **names}
    replaced = {id(old): names[name] for name, old in vars(module).items() if name in names}
    replaced |= {id(getattr(_jraph, name)): ours for name, ours in _OURS.items()}

    def replace_default(value: Any) -> Any:
        return replaced.get(id(value), value)

    for name, value in vars(module).items():
        is_own = isinstance(value, types.FunctionType) and value.__module__ == module.__name__
        if not is_own or name in names:
            continue
        defaults = value.__defaults__ and tuple(map(replace_default, value.__defaults__))
        copy = types.FunctionType(value.__code__, rebuilt, name, defaults, value.__closure__)
        copy.__kwdefaults__ = value.__kwdefaults__ and {
            key: replace_default(default) for key, default in value.__kwdefaults__.items()
        }
        copy.__doc__, copy.__annotations__ = value.__doc__, value.__annotations__
        copy.__module__ = __name__
        rebuilt[name] = copy
    return rebuilt


def _names() -> dict[str, Any]:
    """Returns the public names of jraph, including the rebuilt functions."""
    utils = sys.modules[_jraph.segment_sum.__module__]
    models = sys.modules[_jraph.GraphNetwork.__module__]
    of_utils = _rebuilt(utils, _OURS)
    namespace = types.SimpleNamespace(**of_utils)
    by_module = {utils.__name__: of_utils, models.__name__: _rebuilt(models, {"utils": namespace})}

    def public(name: str) -> Any:
        value = getattr(_jraph, name)
        return by_module.get(getattr(value, "__module__", ""), {}).get(name, value)

    return {name: public(name) for name in dir(_jraph) if not name.startswith("_")}


_NAMES = _names()
__all__ = sorted(_NAMES)  # pyrefly: ignore


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return _NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
