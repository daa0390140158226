"""The two sparse products as differentiable functions, and random input for them."""

from __future__ import annotations

import dataclasses

import jax

from experiments.benchmarks._cases import Differentiable
from experiments.benchmarks._workloads import Workload, input_sets
from jaxgnn import ops


def dense_inputs(workload: Workload, dtype: str) -> list[tuple]:
    """Sets of ``(graph, x, dy)``."""
    graph, dim = workload.graph(), workload.dim

    def make(key):
        x_key, dy_key = jax.random.split(key)
        x = jax.random.normal(x_key, (graph.num_cols, dim), dtype)
        return x, jax.random.normal(dy_key, (graph.num_rows, dim), dtype)

    return [(graph, x, dy) for x, dy in input_sets(make)]


def kept_inputs(workload: Workload, dtype: str, k: int) -> list[tuple]:
    """Sets of ``((graph, kept), values, dy)``, ``kept`` a CBSR of uniformly random columns."""
    graph, dim = workload.graph(), workload.dim

    def make(key):
        x_key, dy_key = jax.random.split(key)
        kept = ops.maxk(jax.random.normal(x_key, (graph.num_cols, dim), dtype), k)
        return kept, jax.random.normal(dy_key, (graph.num_rows, dim), dtype)

    return [((graph, kept), kept.values, dy) for kept, dy in input_sets(make)]


def spmm(name: ops.Name | None) -> Differentiable:
    """``ops.spmm`` as ``f(graph, x)``."""
    return lambda graph, x: (ops.spmm(graph, x, implementation=name), None)


def maxk_spmm(name: ops.Name | None) -> Differentiable:
    """``ops.maxk_spmm`` as ``f((graph, kept), values)``."""

    def product(context, values):
        graph, kept = context
        kept = dataclasses.replace(kept, values=values)
        return ops.maxk_spmm(graph, kept, implementation=name), None

    return product


def todense_and_spmm(name: ops.Name | None) -> Differentiable:
    """The same product as dense ``spmm``, with its implementation ``name``."""

    def product(context, values):
        graph, kept = context
        x = ops.todense(dataclasses.replace(kept, values=values))
        return ops.spmm(graph, x, implementation=name), None

    return product
