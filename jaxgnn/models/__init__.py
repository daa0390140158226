"""Whole networks."""

from jaxgnn.models._maxk_gnn import MaxKGNN as MaxKGNN
