"""Convolutions with messages of edges against their formulae, and what may be asked of all."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.testing import random_array
from tests.nn import _edge_formulae as formulae
from tests.nn._edge_formulae import FEATURES, IN, OUT, Case, case, values


class Layer(NamedTuple):
    """A layer, its formula, and what it is called with.

    Attributes:
      make: makes it of ``rngs``.
      formula: what it computes.
      edge_dim: width of the features of edges, None for distances, 0 for neither.
      is_bipartite: whether it takes a pair of receivers and senders.
    """

    make: Callable[[nnx.Rngs], Any]
    formula: formulae.Formula
    edge_dim: int | None = FEATURES
    is_bipartite: bool = True


def _mlp(rngs: nnx.Rngs, width: int = IN) -> nn.FusedMLP:
    return nn.FusedMLP([width, 7, OUT], activation="relu", rngs=rngs)


def _per_edge(rngs: nnx.Rngs) -> nnx.Module:
    """An MLP that is no ``FusedMLP``, so that it is evaluated on edges."""

    class Plain(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(2 * IN, OUT, rngs=rngs)])

        def __call__(self, x):
            return self.layers[0](x)

    return Plain()


AVERAGE = nn.DegreeAverages(2.5, 1.1)
LAYERS = {
    "gine": Layer(lambda r: nn.GINEConv(IN, edge_dim=FEATURES, mlp=_mlp(r), rngs=r), formulae.gine),
    "gine, edges as wide as nodes": Layer(lambda r: nn.GINEConv(IN, rngs=r), formulae.gine, IN),
    "edge conv": Layer(lambda r: nn.EdgeConv(_mlp(r, 2 * IN)), formulae.edge_conv, 0),
    "edge conv, mean": Layer(
        lambda r: nn.EdgeConv(_mlp(r, 2 * IN), reduce="mean"), formulae.edge_conv, 0
    ),
    "edge conv, min": Layer(
        lambda r: nn.EdgeConv(_mlp(r, 2 * IN), reduce="min"), formulae.edge_conv, 0
    ),
    "edge conv, edge by edge": Layer(lambda r: nn.EdgeConv(_per_edge(r)), formulae.edge_conv, 0),
    "res gated": Layer(
        lambda r: nn.ResGatedGraphConv(IN, OUT, edge_dim=FEATURES, rngs=r), formulae.res_gated
    ),
    "res gated, bare": Layer(
        lambda r: nn.ResGatedGraphConv(IN, OUT, root_weight=False, use_bias=False, rngs=r),
        formulae.res_gated,
        0,
    ),
    "pna": Layer(lambda r: nn.PNAConv(IN, OUT, average_degree=AVERAGE, rngs=r), formulae.pna, 0),
    "pna, edges, all scalers, towers": Layer(
        lambda r: nn.PNAConv(
            IN,
            OUT,
            average_degree=AVERAGE,
            aggregators=("sum", "var", "max"),
            scalers=("linear", "inverse_linear", "attenuation"),
            edge_dim=FEATURES,
            towers=2,
            divide_input=True,
            rngs=r,
        ),
        formulae.pna,
    ),
    "pna, towers, sum": Layer(
        lambda r: nn.PNAConv(
            IN,
            OUT,
            average_degree=AVERAGE,
            aggregators=("sum", "mean"),
            scalers=("amplification",),
            towers=2,
            rngs=r,
        ),
        formulae.pna,
        0,
    ),
    "cfconv": Layer(
        lambda r: nn.CFConv(IN, OUT, num_filters=5, num_gaussians=7, cutoff=0.8, rngs=r),
        formulae.cfconv,
        None,
    ),
    "gated": Layer(
        lambda r: nn.GatedGraphConv(IN + 2, num_layers=2, rngs=r), formulae.gated, 0, False
    ),
    "gated, max": Layer(
        lambda r: nn.GatedGraphConv(IN, num_layers=2, reduce="max", use_bias=False, rngs=r),
        formulae.gated,
        0,
        False,
    ),
    **{
        f"sage, {reduce}": Layer(
            lambda r, reduce=reduce: nn.SAGEConv(IN, OUT, reduce=reduce, rngs=r), formulae.sage, 0
        )
        for reduce in ("sum", "max", "min", "std")
    },
    "gin": Layer(lambda r: nn.GINConv(IN, IN, mlp=_mlp(r), rngs=r), formulae.gin, 0),
    "gin, without its linear layer": Layer(
        lambda r: nn.GINConv(IN, IN, linear=False, mlp=_mlp(r), rngs=r), formulae.gin, 0
    ),
}


def _made(name: str) -> Any:
    """The layer with random numbers for all parameters, biases and ε among them."""
    layer = LAYERS[name].make(nnx.Rngs(0))
    for seed, (_, value) in enumerate(nnx.to_flat_state(nnx.state(layer, nnx.Param))):
        value[...] = 0.5 * random_array(value.shape, "float32", seed=seed)
    return layer


def _inputs(name: str, c: Case, graph: CSRGraph, edges: Any, *, pair: bool) -> tuple[Any, ...]:
    dst, src = (jnp.asarray(x, jnp.float32) for x in (c.dst, c.src))
    x = (dst, src) if pair else dst
    return (graph, x) if LAYERS[name].edge_dim == 0 else (graph, x, edges)


_call = jax.jit(lambda layer, *arguments: layer(*arguments))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_formula_also_on_a_padded_graph(name):
    layer = _made(name)
    c = case(0, edge_dim=LAYERS[name].edge_dim)
    expected = LAYERS[name].formula(layer, values(layer), c)
    arguments = _inputs(name, c, *c.graph(padding=3), pair=False)
    np.testing.assert_allclose(_call(layer, *arguments), expected, rtol=1e-5, atol=1e-5)
