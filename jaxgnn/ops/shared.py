"""Names of the families of ops that other packages of the library use.

Users find theirs in ``jaxgnn.ops``. What families share among themselves is in ``jaxgnn.ops.core``.
"""

from jaxgnn.ops._aggregate import segments as segments
from jaxgnn.ops._aggregate.aggregate import REDUCTIONS as REDUCTIONS
from jaxgnn.ops._aggregate.aggregate import WEIGHTED as WEIGHTED
from jaxgnn.ops._aggregate.edge_ends import at_ends as at_ends
from jaxgnn.ops._aggregate.segment_order import segment_order as segment_order
from jaxgnn.ops._dense.fused_linear import FUSED_LINEAR as FUSED_LINEAR
from jaxgnn.ops._dense.fused_mlp import FUSED_MLP as FUSED_MLP
from jaxgnn.ops._edge_mlp import edge_mlp_aggregate as edge_mlp_aggregate
from jaxgnn.ops._edge_mlp.interaction import updated_edges as updated_edges
from jaxgnn.ops._edge_mlp.reference.interaction import EdgeLists as EdgeLists
from jaxgnn.ops._edge_mlp.reference.interaction import InteractionOptions as InteractionOptions
from jaxgnn.ops._equivariant import tensor_product_sum as tensor_product_sum
from jaxgnn.ops._filters.filtered_sum import MadeFilters as MadeFilters
from jaxgnn.ops._filters.filtered_sum import filtered_sum_in_order as filtered_sum_in_order
from jaxgnn.ops._filters.kernels import MOST_FEATURES as MOST_FEATURES
from jaxgnn.ops._graph.attention import edge_scores as edge_scores
from jaxgnn.ops._graph.attention import row_scores as row_scores
from jaxgnn.ops._graph.attention import row_softmax as row_softmax
from jaxgnn.ops._graph.attention import weighted_sums as weighted_sums
from jaxgnn.ops._hypergraph.hypergraph_conv import check_incidence as check_incidence
from jaxgnn.ops.core.precision import PRECISIONS as PRECISIONS
