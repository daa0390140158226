"""A process that compiles ops with JAX's persistent cache, and says what it found there.

``python -m tests.ops._cached_process SEED``: the graph and the order of the programs depend on the
seed, and nothing that is compiled does. It prints one line of JSON: the number of hits and misses
of the cache, and a hash of the programs that are lowered for CUDA.
"""

import hashlib
import json
import sys
from collections import Counter

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph, ops
from jaxgnn.ops.core import dispatch
from pallas_kernels import chip
from tests.pallas_kernels._chips import H100


def _attention(graph, x):
    logits = ops.sddmm(graph, x, x)
    return ops.spmm(graph.with_weights(ops.segment_softmax(graph, logits)), x)


def _maxk(graph, x):
    return ops.maxk_spmm(graph, ops.maxk(x, 4))


def _linear(graph, x):
    return ops.spmm(graph, ops.fused_mlp(x, [x.T @ x] * 2, [None] * 2, activation="relu"))


def _gradient(function):
    return jax.jit(jax.grad(lambda x, graph: jnp.sum(function(graph, x) ** 2)))


def main(seed: int) -> None:
    """Compiles and runs on this platform, and lowers for CUDA."""
    events: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, 50, (2, 400))
    graph = CSRGraph.from_edges(senders, receivers, 50)
    x = jax.device_put(rng.normal(size=(50, 64)).astype(np.float32))
    programs = {f.__name__: _gradient(f) for f in (_attention, _maxk, _linear)}
    names = sorted(programs, reverse=seed % 2 == 0)
    for name in names:
        jax.block_until_ready(programs[name](x, graph))
    counts = {what: events[f"/jax/compilation_cache/cache_{what}"] for what in ("hits", "misses")}

    dispatch.current_platform = lambda: "cuda"  # pyrefly: ignore
    chip._current = lambda: H100  # pyrefly: ignore
    dispatch.no_mosaic_gpu.cache_clear()
    jax.clear_caches()
    texts = {}
    for name in names:
        traced = _gradient(globals()[name]).trace(x, graph)
        texts[name] = traced.lower(lowering_platforms=("cuda",)).as_text()
    kernels = sum(text.count("mosaic_gpu_v2") for text in texts.values())
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()
    print(json.dumps({**counts, "kernels": kernels, "cuda": digest}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
