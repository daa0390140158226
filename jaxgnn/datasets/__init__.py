"""Data sets of nodes, links and graphs: readers of published files, embedded data, generators.

Nothing is downloaded. Functions return a ``NodeDataset``, a ``HypergraphDataset``, a
``GraphsDataset``, a ``LinksDataset``, a ``RelationsDataset`` or a ``TriplesDataset`` of numpy
arrays; only ``synthetic`` can leave its arrays on the device. ``split_edges`` splits a graph for
link prediction, and ``split_graphs`` a data set of graphs. ``pydoc_text`` is a text for language
models; ``sudoku`` has puzzles.
"""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.datasets import sudoku as sudoku
from jaxgnn.datasets._cora import cora as cora
from jaxgnn.datasets._digit_graphs import digit_graphs as digit_graphs
from jaxgnn.datasets._digits import digits as digits
from jaxgnn.datasets._digits import digits_hypergraph as digits_hypergraph
from jaxgnn.datasets._edge_split import EdgeSplit as EdgeSplit
from jaxgnn.datasets._edge_split import LinkPart as LinkPart
from jaxgnn.datasets._edge_split import split_edges as split_edges
from jaxgnn.datasets._graph_splits import split_graphs as split_graphs
from jaxgnn.datasets._graphs_dataset import GraphsDataset as GraphsDataset
from jaxgnn.datasets._graphsaint import read_graphsaint as read_graphsaint
from jaxgnn.datasets._hyperedge_text import read_hyperedge_text as read_hyperedge_text
from jaxgnn.datasets._hypergcn import read_hypergcn as read_hypergcn
from jaxgnn.datasets._hypergraph_dataset import HypergraphDataset as HypergraphDataset
from jaxgnn.datasets._mutag import mutag as mutag
from jaxgnn.datasets._node_dataset import NodeDataset as NodeDataset
from jaxgnn.datasets._npz_graph import read_npz_graph as read_npz_graph
from jaxgnn.datasets._ogb import read_ogb as read_ogb
from jaxgnn.datasets._ogb_code import read_ogb_code as read_ogb_code
from jaxgnn.datasets._ogb_graphs import read_ogb_graphs as read_ogb_graphs
from jaxgnn.datasets._ogb_links import LinksDataset as LinksDataset
from jaxgnn.datasets._ogb_links import read_ogb_links as read_ogb_links
from jaxgnn.datasets._ogb_mag import read_ogb_mag as read_ogb_mag
from jaxgnn.datasets._ogb_triples import TriplesDataset as TriplesDataset
from jaxgnn.datasets._ogb_triples import read_ogb_triples as read_ogb_triples
from jaxgnn.datasets._own_graph import read_graph as read_graph
from jaxgnn.datasets._planetoid import read_planetoid as read_planetoid
from jaxgnn.datasets._pydoc_text import TextDataset as TextDataset
from jaxgnn.datasets._pydoc_text import pydoc_text as pydoc_text
from jaxgnn.datasets._readers import GRAPH_READERS as GRAPH_READERS
from jaxgnn.datasets._readers import READERS as READERS
from jaxgnn.datasets._readers import read as read
from jaxgnn.datasets._reddit import read_reddit as read_reddit
from jaxgnn.datasets._relations_dataset import RelationsDataset as RelationsDataset
from jaxgnn.datasets._synthetic import SCALES as SCALES
from jaxgnn.datasets._synthetic import SyntheticScale as SyntheticScale
from jaxgnn.datasets._synthetic import synthetic as synthetic
from jaxgnn.datasets._tu import read_tu as read_tu
from jaxgnn.datasets._zinc import read_zinc as read_zinc

_suggest_names(__name__)
