"""Rewriting of graph code in plain JAX: ``jaxgnn.fuse``."""

from jaxgnn.fusion._constants import jit as jit
from jaxgnn.fusion._cost import Speeds as Speeds
from jaxgnn.fusion._fuse import Verify as Verify
from jaxgnn.fusion._fuse import explain as explain
from jaxgnn.fusion._fuse import fuse as fuse
from jaxgnn.fusion._report import Explanation as Explanation
from jaxgnn.fusion._report import Measured as Measured
from jaxgnn.fusion._search import Search as Search
