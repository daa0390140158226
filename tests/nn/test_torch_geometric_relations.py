"""Layers of propagation and of relations give what those of PyTorch Geometric do."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import HeteroGraph, RelationalGraph
from jaxgnn.testing import random_array

_NEEDS = "reason: needs {}: make peers-test"
NODES = 9
# Each edge as often in one direction as in the other, one of them twice, and two self loops.
SENDERS = np.array([0, 1, 1, 2, 2, 3, 5, 0, 4, 4, 6, 2, 7, 7])
RECEIVERS = np.array([1, 0, 2, 1, 3, 2, 0, 5, 4, 6, 4, 2, 3, 3])
SENDERS, RECEIVERS = np.append(SENDERS, [3, 3]), np.append(RECEIVERS, [7, 7])
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES)
X, INITIAL = (random_array((NODES, 6), "float32", seed=seed) for seed in (0, 1))

# Pairs of a parameter of PyTorch Geometric and the numbers that it gets.
Pairs = Iterator[tuple[Any, Any]]


def _linear(theirs: Any, ours: Any) -> Pairs:
    yield theirs.weight, ours.kernel[...].T
    if ours.bias is not None:
        yield theirs.bias, ours.bias[...]


def _sgc(theirs: Any, ours: nn.SGConv) -> Pairs:
    yield theirs.lin.weight, ours.linear.kernel[...].T
    yield theirs.bias if hasattr(theirs, "bias") else theirs.lin.bias, ours.bias[...]


def _cheb(theirs: Any, ours: nn.ChebConv) -> Pairs:
    for their, our in zip(theirs.lins, ours.linears, strict=True):
        yield from _linear(their, our)
    yield theirs.bias, ours.bias[...]


def _gcnii(theirs: Any, ours: nn.GCNIIConv) -> Pairs:
    yield theirs.weight1, ours.linear.kernel[...]
    if ours.initial_linear is not None:
        yield theirs.weight2, ours.initial_linear.kernel[...]


def _le(theirs: Any, ours: nn.LEConv) -> Pairs:
    yield from _linear(theirs.lin1, ours.sender_linear)
    yield from _linear(theirs.lin2, ours.receiver_linear)
    yield from _linear(theirs.lin3, ours.self_linear)


def _rgcn(theirs: Any, ours: nn.RGCNConv) -> Pairs:
    yield theirs.weight, ours.kernel[...]
    if ours.coefficients is not None:
        yield theirs.comp, ours.coefficients[...]
    yield theirs.root, ours.root_linear.kernel[...]
    yield theirs.bias, ours.bias[...]


class Case(NamedTuple):
    """A layer of ours, theirs with the same options, and which parameters are the same."""

    ours: Callable[[nnx.Rngs], Any]
    name: str
    theirs: tuple[tuple, dict[str, Any]]
    pairs: Callable[[Any, Any], Pairs] = lambda theirs, ours: iter(())
    initial: bool = False
    lambda_max: float | None = None


def _gcnii_case(share: bool) -> Case:
    options = {"alpha": 0.3, "place": 3, "strength": 0.5, "share_weights": share}
    theirs = {"alpha": 0.3, "layer": 3, "theta": 0.5, "shared_weights": share}
    return Case(
        lambda rngs: nn.GCNIIConv(6, **options, rngs=rngs),
        "GCN2Conv",
        ((6,), theirs),
        _gcnii,
        initial=True,
    )


def _cheb_case(normalization: Any) -> Case:
    return Case(
        lambda rngs: nn.ChebConv(6, 4, num_terms=4, normalization=normalization, rngs=rngs),
        "ChebConv",
        ((6, 4, 4), {"normalization": normalization}),
        _cheb,
        lambda_max=7.5,
    )


CASES = {
    "SGConv": Case(
        lambda rngs: nn.SGConv(6, 4, num_steps=3, rngs=rngs), "SGConv", ((6, 4), {"K": 3}), _sgc
    ),
    "APPNP": Case(
        lambda rngs: nn.APPNP(num_steps=4, alpha=0.2), "APPNP", ((), {"K": 4, "alpha": 0.2})
    ),
    "ChebConv": Case(
        lambda rngs: nn.ChebConv(6, 4, num_terms=4, rngs=rngs), "ChebConv", ((6, 4, 4), {}), _cheb
    ),
    "ChebConv, random walk": _cheb_case("rw"),
    "ChebConv, not normalised": _cheb_case(None),
    "GCNIIConv": _gcnii_case(share=True),
    "GCNIIConv of two matrices": _gcnii_case(share=False),
    "LEConv": Case(lambda rngs: nn.LEConv(6, 4, rngs=rngs), "LEConv", ((6, 4), {}), _le),
}


def _peer():
    torch = pytest.importorskip("torch", reason=_NEEDS.format("torch"))
    pytest.importorskip("torch_geometric", reason=_NEEDS.format("torch-geometric"))
    from torch_geometric import nn as peer

    return torch, peer


def _tensor(torch: Any, array: Any) -> Any:
    return torch.from_numpy(np.array(array))


def _copy(torch: Any, pairs: Pairs) -> None:
    with torch.no_grad():
        for parameter, values in pairs:
            parameter.copy_(_tensor(torch, values).reshape(parameter.shape))


def _shifted(layer: Any) -> Any:
    """The layer with biases that are not zero."""
    for name in ("bias", "priors", "skips"):
        parameter = getattr(layer, name, None)
        if parameter is not None:
            parameter[...] = random_array(parameter.shape, "float32", seed=7)
    return layer


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_propagation(name):
    torch, peer = _peer()
    case = CASES[name]
    ours = _shifted(case.ours(nnx.Rngs(0)))
    sizes, options = case.theirs
    theirs = getattr(peer, case.name)(*sizes, **options)
    _copy(torch, case.pairs(theirs, ours))
    edges = _tensor(torch, np.stack([SENDERS, RECEIVERS]))
    x, initial = (_tensor(torch, array) for array in (X, INITIAL))
    call, of_theirs = {}, {}
    if case.lambda_max is not None:
        call["lambda_max"] = case.lambda_max
        of_theirs["lambda_max"] = torch.tensor(case.lambda_max)
    expected = theirs(x, *((initial,) if case.initial else ()), edges, **of_theirs)
    actual = ours(GRAPH, X, *((INITIAL,) if case.initial else ()), **call)
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"num_blocks": 2}], ids=str)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_relational_convolution(options, monkeypatch):
    torch, peer = _peer()
    import torch_geometric.backend

    # Its product of segments takes the mean over the edges of all relations together.
    monkeypatch.setattr(torch_geometric.backend, "use_segment_matmul", False)
    types = np.arange(len(SENDERS)) % 3
    ours = _shifted(nn.RGCNConv(6, 4, num_relations=3, **options, rngs=nnx.Rngs(0)))
    theirs = peer.RGCNConv(6, 4, num_relations=3, **options)
    _copy(torch, _rgcn(theirs, ours))
    edges, kinds = (_tensor(torch, a) for a in (np.stack([SENDERS, RECEIVERS]), types))
    expected = theirs(_tensor(torch, X), edges, kinds).detach().numpy()
    graph, types = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES, edge_data=types)
    actual = ours(RelationalGraph.from_edge_types(graph, types, 3), X)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def _hgt(theirs: Any, ours: nn.HGTConv) -> Pairs:
    count, heads = len(ours.edge_types), ours.heads
    for place, node_type in enumerate(ours.node_types):
        linear = theirs.kqv_lin.lins[node_type]  # keys, queries, values
        kernel, bias = ours.qkv_linears[place].kernel[...], ours.qkv_linears[place].bias[...]
        query, key, value = np.split(np.asarray(kernel), 3, axis=1)
        yield linear.weight, np.concatenate([key, query, value], axis=1).T
        query, key, value = np.split(np.asarray(bias), 3)
        yield linear.bias, np.concatenate([key, query, value])
        yield from _linear(theirs.out_lin.lins[node_type], ours.out_linears[place])
        yield theirs.skip[node_type], ours.skips[...][place]
    for their, our in ((theirs.k_rel, ours.key_kernel), (theirs.v_rel, ours.value_kernel)):
        matrices = np.asarray(our[...])
        by_head = matrices.reshape(count, heads, *matrices.shape[1:]).swapaxes(0, 1)
        yield their.weight, by_head.reshape(matrices.shape)
    for their, our in zip(theirs.p_rel.values(), ours.priors[...], strict=True):
        yield their, our


@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_attention_over_relations():
    torch, peer = _peer()
    ends = {
        ("author", "writes", "paper"): ([0, 0, 1, 2, 2], [0, 1, 2, 2, 2]),
        ("paper", "cites", "paper"): ([0, 1, 3], [2, 2, 1]),
        ("paper", "is read by", "author"): ([3, 3, 0], [0, 1, 1]),
    }
    counts, widths = {"author": 3, "paper": 4}, {"author": 4, "paper": 6}
    graph = HeteroGraph(
        {
            (src, name, dst): CSRGraph.from_edges(*pair, counts[dst], num_senders=counts[src])
            for (src, name, dst), pair in ends.items()
        }
    )
    x = {t: random_array((counts[t], widths[t]), "float32", seed=3) for t in graph.node_types}
    ours = _shifted(nn.HGTConv(widths, 4, graph.metadata, heads=2, rngs=nnx.Rngs(0)))
    theirs = peer.HGTConv(widths, 4, tuple(map(list, graph.metadata)), heads=2)
    _copy(torch, _hgt(theirs, ours))
    edges = {name: _tensor(torch, np.array(pair)) for name, pair in ends.items()}
    expected = theirs({t: _tensor(torch, features) for t, features in x.items()}, edges)
    for node_type, actual in ours(graph, x).items():
        wanted = expected[node_type].detach().numpy()
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
