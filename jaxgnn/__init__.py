"""Graph-neural-network layers for JAX that run at the hardware's limit."""

from jaxgnn._exporting import ExportedFunction as ExportedFunction
from jaxgnn._exporting import export as export
from jaxgnn._exporting import load_exported as load_exported
from jaxgnn._version import __version__ as __version__
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

# Imported on first use, because they import Flax and more.
_MODULES = (
    "datasets",
    "distributed",
    "fusion",
    "interop",
    "metrics",
    "models",
    "nn",
    "pretrained",
    "sampling",
    "testing",
    "training",
)
_FUNCTIONS = {"fuse": "fusion", "load_model": "pretrained", "save_model": "pretrained"}


def __getattr__(name: str):
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    raise importlib.import_module("jaxgnn._suggestions").missing_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_FUNCTIONS})
