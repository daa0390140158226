"""Learnt simulators of particles: springs and charges."""
