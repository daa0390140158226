"""Functional ops: each with a reference in plain JAX and faster implementations beside it."""

from jaxgnn.ops._dispatch import Name as Name
from jaxgnn.ops._dispatch import default_implementation as default_implementation
from jaxgnn.ops._dispatch import deterministic as deterministic
from jaxgnn.ops.maxk import maxk as maxk
from jaxgnn.ops.maxk import todense as todense
from jaxgnn.ops.maxk_spmm import maxk_spmm as maxk_spmm
from jaxgnn.ops.maxk_spmm import sparse_implementation as sparse_implementation
from jaxgnn.ops.segment_softmax import segment_softmax as segment_softmax
from jaxgnn.ops.spmm import sddmm as sddmm
from jaxgnn.ops.spmm import spmm as spmm
