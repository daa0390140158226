"""Graphs that are spread over a few CPU devices, and meshes of these."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh

from jaxgnn import CSRGraph, distributed

NODES, WIDTH = 23, 8


@functools.cache
def graph():
    """Of uneven degrees: a node of very many edges, one without any, repeats and self loops."""
    draws = np.random.default_rng(0)
    senders, receivers = draws.integers(0, NODES - 1, (2, 120))
    receivers[:40] = 3
    senders[100:], receivers[100:] = senders[:20], receivers[:20]
    return CSRGraph.from_edges(senders, receivers, NODES)


def features(*shape, seed=1):
    """Normal random numbers for each node."""
    draws = np.random.default_rng(seed)
    return draws.standard_normal((NODES, *(shape or (WIDTH,)))).astype(np.float32)


def mesh(devices):
    """The first of the devices, along an axis ``nodes``."""
    return Mesh(np.array(jax.devices()[:devices]), ("nodes",))


@functools.cache
def sharded_graph(
    devices,
    exchange="all_gather",
    partition="degree",
    wire_dtype=None,
    overlap=False,
    records=False,
):
    """The graph on so many devices."""
    options = {"exchange": exchange, "partition": partition, "wire_dtype": wire_dtype}
    options |= {"overlap": overlap, "records": records, "ops": ("spmm", "maxk_spmm")}
    return distributed.shard(graph(), mesh(devices), **options)
