"""Graphs of edge lists, with ids that are known ahead or only when the function runs."""
