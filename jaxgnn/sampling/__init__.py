"""Random samples of a graph for training, and inference on graphs that no device holds."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.sampling import features as features
from jaxgnn.sampling._blocks import SampledBatch as SampledBatch
from jaxgnn.sampling._capacity import Capacity as Capacity
from jaxgnn.sampling._cluster_loader import ClusterLoader as ClusterLoader
from jaxgnn.sampling._cluster_loader import ClusterMethod as ClusterMethod
from jaxgnn.sampling._dense_ranks import Relabelling as Relabelling
from jaxgnn.sampling._hetero_blocks import HeteroBatch as HeteroBatch
from jaxgnn.sampling._hetero_capacity import HeteroCapacity as HeteroCapacity
from jaxgnn.sampling._hetero_loader import HeteroNeighborLoader as HeteroNeighborLoader
from jaxgnn.sampling._host import sample_hops as sample_hops
from jaxgnn.sampling._infer_layerwise import infer_layerwise as infer_layerwise
from jaxgnn.sampling._link_loader import LinkBatch as LinkBatch
from jaxgnn.sampling._link_loader import LinkNeighborLoader as LinkNeighborLoader
from jaxgnn.sampling._masked_mean import masked_mean as masked_mean
from jaxgnn.sampling._negative_edges import NegativeSampler as NegativeSampler
from jaxgnn.sampling._negative_edges import PairWeights as PairWeights
from jaxgnn.sampling._negative_edges import negative_edges as negative_edges
from jaxgnn.sampling._neighbor_loader import NeighborLoader as NeighborLoader
from jaxgnn.sampling._on_device import DeviceSample as DeviceSample
from jaxgnn.sampling._on_device import sample_on_device as sample_on_device
from jaxgnn.sampling._reference import Hop as Hop
from jaxgnn.sampling._reference import Hops as Hops
from jaxgnn.sampling._saint_loader import SaintLoader as SaintLoader
from jaxgnn.sampling._saint_loader import SaintMethod as SaintMethod
from jaxgnn.sampling._shadow_loader import ShadowLoader as ShadowLoader
from jaxgnn.sampling._subgraphs import SubgraphBatch as SubgraphBatch

_suggest_names(__name__)
