"""Graph-neural-network layers for JAX that run at the hardware's limit."""

from jaxgnn._version import __version__ as __version__
from jaxgnn.graph import CBSR as CBSR
from jaxgnn.graph import CSRGraph as CSRGraph
from jaxgnn.graph import Incidence as Incidence
from jaxgnn.ops import default_implementation as default_implementation
from jaxgnn.ops import deterministic as deterministic
from jaxgnn.ops import verify as verify
