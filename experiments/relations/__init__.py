"""Node classification on a graph with nodes of several types."""
