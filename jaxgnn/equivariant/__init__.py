"""Irreducible representations of rotations and reflections, in the conventions of e3nn.

Features of atoms and of other points in space are scalars, vectors and tensors. ``Irreps`` describe
such an array; ``spherical_harmonics`` make one of the directions of edges; ``clebsch_gordan``
tables couple two of them, and ``TensorProduct`` has the paths of a whole product, which
``jaxgnn.ops.tensor_product_sum`` computes over the edges of a graph.
"""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.equivariant.coupling import MAX_DEGREE as MAX_DEGREE
from jaxgnn.equivariant.coupling import clebsch_gordan as clebsch_gordan
from jaxgnn.equivariant.harmonics import spherical_harmonics as spherical_harmonics
from jaxgnn.equivariant.irreps import Irrep as Irrep
from jaxgnn.equivariant.irreps import Irreps as Irreps
from jaxgnn.equivariant.irreps import MulIrrep as MulIrrep
from jaxgnn.equivariant.paths import Path as Path
from jaxgnn.equivariant.paths import TensorProduct as TensorProduct
from jaxgnn.equivariant.paths import separate_paths as separate_paths
from jaxgnn.equivariant.symmetric import symmetric_couplings as symmetric_couplings

_suggest_names(__name__)
