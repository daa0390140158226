"""Decoders: scores of pairs of nodes."""
