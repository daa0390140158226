"""Attention over the neighbours of a node: softmax of scores, weighted sum, their gradients."""
