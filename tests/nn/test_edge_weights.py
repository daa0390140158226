"""Weights of edges: every layer applies those of its graph, or refuses the graph, as docs say."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import HeteroGraph
from jaxgnn.models import GCNII, GraphTransformer, MaxKGNN
from tests.nn._table import EDGES, GRAPH, LAYERS, RELATION, X, case, public_modules

WEIGHTS = jnp.array([0.5, 2.0, 3.0, 0.25, 1.5])
MODELS = {
    "GCNII": case(GCNII, (8, 8, 3), GRAPH, X, num_layers=1),
    "GraphTransformer": case(GraphTransformer, (8, 8, 3), GRAPH, X, num_layers=1, heads=2),
    "MaxKGNN": case(MaxKGNN, (8, 8, 3), GRAPH, X, num_layers=1, activation="relu", kind="gin"),
}
CASES = {
    name: case
    for name, case in (LAYERS | MODELS).items()
    if any(isinstance(a, CSRGraph | HeteroGraph | list) for a in case.args)
    and name != "JumpingKnowledge"  # a list of arrays
}


def _table() -> dict[str, str]:
    """Reads the statement of the docs about each layer."""
    page = (Path(__file__).parents[2] / "docs/layers/index.md").read_text()
    section = page.partition("\n## Weights of edges\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (\w+)", section, re.M)
    return {name: says for cell, says in rows for name in re.findall(r"`(\w+)`", cell)}


SAID = _table()


def _replace_graph(args: tuple, graph: CSRGraph) -> tuple:
    """Replaces the graphs in the arguments of a call by this graph."""

    def replaced(argument: Any) -> Any:
        if isinstance(argument, list):
            return [graph] * len(argument)
        if isinstance(argument, HeteroGraph):
            return HeteroGraph({RELATION: graph})
        return graph if isinstance(argument, CSRGraph) else argument

    return tuple(map(replaced, args))


def test_the_docs_name_all_that_read_edges_and_nothing_else():
    layers = set(SAID) & {*public_modules(nn), *MODELS}
    assert layers == {*CASES, "TopKPooling"}  # TopKPooling is called with a batch.
    assert {SAID[name] for name in CASES} == {"applied", "refused", "kept"}


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", [name for name in CASES if SAID[name] == "applied"])
def test_a_layer_that_applies_weights_gives_another_result_for_other_weights(name):
    layer = CASES[name].make(nnx.Rngs(0))
    run = jax.jit(
        lambda weights: layer(*_replace_graph(CASES[name].args, GRAPH.with_weights(weights)))
    )
    ones, others = (jax.tree.leaves(run(w)) for w in (jnp.ones(5), WEIGHTS))
    assert not any(np.array_equal(a, b) for a, b in zip(ones, others, strict=True))


@pytest.mark.parametrize("name", [name for name in CASES if SAID[name] == "refused"])
def test_a_layer_that_does_not_apply_weights_refuses_them_and_says_what_to_do(name):
    def call(graph: CSRGraph) -> Any:
        make, args, _ = CASES[name]
        return jax.eval_shape(lambda: make(nnx.Rngs(0))(*_replace_graph(args, graph)))

    start = "CFConv" if name == "SchNetInteraction" else name
    weighted = rf"^{start}: graph.* must be without weights and .*\(5,\); pass weights as edge_fea"
    with pytest.raises(ValueError, match=weighted + r".*\.without_weights\(\)"):
        call(GRAPH.with_weights(WEIGHTS))
    if name == "HGTConv":  # Its normalised relations are refused.
        return
    with pytest.raises(ValueError, match=f"^{start}: graph.*got normalization='mean'; "):
        call(GRAPH.normalized("mean"))
    call(GRAPH.with_weights(WEIGHTS).normalized("sym").without_weights())


@pytest.mark.parametrize("layer", ["SAGEConv", "GatedGraphConv"])
def test_a_reduction_that_does_not_apply_weights_refuses_them(layer):
    instance = LAYERS[layer].make(nnx.Rngs(0), reduce="max")
    with pytest.raises(ValueError, match=f"^{layer}: graph must be without weights"):
        jax.eval_shape(lambda: instance(GRAPH.with_weights(WEIGHTS), X))
    assert jax.eval_shape(lambda: instance(GRAPH, X)).shape[0] == 4


def test_functions_of_messages_refuse_weights_and_read_them_as_features():
    layer = nn.MessagePassing(lambda _, x, edges: edges * x, lambda _, y: y, reduce="sum")
    weighted = GRAPH.with_weights(WEIGHTS)
    with pytest.raises(ValueError, match=r"^MessagePassing: graph .* as edge_features, which"):
        layer(weighted, X, EDGES)
    y = layer(weighted.without_weights(), X, WEIGHTS[:, None])
    expected = weighted.to_scipy() @ np.asarray(X, np.float64)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_the_loss_of_supergat_refuses_weights_too():
    layer = LAYERS["SuperGATConv"].make(nnx.Rngs(0))
    pairs = jnp.array([[0], [2]])
    with pytest.raises(ValueError, match=r"^SuperGATConv: graph must be without weights"):
        layer.attention_loss(GRAPH.with_weights(WEIGHTS), X, pairs)  # pyrefly: ignore
