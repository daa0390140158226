"""HGNN: a language model of coupled experts, and node classification on hypergraphs."""
