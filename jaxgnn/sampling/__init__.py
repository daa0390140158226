"""Random samples of a graph for training, drawn on the device."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.sampling._negative_edges import NegativeSampler as NegativeSampler
from jaxgnn.sampling._negative_edges import PairWeights as PairWeights
from jaxgnn.sampling._negative_edges import negative_edges as negative_edges

_suggest_names(__name__)
