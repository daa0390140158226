"""The same parameters and inputs give PyTorch Geometric's results, where that is installed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn
from tests.nn._edge_formulae import COLUMNS, FEATURES, IN, OUT, Case, case

_NEEDS = "reason: needs torch-geometric: make peers-test"
# So many nodes of each degree, from degree 0 on, PyTorch Geometric's ``deg``.
HISTOGRAM = np.array([3, 1, 2, 2, 1, 1, 1])


def _biased(layer: Any) -> Any:
    """The layer with random numbers for its biases, which begin at zero."""
    rng = np.random.default_rng(7)
    for path, value in nnx.to_flat_state(nnx.state(layer, nnx.Param)):
        if path[-1] == "bias":
            value[...] = jnp.asarray(rng.normal(size=value.shape), jnp.float32)
    return layer


def _load(parameter: Any, value: Any) -> None:
    """Copies an array into a parameter of torch."""
    torch = pytest.importorskip("torch", reason=_NEEDS)
    tensor = torch.tensor(np.asarray(value, np.float32)).reshape(parameter.shape)
    parameter.data.copy_(tensor)


def _load_linear(theirs: Any, kernel: Any, bias: Any = None) -> Any:
    _load(theirs.weight, np.asarray(kernel).T)
    if bias is not None:
        _load(theirs.bias, bias)
    return theirs


def _load_layer(theirs: Any, ours: nn.FusedLinear) -> Any:
    bias = None if ours.bias is None else ours.bias[...]
    return _load_linear(theirs, ours.kernel[...], bias)


def _wrap_network(convolution: Any, mlp: nn.FusedMLP, **options: Any) -> Any:
    """A convolution around the same MLP of two layers.

    Parameters are copied after it is made: torch-geometric draws those of a network again.
    """
    torch = pytest.importorskip("torch", reason=_NEEDS)
    first, second = (torch.nn.Linear(one.in_features, one.out_features) for one in mlp.layers)
    theirs = convolution(torch.nn.Sequential(first, torch.nn.ReLU(), second), **options)
    for linear, ours in zip((first, second), mlp.layers, strict=True):
        _load_layer(linear, ours)
    return theirs


def _mlp(rngs: nnx.Rngs, width: int = IN) -> nn.FusedMLP:
    return nn.FusedMLP([width, 7, OUT], activation="relu", rngs=rngs)


def _gine(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    ours = _biased(nn.GINEConv(IN, edge_dim=FEATURES, mlp=_mlp(rngs), rngs=rngs))
    ours.epsilon[...] = jnp.float32(0.25)
    theirs = _wrap_network(pyg.GINEConv, ours.mlp, train_eps=True, edge_dim=FEATURES)
    _load(theirs.eps, 0.25)
    _load_layer(theirs.lin, ours.edge_linear)
    return ours, theirs


def _edge_conv(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    ours = _biased(nn.EdgeConv(_mlp(rngs, 2 * IN)))
    return ours, _wrap_network(pyg.EdgeConv, ours.mlp, aggr="max")


def _res_gated(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    ours = _biased(nn.ResGatedGraphConv(IN, OUT, edge_dim=FEATURES, rngs=rngs))
    theirs = pyg.ResGatedGraphConv((IN, IN), OUT, edge_dim=FEATURES)
    nothing = np.zeros((FEATURES, OUT))  # their gates of an edge are used as their sum
    for layer, linear, of_edges in (
        (theirs.lin_key, ours.key_linear, ours.edge_gate_linear.kernel[...]),
        (theirs.lin_query, ours.query_linear, nothing),
        (theirs.lin_value, ours.value_linear, ours.edge_value_linear.kernel[...]),
    ):
        kernel = np.concatenate([linear.kernel[...], of_edges])
        _load_linear(layer, kernel, linear.bias[...])
    _load_layer(theirs.lin_skip, ours.root_linear)
    _load(theirs.bias, ours.bias[...])
    return ours, theirs


def _pna(pyg: Any, rngs: nnx.Rngs, **options: Any) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason=_NEEDS)
    options = {"towers": 2, "edge_dim": FEATURES} | options
    names = {
        "aggregators": ["mean", "min", "max", "std", "sum"],
        "scalers": ["identity", "amplification", "attenuation", "linear", "inverse_linear"],
    }
    averages = nn.DegreeAverages.of_histogram(HISTOGRAM)
    ours = _biased(nn.PNAConv(IN, OUT, average_degree=averages, **names, **options, rngs=rngs))
    theirs = pyg.PNAConv(IN, OUT, **names, deg=torch.tensor(HISTOGRAM), **options)
    for tower in range(2):
        for stacked, networks in (
            ([ours.pre, *ours.pre_others], theirs.pre_nns),
            ([ours.post, *ours.post_others], theirs.post_nns),
        ):
            for i, layer in enumerate(stacked):  # with an activation behind each but the last
                _load_linear(networks[tower][2 * i], layer.kernel[tower], layer.bias[tower])
    if ours.edge_linear is not None:
        _load_layer(theirs.edge_encoder, ours.edge_linear)
    _load_layer(theirs.lin, ours.linear)
    return ours, theirs


def _pna_without_edges(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    return _pna(pyg, rngs, edge_dim=None, divide_input=True)


def _pna_of_several_layers(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    return _pna(pyg, rngs, pre_layers=2, post_layers=3)


def _schnet(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason=_NEEDS)
    from torch_geometric.nn.models import schnet  # pyrefly: ignore

    ours = _biased(nn.SchNetInteraction(IN, num_filters=5, num_gaussians=7, cutoff=1.5, rngs=rngs))
    block = schnet.InteractionBlock(IN, 7, 5, 1.5)
    conv = ours.conv
    for theirs, linear in (
        (block.mlp[0], conv.filter_hidden),
        (block.mlp[2], conv.filter_linear),
        (block.conv.lin1, conv.sender_linear),
        (block.conv.lin2, conv.linear),
        (block.lin, ours.linear),
    ):
        _load_layer(theirs, linear)
    smearing = schnet.GaussianSmearing(0.0, 1.5, 7)

    class Block(torch.nn.Module):
        def forward(self, x: Any, edge_index: Any, distances: Any) -> Any:
            return block(x, edge_index, distances, smearing(distances))

    return ours, Block()


def _gated(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    ours = _biased(nn.GatedGraphConv(IN + 2, num_layers=2, rngs=rngs))
    theirs = pyg.GatedGraphConv(IN + 2, num_layers=2)
    _load(theirs.weight, np.stack([linear.kernel[...] for linear in ours.linears]))
    for kind, linear in (("ih", ours.message_gates), ("hh", ours.state_gates)):
        _load(getattr(theirs.rnn, f"weight_{kind}"), np.asarray(linear.kernel[...]).T)
        _load(getattr(theirs.rnn, f"bias_{kind}"), linear.bias[...])
    return ours, theirs


def _sage(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    ours = _biased(nn.SAGEConv(IN, OUT, reduce="max", rngs=rngs))
    theirs = pyg.SAGEConv((IN, IN), OUT, aggr="max")
    _load_linear(theirs.lin_l, ours.neighbor_linear.kernel[...], ours.self_linear.bias[...])
    _load_linear(theirs.lin_r, ours.self_linear.kernel[...])
    return ours, theirs


def _gin(pyg: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
    ours = _biased(nn.GINConv(IN, IN, linear=False, mlp=_mlp(rngs), rngs=rngs))
    ours.epsilon[...] = jnp.float32(-0.5)
    theirs = _wrap_network(pyg.GINConv, ours.mlp, train_eps=True)
    _load(theirs.eps, -0.5)
    return ours, theirs


# How both layers are made; the width of the features of edges, None for distances and 0 for none;
# and whether both take a pair.
LAYERS = {
    "gine": (_gine, FEATURES, True),
    "edge conv": (_edge_conv, 0, True),
    "res gated": (_res_gated, FEATURES, True),
    "pna": (_pna, FEATURES, False),
    "pna without edges": (_pna_without_edges, 0, False),
    "pna of several layers": (_pna_of_several_layers, FEATURES, False),
    "schnet": (_schnet, None, False),
    "gated": (_gated, 0, False),
    "sage": (_sage, 0, True),
    "gin": (_gin, 0, True),
}


def _call_of_theirs(torch: Any, theirs: Any, c: Case, edges: Any, *, pair: bool) -> Any:
    dst, src = (torch.tensor(x.astype(np.float32)) for x in (c.dst, c.src))
    index = torch.tensor(np.stack([c.senders, c.receivers]))
    with torch.no_grad():
        return theirs((src, dst) if pair else dst, index, *edges).numpy()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_layer(name):
    torch = pytest.importorskip("torch", reason=_NEEDS)
    pyg = pytest.importorskip("torch_geometric.nn", reason=_NEEDS)
    make, edge_dim, pair = LAYERS[name]
    ours, theirs = make(pyg, nnx.Rngs(0))
    c = case(0, columns=COLUMNS if pair else None, edge_dim=edge_dim)
    graph, of_slots = c.graph()
    dst, src = (jnp.asarray(x, jnp.float32) for x in (c.dst, c.src))
    edge_arguments = () if edge_dim == 0 else (of_slots,)
    x = (dst, src) if pair else dst
    y = jax.jit(lambda layer, *inputs: layer(graph, *inputs))(ours, x, *edge_arguments)
    edges = () if edge_dim == 0 else (torch.tensor(c.edges.astype(np.float32)),)
    expected = _call_of_theirs(torch, theirs.eval(), c, edges, pair=pair)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
