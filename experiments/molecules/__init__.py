"""Learnt potentials: energies and forces of crystals, clusters and molecules."""
