"""The same attention by the layers of torch-geometric, where it is installed.

Each layer gets the operands of our op instead of the results of its linear layers, so that both
compute the same sums: ``GATConv`` and ``GATv2Conv`` without bias and self loops,
``TransformerConv`` without its root weight.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax

from experiments.benchmarks._baselines import to_torch, torch_call, torch_here, wait_for_torch
from experiments.benchmarks._cases import Candidate
from jaxgnn.graph import CSRGraph
from jaxgnn.testing.timing import is_out_of_memory


def torch_attention(
    op: str, graph: CSRGraph, inputs: Sequence[tuple[Any, Any, jax.Array]], direction: str
) -> dict[str, Candidate]:
    """The layer of torch-geometric whose core is an op of attention.

    A layer that runs out of memory frees its arrays and has rows without times.

    Args:
      op: name of the op.
      graph: graph without padding.
      inputs: sets of ``(graph, arrays, dy)``, with the arrays in the order of the op's arguments.
      direction: ``"forward"`` or ``"forward+backward"``, with the gradients to all arrays.
    """
    torch = torch_here()
    if torch is None or importlib.util.find_spec("torch_geometric") is None:
        return {}
    heads, dim = inputs[0][2].shape[1:]
    layer = LAYERS[op](graph.shape, _edges_when_needed(graph), heads, dim)
    calls = [
        (torch_call(direction, layer, [to_torch(array) for array in arrays], to_torch(dy)),)
        for _, arrays, dy in inputs
    ]
    run = partial(freeing_if_full, torch.cuda.empty_cache)
    return {"torch-geometric": Candidate(run, calls, jit=False, wait=wait_for_torch)}


def freeing_if_full(free: Callable[[], None], call: Callable[[], Any]) -> Any:
    """Returns the result of ``call()``; if memory runs out, runs ``free()`` before the error."""
    try:
        return call()
    except RuntimeError as error:
        if is_out_of_memory(error):
            free()
        raise


def _edges_when_needed(graph: CSRGraph) -> Callable[[], Any]:
    """``edge_index`` [2, edges] int64, built by the first call, which may run out of memory."""

    @cache
    def edges():
        torch = importlib.import_module("torch")
        return torch.stack([to_torch(ids).long() for ids in (graph.indices, graph.receivers())])

    return edges


def _gat(shape: tuple[int, int], edges: Callable[[], Any], heads: int, dim: int) -> Callable:
    """``(a_dst, a_src, v) -> y``: the part of ``GATConv.forward`` after its linear layers."""
    conv, (rows, cols) = _conv("GATConv", heads, dim, add_self_loops=False), shape

    def layer(a_dst, a_src, v):
        options = {"size": (cols, rows)}
        alpha = conv.edge_updater(edges(), alpha=(a_src, a_dst), edge_attr=None, **options)
        return conv.propagate(edges(), x=(v, None), alpha=alpha, **options)

    return layer


def _gatv2(shape: tuple[int, int], edges: Callable[[], Any], heads: int, dim: int) -> Callable:
    """``(x_dst, x_src, attention) -> y``, by ``GATv2Conv`` with identities as linear layers."""
    torch = importlib.import_module("torch")
    conv, (rows, cols) = _conv("GATv2Conv", heads, dim, add_self_loops=False), shape
    conv.lin_l = conv.lin_r = torch.nn.Identity()

    def layer(x_dst, x_src, attention):
        ends = x_src.reshape(cols, heads * dim), x_dst.reshape(rows, heads * dim)
        parameters = {"att": attention[None]}
        y = torch.func.functional_call(conv, parameters, (ends, edges()))
        return y.reshape(rows, heads, dim)

    return layer


def _transformer(
    shape: tuple[int, int], edges: Callable[[], Any], heads: int, dim: int
) -> Callable:
    """``(q, k, v) -> y``, by ``TransformerConv`` whose linear layers return these arrays."""
    torch = importlib.import_module("torch")

    class Given(torch.nn.Module):
        def forward(self, x):
            return self.given

    conv = _conv("TransformerConv", heads, dim, root_weight=False)
    conv.lin_query, conv.lin_key, conv.lin_value = Given(), Given(), Given()
    rows = shape[0]

    def layer(q, k, v):
        conv.lin_query.given, conv.lin_key.given, conv.lin_value.given = q, k, v
        return conv((k, q), edges()).reshape(rows, heads, dim)

    return layer


LAYERS = {"gat_attention": _gat, "gatv2_attention": _gatv2, "dot_attention": _transformer}


def _conv(name: str, heads: int, dim: int, **options: Any) -> Any:
    """A layer of torch-geometric on our device; its linear layers are not used."""
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    layers = importlib.import_module("torch_geometric.nn")
    return getattr(layers, name)(heads * dim, dim, heads=heads, bias=False, **options).to(device)
