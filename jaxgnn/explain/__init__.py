"""Explanations of what a trained model computes: which edges matter to a prediction."""

from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.explain.edge_scores import Method as Method
from jaxgnn.explain.edge_scores import edge_scores as edge_scores

_suggest_names(__name__)
