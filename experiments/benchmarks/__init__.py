"""Benchmarks, one module an op: ``python -m experiments.benchmarks`` runs them all."""
