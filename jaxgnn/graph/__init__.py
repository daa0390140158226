"""Graphs, hypergraphs and compressed features as pytrees."""

from jaxgnn.graph._arrays import is_concrete as is_concrete
from jaxgnn.graph._batch import GraphBatch as GraphBatch
from jaxgnn.graph._batch import unbatch as unbatch
from jaxgnn.graph._batch_budget import dynamic_batches as dynamic_batches
from jaxgnn.graph._batch_samples import GraphSample as GraphSample
from jaxgnn.graph._batch_shape import PadTo as PadTo
from jaxgnn.graph._cbsr import CBSR as CBSR
from jaxgnn.graph._cbsr import column_dtype as column_dtype
from jaxgnn.graph._csr import CSRGraph as CSRGraph
from jaxgnn.graph._edge_blocks import BlockShape as BlockShape
from jaxgnn.graph._edge_blocks import BlockTasks as BlockTasks
from jaxgnn.graph._edge_blocks import EdgeBlocks as EdgeBlocks
from jaxgnn.graph._edge_blocks import blocks_for as blocks_for
from jaxgnn.graph._incidence import Incidence as Incidence
from jaxgnn.graph._incidence_plan import IncidencePlan as IncidencePlan
from jaxgnn.graph._incidence_validate import check_incidence_shapes as check_incidence_shapes
from jaxgnn.graph._interchange import NetworkXAttributes as NetworkXAttributes
from jaxgnn.graph._normalization import Normalization as Normalization
from jaxgnn.graph._plan import GraphPlan as GraphPlan
from jaxgnn.graph._schedule import MAX_EDGES_PER_UNIT as MAX_EDGES_PER_UNIT
from jaxgnn.graph._schedule import RowSchedule as RowSchedule
from jaxgnn.graph._schedule import edges_per_piece as edges_per_piece
from jaxgnn.graph._sorting import sort_edges as sort_edges
from jaxgnn.graph._validate import check_shapes as check_shapes
