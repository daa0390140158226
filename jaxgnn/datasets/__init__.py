"""Data sets of nodes, links and graphs: readers of published files, embedded data, generators.

Nothing is downloaded. Functions return a ``NodeDataset``, a ``HypergraphDataset``, a
``GraphsDataset``, a ``LinksDataset``, a ``RelationsDataset``, a ``TriplesDataset``, a
``ParticleMotion`` or a ``StructuresDataset`` of numpy arrays; only ``synthetic`` can leave its
arrays on the device. ``split_edges`` splits a graph for link prediction, and ``split_graphs`` a
data set of graphs. ``pydoc_text`` is a text for language models; ``sudoku`` has puzzles.

All readers raise ``FileNotFoundError`` if a folder or file is missing, and ``ValueError`` for an
unknown name or an invalid file. The message names the file, and in text the line.
"""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.datasets import sudoku as sudoku
from jaxgnn.datasets.embedded.cora import cora as cora
from jaxgnn.datasets.embedded.digits import digit_graphs as digit_graphs
from jaxgnn.datasets.embedded.digits import digits as digits
from jaxgnn.datasets.embedded.digits import digits_hypergraph as digits_hypergraph
from jaxgnn.datasets.embedded.mutag import mutag as mutag
from jaxgnn.datasets.embedded.pydoc_text import TextDataset as TextDataset
from jaxgnn.datasets.embedded.pydoc_text import pydoc_text as pydoc_text
from jaxgnn.datasets.generators.particles import ParticleSystem as ParticleSystem
from jaxgnn.datasets.generators.particles import particle_energy as particle_energy
from jaxgnn.datasets.generators.particles import particles as particles
from jaxgnn.datasets.generators.relations import synthetic_relations as synthetic_relations
from jaxgnn.datasets.generators.structures import argon as argon
from jaxgnn.datasets.generators.structures import silicon as silicon
from jaxgnn.datasets.generators.synthetic import SCALES as SCALES
from jaxgnn.datasets.generators.synthetic import SyntheticScale as SyntheticScale
from jaxgnn.datasets.generators.synthetic import synthetic as synthetic
from jaxgnn.datasets.readers.ase_database import read_ase as read_ase
from jaxgnn.datasets.readers.extxyz import read_extxyz as read_extxyz
from jaxgnn.datasets.readers.graphsaint import read_graphsaint as read_graphsaint
from jaxgnn.datasets.readers.graphsaint import read_reddit as read_reddit
from jaxgnn.datasets.readers.hypergraphs import read_hyperedge_text as read_hyperedge_text
from jaxgnn.datasets.readers.hypergraphs import read_hypergcn as read_hypergcn
from jaxgnn.datasets.readers.npz_graph import read_npz_graph as read_npz_graph
from jaxgnn.datasets.readers.ogb import read_ogb as read_ogb
from jaxgnn.datasets.readers.ogb import read_ogb_code as read_ogb_code
from jaxgnn.datasets.readers.ogb import read_ogb_graphs as read_ogb_graphs
from jaxgnn.datasets.readers.ogb import read_ogb_mag as read_ogb_mag
from jaxgnn.datasets.readers.ogb_links import read_ogb_links as read_ogb_links
from jaxgnn.datasets.readers.ogb_links import read_ogb_triples as read_ogb_triples
from jaxgnn.datasets.readers.own_graph import read_graph as read_graph
from jaxgnn.datasets.readers.planetoid import read_planetoid as read_planetoid
from jaxgnn.datasets.readers.table import GRAPH_READERS as GRAPH_READERS
from jaxgnn.datasets.readers.table import READERS as READERS
from jaxgnn.datasets.readers.table import read as read
from jaxgnn.datasets.readers.tu import read_tu as read_tu
from jaxgnn.datasets.readers.zinc import read_zinc as read_zinc
from jaxgnn.datasets.records.edge_split import EdgeSplit as EdgeSplit
from jaxgnn.datasets.records.edge_split import LinkPart as LinkPart
from jaxgnn.datasets.records.edge_split import split_edges as split_edges
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset as GraphsDataset
from jaxgnn.datasets.records.links_dataset import LinksDataset as LinksDataset
from jaxgnn.datasets.records.links_dataset import TriplesDataset as TriplesDataset
from jaxgnn.datasets.records.node_dataset import HypergraphDataset as HypergraphDataset
from jaxgnn.datasets.records.node_dataset import NodeDataset as NodeDataset
from jaxgnn.datasets.records.particle_motion import ParticleMotion as ParticleMotion
from jaxgnn.datasets.records.relations_dataset import RelationsDataset as RelationsDataset
from jaxgnn.datasets.records.splits import split_graphs as split_graphs
from jaxgnn.datasets.records.structures_dataset import StructuresDataset as StructuresDataset

_suggest_names(__name__)
