"""Names and weights of other libraries; ``jaxgnn.interop.jraph`` needs the package jraph."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.interop.pyg import from_pyg as from_pyg
from jaxgnn.interop.pyg import to_pyg as to_pyg

_suggest_names(__name__)
