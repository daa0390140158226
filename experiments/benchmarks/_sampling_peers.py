"""Neighbour samplers of other libraries, in a process of their own: they need another NumPy.

``Peer`` starts this file in the Python that has them, and asks for one batch after the other. That
process imports nothing of this project.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAMES = ("dgl", "graphbolt", "torch-sparse")


class Peer:
    """A process that samples with one library.

    Args:
      python: path of the Python interpreter.
      name: one of ``NAMES``.
      folder: where ``indptr.npy`` and ``indices.npy`` are.
      fanouts: numbers of neighbours, next to the seeds first.
      threads: number of threads.

    Attributes:
      versions: versions of its libraries.

    Raises:
      NotImplementedError: if the library can not be used, with the last line of its error.
    """

    def __init__(self, python: str, name: str, folder: Path, fanouts: Sequence[int], threads: int):
        command = [python, __file__, name, str(folder), json.dumps(fanouts), str(threads)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.versions: dict[str, str] = self._answer()
        except json.JSONDecodeError:
            lines = self.close().strip().splitlines() or ["it ended"]
            raise NotImplementedError(f"{name}: {lines[-1]}") from None

    def sample(self, seeds: Sequence[int]) -> dict[str, float]:
        """Samples one batch; returns its ``seconds``, ``edges`` and ``nodes``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(seeds)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> str:
        """Ends the process; returns what it wrote to its standard error."""
        return self._process.communicate()[1]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _dgl(folder: str, fanouts: Sequence[int]) -> tuple[dict[str, str], Callable]:
    """``dgl.dataloading.NeighborSampler``: blocks with local ids, and ids of nodes and edges."""
    import dgl  # pyrefly: ignore
    import torch  # pyrefly: ignore

    indptr, indices = _graph(folder)
    nodes = len(indptr) - 1
    graph = dgl.graph(("csc", (indptr, indices.long(), [])), num_nodes=nodes)
    graph = graph.formats("csc")
    sampler = dgl.dataloading.NeighborSampler(list(reversed(fanouts)))

    def sample(seeds):
        input_nodes, _, blocks = sampler.sample(graph, seeds)
        edges = sum(block.num_edges() for block in blocks)
        assert all(dgl.EID in block.edata for block in blocks)
        return edges, len(input_nodes)

    return {"dgl": dgl.__version__, "torch": torch.__version__}, sample


def _graphbolt(folder: str, fanouts: Sequence[int]) -> tuple[dict[str, str], Callable]:
    """Calls of the data pipe ``sample_neighbor`` of ``dgl.graphbolt``; without ids of edges."""
    import dgl  # pyrefly: ignore
    import torch  # pyrefly: ignore
    from dgl import graphbolt  # pyrefly: ignore

    indptr, indices = _graph(folder)
    graph = graphbolt.fused_csc_sampling_graph(indptr, indices)

    def sample(seeds):
        edges, nodes = 0, seeds.to(indices.dtype)
        for fanout in fanouts:
            found = graph.sample_neighbors(nodes, torch.tensor([fanout])).sampled_csc
            edges += len(found.indices)
            nodes, _ = graphbolt.unique_and_compact_csc_formats(found, nodes)
        return edges, len(nodes)

    return {"dgl": dgl.__version__, "torch": torch.__version__}, sample


def _torch_sparse(folder: str, fanouts: Sequence[int]) -> tuple[dict[str, str], Callable]:
    """``torch.ops.torch_sparse.neighbor_sample``, one thread, each node drawn for once."""
    import torch  # pyrefly: ignore
    import torch_sparse  # pyrefly: ignore

    indptr, indices = _graph(folder)
    indices = indices.long()

    def sample(seeds):
        nodes, _, _, edges = torch.ops.torch_sparse.neighbor_sample(
            indptr, indices, seeds, list(fanouts), False, True
        )
        return len(edges), len(nodes)

    return {"torch_sparse": torch_sparse.__version__, "torch": torch.__version__}, sample


def _graph(folder: str) -> tuple[Any, Any]:
    import numpy as np
    import torch  # pyrefly: ignore

    indptr, indices = (np.load(f"{folder}/{name}.npy") for name in ("indptr", "indices"))
    return torch.from_numpy(indptr), torch.from_numpy(indices)


def _main(name: str, folder: str, fanouts: str, threads: str) -> None:
    import torch  # pyrefly: ignore

    torch.set_num_threads(int(threads))
    makers = dict(zip(NAMES, (_dgl, _graphbolt, _torch_sparse), strict=True))
    versions, sample = makers[name](folder, json.loads(fanouts))
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        seeds = torch.tensor(json.loads(line))
        start = time.perf_counter()
        edges, nodes = sample(seeds)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "edges": edges, "nodes": nodes}), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
