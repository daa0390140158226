"""Every public model, made small: how, and what it is called with."""

import jax.numpy as jnp

from jaxgnn import models
from jaxgnn.graph import GraphBatch
from tests.nn._table import EDGES, GRAPH, HYPERGRAPH, Case, X, case

TOKENS = jnp.arange(6).reshape(1, 6)
STRUCTURES = GraphBatch.from_graphs(
    [models.atomic_sample(X[:, :3], [0, 1, 1, 0], 5.0)], pad_to=(8, 16)
)
PUZZLE = jnp.zeros((1, 16), jnp.int32).at[0, 3].set(2)


_STEPS = {"features": 4, "num_steps": 2}

MODELS: dict[str, Case] = {
    "CandidateNetwork": case(models.CandidateNetwork, (), PUZZLE, **_STEPS),
    "CausalLM": case(models.CausalLM, (9, 8), TOKENS, num_layers=1, num_heads=2),
    "EncodeProcessDecode": case(
        models.EncodeProcessDecode, (8, 3, 6, 2), GRAPH, X, EDGES, num_steps=2, num_layers=1
    ),
    "EquivariantRelationalNetwork": case(
        models.EquivariantRelationalNetwork, (), PUZZLE, **_STEPS, edge_dropout=0.5, drops=True
    ),
    "ExpertGraphLM": case(
        models.ExpertGraphLM, (9, 8), TOKENS, num_layers=1, num_heads=2, num_experts=3
    ),
    "GCNII": case(
        models.GCNII, (8, 6, 3), GRAPH, X, num_layers=2, activation="maxk", k=2, drops=True
    ),
    "GraphTransformer": case(
        models.GraphTransformer,
        (8, 6, 3),
        GRAPH,
        X,
        num_layers=1,
        heads=2,
        k=2,
        virtual_nodes=2,
        attention_dropout=0.5,
        drops=True,
    ),
    "HypergraphGNN": case(models.HypergraphGNN, (8, 6, 3), HYPERGRAPH, X, drops=True),
    "MaxKGNN": case(models.MaxKGNN, (8, 6, 3), GRAPH, X, num_layers=2, k=2, drops=True),
    "NequIP": case(
        models.NequIP,
        (2, "2x0e+1x1o"),
        STRUCTURES,
        max_degree=1,
        num_interactions=1,
        num_basis=3,
        radial_features=[4],
    ),
    "PaiNN": case(models.PaiNN, (2, 4), STRUCTURES, num_interactions=2, num_basis=3),
    "RecurrentRelationalNetwork": case(
        models.RecurrentRelationalNetwork,
        (),
        PUZZLE,
        **_STEPS,
        box=2,
        embedding_features=3,
        edge_dropout=0.5,
        drops=True,
    ),
    "SchNet": case(models.SchNet, (2, 4), STRUCTURES, num_interactions=2, num_gaussians=3),
    "SudokuGNN": case(models.SudokuGNN, (), PUZZLE, **_STEPS, box=2, drops=True),
}
