"""Whole networks."""

from jaxgnn.models._causal_lm import CausalLM as CausalLM
from jaxgnn.models._maxk_gnn import MaxKGNN as MaxKGNN
