"""One recipe for each dataset and network.

Recipes of published sets have the depth, width, learning rate and number of epochs published for
MaxK-GNN, because all networks here are compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from experiments._node_options import DATASETS, PLANETOID, Metric
from experiments.maxk.recipes import recipe as maxk_recipe
from jaxgnn._errors import bad_input

Model = Literal["sage", "gat", "gatv2", "transformer"]
MODELS: tuple[Model, ...] = get_args(Model)
NAMES: dict[Model, str] = {
    "sage": "MaxK-SAGE",
    "gat": "GAT",
    "gatv2": "GATv2",
    "transformer": "transformer",
}
"""Names of the networks in tables and pictures."""


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of a run.

    Attributes:
      num_layers: number of layers that read neighbours.
      hidden_features: width of the hidden layers.
      heads: number of attention heads, which share the width.
      dropout: probability of dropout inside the network.
      attention_dropout: probability of dropping a neighbour for a head.
      input_dropout: probability of dropout of the features.
      normalize_features: whether the features of each node are divided by their sum.
      self_loops: edges added from each node to itself: 0, 1 (where there is none yet), or 2.
      learning_rate: learning rate of Adam.
      weight_decay: strength of the L2 penalty on all parameters.
      epochs: number of full-batch steps.
      metric: metric by which validation selects.
      k: for MaxK-SAGE, kept entries per row; for the transformer, kept entries of each head's
        values, 0 for all.
      laplacian: for the transformer, number of Laplacian eigenvectors.
      walks: for the transformer, number of steps of random walks.
      virtual_nodes: for the transformer, number of virtual nodes.
    """

    num_layers: int
    hidden_features: int
    heads: int
    dropout: float
    attention_dropout: float
    input_dropout: float
    normalize_features: bool
    self_loops: int
    learning_rate: float
    weight_decay: float
    epochs: int
    metric: Metric
    k: int
    laplacian: int = 0
    walks: int = 0
    virtual_nodes: int = 0


# Differences from MaxK-GNN's recipe. How the values of Cora were found:
# docs/performance/experiments/attention.md.
_OWN: dict[tuple[str, Model], dict[str, Any]] = {
    ("cora", "sage"): {"num_layers": 2, "dropout": 0.8, "k": 32},
    ("cora", "gat"): {"num_layers": 2},
    ("cora", "gatv2"): {"num_layers": 2},
    ("cora", "transformer"): {"num_layers": 2, "attention_dropout": 0.5},
}


def recipe(dataset: str, model: Model) -> Recipe:
    """The hyper-parameters for a dataset and a network.

    Args:
      dataset: name of a dataset, or the path of a user's own graph. That has the recipe of Cora, as
        CiteSeer and PubMed have.
      model: the network.

    Raises:
      ValueError: if there is no such network.
    """
    if model not in MODELS:
        raise bad_input("recipe", "model", f"one of {', '.join(MODELS)}", repr(model))
    base = maxk_recipe(dataset, "sage", "maxk")
    is_maxk = model == "sage"
    made = Recipe(
        num_layers=base.num_layers,
        hidden_features=base.hidden_features,
        heads=4,
        dropout=base.dropout,
        attention_dropout=0.0,
        input_dropout=base.input_dropout,
        normalize_features=base.normalize_features,
        # Without self loops, attention would not read the node's own features.
        self_loops=base.self_loops if is_maxk else max(base.self_loops, 1),
        learning_rate=base.learning_rate,
        weight_decay=base.weight_decay,
        epochs=base.epochs,
        metric=base.metric,
        k=base.k if is_maxk else 0,
    )
    is_published = dataset in DATASETS and dataset not in PLANETOID
    known = dataset if is_published else "cora"
    return replace(made, **_OWN.get((known, model), {}))
