"""Reductions of the neighbours of a node: sum, mean, extremes, deviations, softmax."""
