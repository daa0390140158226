"""Functional ops: each with a reference in plain JAX and faster implementations beside it."""

from jaxgnn.ops._dispatch import Name as Name
from jaxgnn.ops._dispatch import default_implementation as default_implementation
from jaxgnn.ops._dispatch import deterministic as deterministic
from jaxgnn.ops._mhc_conventions import MHC_PRESETS as MHC_PRESETS
from jaxgnn.ops._mhc_conventions import MHCConvention as MHCConvention
from jaxgnn.ops._verify import VerificationError as VerificationError
from jaxgnn.ops._verify import verify as verify
from jaxgnn.ops.fused_linear import Activation as Activation
from jaxgnn.ops.fused_linear import MaxK as MaxK
from jaxgnn.ops.fused_linear import Precision as Precision
from jaxgnn.ops.fused_linear import fused_linear as fused_linear
from jaxgnn.ops.fused_mlp import fused_mlp as fused_mlp
from jaxgnn.ops.maxk import maxk as maxk
from jaxgnn.ops.maxk import todense as todense
from jaxgnn.ops.maxk_spmm import maxk_spmm as maxk_spmm
from jaxgnn.ops.maxk_spmm import sparse_implementation as sparse_implementation
from jaxgnn.ops.mhc_head import mhc_expand as mhc_expand
from jaxgnn.ops.mhc_head import mhc_head as mhc_head
from jaxgnn.ops.mhc_post import mhc_post as mhc_post
from jaxgnn.ops.mhc_post_pre import mhc_post_pre as mhc_post_pre
from jaxgnn.ops.mhc_pre import mhc_pre as mhc_pre
from jaxgnn.ops.segment_softmax import segment_softmax as segment_softmax
from jaxgnn.ops.sinkhorn import permutation_mixture as permutation_mixture
from jaxgnn.ops.sinkhorn import sinkhorn as sinkhorn
from jaxgnn.ops.spmm import sddmm as sddmm
from jaxgnn.ops.spmm import spmm as spmm
