"""Names and weights of other libraries, and potentials in them; ``interop.jraph`` needs jraph."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.interop._ase import ase_calculator as ase_calculator
from jaxgnn.interop._jax_md import jax_md_energy as jax_md_energy
from jaxgnn.interop._nequix import from_nequix as from_nequix
from jaxgnn.interop.pyg import from_pyg as from_pyg
from jaxgnn.interop.pyg import to_pyg as to_pyg

_suggest_names(__name__)
