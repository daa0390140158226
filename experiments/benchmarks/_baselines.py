"""The same computations in scipy, and in torch where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from experiments.benchmarks._cases import Candidate
from jaxgnn.graph import CSRGraph


def scipy_spmm(graph: CSRGraph, inputs: Sequence[tuple], direction: str) -> dict[str, Candidate]:
    """CSR times dense on one CPU core; no candidate elsewhere, in bfloat16, or both ways at once.

    Args:
      graph: graph of the forward direction.
      inputs: sets of ``(graph, x, dy)``.
      direction: ``"forward"``, or ``"backward"``, which uses a transpose built beforehand.
    """
    one_way = direction in ("forward", "backward")
    if jax.default_backend() != "cpu" or not one_way or inputs[0][1].dtype != jnp.float32:
        return {}
    graph = graph if direction == "forward" else graph.transpose()
    data = np.ones(graph.num_edges, np.float32)
    parts = data, np.asarray(graph.indices), np.asarray(graph.indptr)
    matrix = scipy.sparse.csr_array(parts, shape=graph.shape)
    dense = [(np.asarray(x if direction == "forward" else dy),) for _, x, dy in inputs]
    return {"scipy": Candidate(lambda x: matrix @ x, dense, jit=False)}


def torch_spmm(graph: CSRGraph, inputs: Sequence[tuple], direction: str) -> dict[str, Candidate]:
    """``torch.sparse.mm`` of a CSR matrix, cuSPARSE on a GPU; arguments as in ``scipy_spmm``."""
    torch = torch_here()
    if torch is None or direction not in ("forward", "backward"):
        return {}
    graph = graph if direction == "forward" else graph.transpose()
    dense = [(to_torch(x if direction == "forward" else dy),) for _, x, dy in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "sparse CSR support is in beta"
        matrix = torch.sparse_csr_tensor(
            to_torch(graph.indptr),
            to_torch(graph.indices),
            torch.ones(graph.num_edges, dtype=dense[0][0].dtype, device=dense[0][0].device),
            size=graph.shape,
        )
    run = torch.inference_mode()(lambda x: torch.sparse.mm(matrix, x))
    return {"torch.sparse.mm": Candidate(run, dense, jit=False, wait=wait_for_torch)}


def torch_top_k(inputs: Sequence[tuple], k: int, direction: str) -> dict[str, Candidate]:
    """``torch.topk`` over rows, forward only.

    Args:
      inputs: sets of ``(context, x, dy)``.
      k: entries a row.
      direction: only ``"forward"`` has a candidate.
    """
    torch = torch_here()
    if torch is None or direction != "forward":
        return {}
    rows = [(to_torch(x),) for _, x, _ in inputs]
    run = torch.inference_mode()(lambda x: torch.topk(x, k, dim=-1))
    return {"torch.topk": Candidate(run, rows, jit=False, wait=wait_for_torch)}


def torch_segment_softmax(
    graph: CSRGraph, inputs: Sequence[tuple], direction: str
) -> dict[str, Candidate]:
    """``softmax`` of torch-geometric, by the receiver of each edge, as its layers use it.

    Args:
      graph: graph without padding.
      inputs: sets of ``(graph, logits, dy)``.
      direction: ``"forward"`` or ``"forward+backward"``.
    """
    if torch_here() is None or importlib.util.find_spec("torch_geometric") is None:
        return {}
    softmax = importlib.import_module("torch_geometric.utils").softmax
    rows = to_torch(graph.receivers()).long()

    def normalised(logits):
        return softmax(logits, rows, num_nodes=graph.num_rows)

    calls = [
        (torch_call(direction, normalised, [to_torch(logits)], to_torch(dy)),)
        for _, logits, dy in inputs
    ]
    run = Candidate(lambda call: call(), calls, jit=False, wait=wait_for_torch)
    return {"torch-geometric": run}


def torch_aggregation(
    graph: CSRGraph, inputs: Sequence[tuple], reductions: tuple[str, ...], direction: str
) -> dict[str, Candidate]:
    """``MultiAggregation`` of torch-geometric over gathered neighbours, or over messages.

    Args:
      graph: graph without padding.
      inputs: sets of ``(graph, x, dy)``; x has a row for each sender, or for each edge.
      reductions: names of the reductions.
      direction: ``"forward"`` or ``"forward+backward"``.
    """
    if torch_here() is None or importlib.util.find_spec("torch_geometric") is None:
        return {}
    reduce = importlib.import_module("torch_geometric.nn.aggr").MultiAggregation(list(reductions))
    rows, senders = (to_torch(ids).long() for ids in (graph.receivers(), graph.indices))
    by_edge = inputs[0][1].shape[0] == graph.num_edges

    def reduced(x):
        return reduce(x if by_edge else x[senders], index=rows, dim_size=graph.num_rows)

    calls = [(torch_call(direction, reduced, [to_torch(x)], to_torch(dy)),) for _, x, dy in inputs]
    run = Candidate(lambda call: call(), calls, jit=False, wait=wait_for_torch)
    return {"torch-geometric": run}


def torch_call(direction: str, layer: Callable, leaves: Sequence[Any], dy: Any) -> Callable:
    """Returns a call of a torch layer that takes no arguments.

    Args:
      direction: ``"forward"``, which saves nothing for a backward pass, or ``"forward+backward"``,
        with the gradients to all leaves.
      layer: ``layer(*leaves) -> y``.
      leaves: tensors.
      dy: gradient of y.
    """
    leaves = [leaf.detach() for leaf in leaves]
    if direction == "forward":
        return lambda: layer(*leaves)
    torch = importlib.import_module("torch")
    for leaf in leaves:
        leaf.requires_grad_()

    def both():
        y = layer(*leaves)
        return y.detach(), torch.autograd.grad(y, leaves, dy)

    return both


def torch_here() -> Any:
    """The torch module; None if it is not installed or lacks the device."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    usable = jax.default_backend() == "cpu" or torch.cuda.is_available()
    return torch if usable else None


def to_torch(array: jax.Array) -> Any:
    """A torch tensor that shares the array's memory."""
    return importlib.import_module("torch").from_dlpack(array)


def wait_for_torch(result: Any) -> None:
    """Blocks until all work that torch has queued is done."""
    torch = importlib.import_module("torch")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
