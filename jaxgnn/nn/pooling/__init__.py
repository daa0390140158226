"""Readouts: features of graphs from features of their nodes."""
