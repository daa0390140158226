"""Random samples of a graph for training, drawn on the device."""

from jaxgnn.sampling._negative_edges import NegativeSampler as NegativeSampler
from jaxgnn.sampling._negative_edges import PairWeights as PairWeights
from jaxgnn.sampling._negative_edges import negative_edges as negative_edges
