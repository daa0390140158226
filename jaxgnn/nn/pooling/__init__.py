"""Readouts: features of graphs, and scores of pairs of nodes, from features of nodes."""
