"""Flax NNX layers: parameters and ops, nothing else."""

from jaxgnn.nn._allset import AllDeepSetsConv as AllDeepSetsConv
from jaxgnn.nn._allset import AllSetTransformerConv as AllSetTransformerConv
from jaxgnn.nn._convolutions import GCNConv as GCNConv
from jaxgnn.nn._convolutions import GINConv as GINConv
from jaxgnn.nn._convolutions import SAGEConv as SAGEConv
from jaxgnn.nn._hnhn import HNHNConv as HNHNConv
from jaxgnn.nn._hyper_connection import HyperConnection as HyperConnection
from jaxgnn.nn._hyper_connection import HyperHead as HyperHead
from jaxgnn.nn._hyper_stack import HyperStack as HyperStack
from jaxgnn.nn._hyper_stack import recompute_interval as recompute_interval
from jaxgnn.nn._hypergcn import HyperGCNConv as HyperGCNConv
from jaxgnn.nn._hypergraph import HyperedgeWeights as HyperedgeWeights
from jaxgnn.nn._hypergraph_conv import HGNNPlusConv as HGNNPlusConv
from jaxgnn.nn._hypergraph_conv import HypergraphConv as HypergraphConv
from jaxgnn.nn._linear import FusedLinear as FusedLinear
from jaxgnn.nn._linear import FusedMLP as FusedMLP
from jaxgnn.nn._linear import apply_linear as apply_linear
from jaxgnn.nn._maxk import Activation as Activation
from jaxgnn.nn._maxk import KernelMode as KernelMode
from jaxgnn.nn._maxk import MaxK as MaxK
from jaxgnn.nn._maxk import aggregate as aggregate
from jaxgnn.nn._maxk import check_widths as check_widths
from jaxgnn.nn._unignn import UniGATConv as UniGATConv
from jaxgnn.nn._unignn import UniGCNConv as UniGCNConv
from jaxgnn.nn._unignn import UniGINConv as UniGINConv
from jaxgnn.nn._unignn import UniSAGEConv as UniSAGEConv
