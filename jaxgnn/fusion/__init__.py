"""Rewriting of graph code in plain JAX: ``jaxgnn.fuse``."""

from jaxgnn.fusion.api import explain as explain
from jaxgnn.fusion.api import fuse as fuse
from jaxgnn.fusion.fused import Verify as Verify
from jaxgnn.fusion.program.constants import jit as jit
from jaxgnn.fusion.report import Explanation as Explanation
from jaxgnn.fusion.report import Measured as Measured
