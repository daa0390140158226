"""Graph-neural-network layers for JAX that run at the hardware's limit."""

import typing

from jaxgnn._version import __version__ as __version__

if typing.TYPE_CHECKING:
    from jaxgnn._exporting import ExportedFunction as ExportedFunction
    from jaxgnn._exporting import export as export
    from jaxgnn._exporting import load_exported as load_exported
    from jaxgnn.graph import CBSR as CBSR
    from jaxgnn.graph import CSRGraph as CSRGraph
    from jaxgnn.graph import Incidence as Incidence
    from jaxgnn.ops import default_implementation as default_implementation
    from jaxgnn.ops import deterministic as deterministic
    from jaxgnn.ops import segment_logsumexp as segment_logsumexp
    from jaxgnn.ops import segment_max as segment_max
    from jaxgnn.ops import segment_max_or_constant as segment_max_or_constant
    from jaxgnn.ops import segment_mean as segment_mean
    from jaxgnn.ops import segment_min as segment_min
    from jaxgnn.ops import segment_min_or_constant as segment_min_or_constant
    from jaxgnn.ops import segment_normalize as segment_normalize
    from jaxgnn.ops import segment_prod as segment_prod
    from jaxgnn.ops import segment_sum as segment_sum
    from jaxgnn.ops import segment_variance as segment_variance
    from jaxgnn.ops import verify as verify
    from jaxgnn.ops._aggregate.segments import segment_softmax as segment_softmax

# Imported on first use, because they import JAX, Flax and more.
_MODULES = (
    "datasets",
    "distributed",
    "draw",
    "equivariant",
    "explain",
    "fusion",
    "graph",
    "interop",
    "metrics",
    "models",
    "nn",
    "ops",
    "pretrained",
    "sampling",
    "testing",
    "training",
)
_NAMES = {
    "_exporting": ("ExportedFunction", "export", "load_exported"),
    "fusion": ("fuse",),
    "graph": ("CBSR", "CSRGraph", "Incidence"),
    "ops": (
        "default_implementation",
        "deterministic",
        "segment_logsumexp",
        "segment_max",
        "segment_max_or_constant",
        "segment_mean",
        "segment_min",
        "segment_min_or_constant",
        "segment_normalize",
        "segment_prod",
        "segment_sum",
        "segment_variance",
        "verify",
    ),
    "ops._aggregate.segments": ("segment_softmax",),
    "pretrained": ("load_model", "save_model"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str):
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # the next access does not come here
        return value
    raise importlib.import_module("jaxgnn._suggestions").missing_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HOMES})
