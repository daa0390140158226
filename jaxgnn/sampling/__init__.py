"""Random samples of a graph for training, drawn on the device."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.sampling._dense_ranks import Relabelling as Relabelling
from jaxgnn.sampling._host import sample_hops as sample_hops
from jaxgnn.sampling._negative_edges import NegativeSampler as NegativeSampler
from jaxgnn.sampling._negative_edges import PairWeights as PairWeights
from jaxgnn.sampling._negative_edges import negative_edges as negative_edges
from jaxgnn.sampling._on_device import DeviceSample as DeviceSample
from jaxgnn.sampling._on_device import sample_on_device as sample_on_device
from jaxgnn.sampling._reference import Hop as Hop
from jaxgnn.sampling._reference import Hops as Hops

_suggest_names(__name__)
