"""Graphs, hypergraphs and compressed features as pytrees."""

from jaxgnn._arrays.arrays import is_concrete as is_concrete
from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.graph import serialization as serialization
from jaxgnn.graph.batch.graph_batch import GraphBatch as GraphBatch
from jaxgnn.graph.batch.graph_batch import dynamic_batches as dynamic_batches
from jaxgnn.graph.batch.graph_batch import unbatch as unbatch
from jaxgnn.graph.batch.samples import GraphSample as GraphSample
from jaxgnn.graph.batch.shape import PadTo as PadTo
from jaxgnn.graph.csr.cbsr import CBSR as CBSR
from jaxgnn.graph.csr.cbsr import column_dtype as column_dtype
from jaxgnn.graph.csr.csr_graph import CSRGraph as CSRGraph
from jaxgnn.graph.csr.interchange import NetworkXAttributes as NetworkXAttributes
from jaxgnn.graph.csr.masked_graph import MaskedGraph as MaskedGraph
from jaxgnn.graph.csr.masked_graph import edge_presence as edge_presence
from jaxgnn.graph.csr.masked_graph import masked as masked
from jaxgnn.graph.csr.normalization import GCNCoefficients as GCNCoefficients
from jaxgnn.graph.csr.normalization import every_node_has_a_loop as every_node_has_a_loop
from jaxgnn.graph.csr.normalization import gcn_coefficients as gcn_coefficients
from jaxgnn.graph.csr.rows import Normalization as Normalization
from jaxgnn.graph.csr.transforms import Reduce as Reduce
from jaxgnn.graph.csr.transforms import Subgraph as Subgraph
from jaxgnn.graph.csr.transforms import add_self_loops as add_self_loops
from jaxgnn.graph.csr.transforms import coalesce as coalesce
from jaxgnn.graph.csr.transforms import largest_component as largest_component
from jaxgnn.graph.csr.transforms import permute as permute
from jaxgnn.graph.csr.transforms import remove_self_loops as remove_self_loops
from jaxgnn.graph.csr.transforms import subgraph as subgraph
from jaxgnn.graph.csr.transforms import to_undirected as to_undirected
from jaxgnn.graph.csr.validation import check_shapes as check_shapes
from jaxgnn.graph.hetero.hetero_graph import EdgeType as EdgeType
from jaxgnn.graph.hetero.hetero_graph import HeteroGraph as HeteroGraph
from jaxgnn.graph.hetero.relational import RelationalGraph as RelationalGraph
from jaxgnn.graph.incidence.incidence import Incidence as Incidence
from jaxgnn.graph.incidence.incidence import check_incidence_shapes as check_incidence_shapes
from jaxgnn.graph.incidence.incidence_plan import IncidencePlan as IncidencePlan
from jaxgnn.graph.local.halo import Halo as Halo
from jaxgnn.graph.local.local_graph import LocalGraph as LocalGraph
from jaxgnn.graph.local.local_graph import mean_over_nodes as mean_over_nodes
from jaxgnn.graph.local.local_graph import sum_over_devices as sum_over_devices
from jaxgnn.graph.local.self_loops import FillValue as FillValue
from jaxgnn.graph.local.self_loops import LoopedGraph as LoopedGraph
from jaxgnn.graph.local.self_loops import LoopReduce as LoopReduce
from jaxgnn.graph.local.self_loops import looped_features as looped_features
from jaxgnn.graph.local.self_loops import with_one_loop_each as with_one_loop_each
from jaxgnn.graph.plan.edge_blocks import BlockShape as BlockShape
from jaxgnn.graph.plan.edge_blocks import BlockTasks as BlockTasks
from jaxgnn.graph.plan.edge_blocks import EdgeBlocks as EdgeBlocks
from jaxgnn.graph.plan.edge_blocks import blocks_for as blocks_for
from jaxgnn.graph.plan.plan import GraphPlan as GraphPlan
from jaxgnn.graph.plan.schedule import MAX_EDGES_PER_UNIT as MAX_EDGES_PER_UNIT
from jaxgnn.graph.plan.schedule import RowSchedule as RowSchedule
from jaxgnn.graph.plan.schedule import edges_per_piece as edges_per_piece
from jaxgnn.graph.plan.sorting import sort_edges as sort_edges
from jaxgnn.graph.points.cell_grid import CellGrid as CellGrid
from jaxgnn.graph.points.neighbour_edges import NeighbourEdges as NeighbourEdges
from jaxgnn.graph.points.neighbour_list import NeighbourList as NeighbourList
from jaxgnn.graph.points.neighbours import knn_graph as knn_graph
from jaxgnn.graph.points.neighbours import radius_graph as radius_graph
from jaxgnn.graph.points.neighbours_on_device import knn_graph_on_device as knn_graph_on_device
from jaxgnn.graph.points.neighbours_on_device import (
    radius_graph_on_device as radius_graph_on_device,
)
from jaxgnn.graph.points.positions import laplacian_positions as laplacian_positions
from jaxgnn.graph.points.positions import random_walk_positions as random_walk_positions

_suggest_names(__name__)
