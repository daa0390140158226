"""Random samples of a graph for training, and inference on graphs that no device holds."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.sampling import features as features
from jaxgnn.sampling.batches import HeteroBatch as HeteroBatch
from jaxgnn.sampling.batches import SampledBatch as SampledBatch
from jaxgnn.sampling.batches import masked_mean as masked_mean
from jaxgnn.sampling.capacity import Capacity as Capacity
from jaxgnn.sampling.capacity import HeteroCapacity as HeteroCapacity
from jaxgnn.sampling.clusters import ClusterLoader as ClusterLoader
from jaxgnn.sampling.clusters import ClusterMethod as ClusterMethod
from jaxgnn.sampling.device import DeviceSample as DeviceSample
from jaxgnn.sampling.device import sample_on_device as sample_on_device
from jaxgnn.sampling.device_rows import Relabelling as Relabelling
from jaxgnn.sampling.hetero import HeteroNeighborLoader as HeteroNeighborLoader
from jaxgnn.sampling.host import sample_hops as sample_hops
from jaxgnn.sampling.layerwise import infer_layerwise as infer_layerwise
from jaxgnn.sampling.links import LinkBatch as LinkBatch
from jaxgnn.sampling.links import LinkNeighborLoader as LinkNeighborLoader
from jaxgnn.sampling.loader import Loader as Loader
from jaxgnn.sampling.loader import Step as Step
from jaxgnn.sampling.negatives import NegativeSampler as NegativeSampler
from jaxgnn.sampling.negatives import PairWeights as PairWeights
from jaxgnn.sampling.negatives import negative_edges as negative_edges
from jaxgnn.sampling.neighbours import NeighborLoader as NeighborLoader
from jaxgnn.sampling.reference import Hop as Hop
from jaxgnn.sampling.reference import Hops as Hops
from jaxgnn.sampling.saint import SaintLoader as SaintLoader
from jaxgnn.sampling.saint import SaintMethod as SaintMethod
from jaxgnn.sampling.shadow import ShadowLoader as ShadowLoader
from jaxgnn.sampling.subgraphs import SubgraphBatch as SubgraphBatch

_suggest_names(__name__)
