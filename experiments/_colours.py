"""Colours of pictures: one for each implementation, the same in training and in benchmarks."""

from jaxgnn.training._colours import PALETTE as PALETTE
from jaxgnn.training._colours import colour as colour
from jaxgnn.training._colours import colours as colours
