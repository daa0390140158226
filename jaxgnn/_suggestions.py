"""Names that a module does not have: those that were probably meant, and those that have moved."""

from __future__ import annotations

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).parent
# Modules whose names are searched, in the order in which they are suggested.
_MODULES = (
    *("", "nn", "ops", "graph", "models", "metrics", "datasets", "interop", "sampling"),
    *("distributed", "pretrained", "fusion", "training", "testing", "explain", "draw"),
    "equivariant",
)
_EXPORTED = re.compile(r"import (\w+) as \1$", re.MULTILINE)
_MOST_SUGGESTIONS = 3

FROM_PYG = {
    "global_add_pool": 'jaxgnn.nn.pool(x, batch, "sum")',
    "global_mean_pool": 'jaxgnn.nn.pool(x, batch, "mean")',
    "global_max_pool": 'jaxgnn.nn.pool(x, batch, "max")',
    "AttentionalAggregation": "jaxgnn.nn.AttentionPooling",
    "SortAggregation": "jaxgnn.nn.SortPool",
    "dropout_edge": "jaxgnn.nn.DropEdge",
    "dropout_node": "jaxgnn.nn.DropNode",
    "GCN2Conv": "jaxgnn.nn.GCNIIConv",
    "GraphConv": 'jaxgnn.nn.SAGEConv(reduce="sum")',
    "LGConv": "jaxgnn.nn.APPNP(num_steps=1, alpha=0.0, add_self_loops=False)",
    "SimpleConv": 'jaxgnn.ops.neighbour_reduce(graph, x, "sum")',
    "FastRGCNConv": "jaxgnn.nn.RGCNConv",
    "FusedGATConv": "jaxgnn.nn.GATConv",
    "DynamicEdgeConv": "jaxgnn.nn.EdgeConv on the graph of jaxgnn.graph.knn_graph",
    "GPSConv": "jaxgnn.models.GraphTransformer",
    "InteractionBlock": "jaxgnn.nn.SchNetInteraction",
    "Linear": "jaxgnn.nn.FusedLinear, or flax.nnx.Linear",
    "MLP": "jaxgnn.nn.FusedMLP",
    "Embedding": "flax.nnx.Embed",
    **dict.fromkeys(
        ("NNConv", "CGConv", "GMMConv", "GENConv", "FiLMConv", "FeaStConv", "FAConv", "PDNConv"),
        "jaxgnn.nn.MessagePassing of functions of your own",
    ),
    **dict.fromkeys(
        ("RGATConv", "HANConv", "HEATConv", "SignedConv"),
        "jaxgnn.nn.HeteroConv of a layer for each relation",
    ),
    **dict.fromkeys(("GNNExplainer", "CaptumExplainer", "Explainer"), "jaxgnn.explain.edge_scores"),
    "Data": "jaxgnn.CSRGraph, and arrays of features beside it",
    "Batch": "jaxgnn.graph.GraphBatch",
    "DataLoader": "jaxgnn.graph.dynamic_batches",
    "HeteroData": "jaxgnn.graph.HeteroGraph",
    "gcn_norm": 'jaxgnn.CSRGraph.normalized("gcn")',
    "MultiAggregation": "jaxgnn.ops.aggregate",
    "scatter": "jaxgnn.segment_sum, segment_mean, segment_max, …",
    "RandomLinkSplit": "jaxgnn.datasets.split_edges",
    "negative_sampling": "jaxgnn.sampling.negative_edges",
    "AddLaplacianEigenvectorPE": "jaxgnn.graph.laplacian_positions",
    "AddRandomWalkPE": "jaxgnn.graph.random_walk_positions",
    "Planetoid": "jaxgnn.datasets.read_planetoid",
    "TUDataset": "jaxgnn.datasets.read_tu",
    "roc_auc_score": "jaxgnn.metrics.roc_auc(scores, labels)",
}
"""Names of PyTorch Geometric, and what is here in their place, as the pages of the docs say."""


def missing_name(module: str, name: str) -> AttributeError:
    """Makes the error that a module has no such name, with the names that were probably meant.

    Names of other modules are read from their sources, so that nothing is imported.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):  # A protocol asks.
        return AttributeError(text)
    theirs = {other.lower(): other for other in FROM_PYG}.get(name.lower())
    suggestions = _exact(name)
    if not suggestions and theirs is not None:
        return AttributeError(f"{text}; for PyTorch Geometric's {theirs} use {FROM_PYG[theirs]}")
    suggestions = suggestions or _alike(module, name)
    if suggestions:
        text += f"; did you mean {' or '.join(suggestions)}?"
    return AttributeError(text)


def suggest_names(module: str) -> None:
    """Lets a module that has just been imported suggest names where it has none.

    The function is set from here, so that type checkers still know which names there are.
    """

    def raise_missing(name: str) -> None:
        raise missing_name(module, name)

    vars(sys.modules[module])["__getattr__"] = raise_missing


def rename_deprecated(module: str, **names: str) -> None:
    """Lets a module that has just been imported have deprecated names of functions elsewhere.

    The first use of each raises a DeprecationWarning.

    Args:
      module: name of the module.
      names: full path of each function, by its deprecated name.
    """
    attributes = vars(sys.modules[module])

    def get(name: str) -> object:
        if name not in names:
            raise missing_name(module, name)
        warnings.warn(
            f"{module}.{name} is deprecated: use {names[name]}", DeprecationWarning, stacklevel=2
        )
        home, _, its_name = names[name].rpartition(".")
        attributes[name] = getattr(importlib.import_module(home), its_name)
        return attributes[name]

    attributes["__getattr__"] = get


@functools.cache
def _exported(module: str) -> tuple[str, ...]:
    source = _ROOT / module / "__init__.py"
    names = _EXPORTED.findall(source.read_text("utf-8")) if source.is_file() else []
    return tuple(name for name in names if not name.startswith("_"))


def _exact(name: str) -> list[str]:
    """The modules that have this name, by its full path."""
    if name in _MODULES:
        return [f"jaxgnn.{name}"]
    paths = [_path(module, name) for module in _MODULES if name in _exported(module)]
    return paths[:_MOST_SUGGESTIONS]


def _alike(asked: str, name: str) -> list[str]:
    """Lists full paths of names that are spelled alike, those of the asked module first."""
    asked_module = asked.partition(".")[2]
    for module in dict.fromkeys((asked_module, *_MODULES)):
        names = (*_exported(module), *(filter(None, _MODULES) if module == "" else ()))
        spelled = {other.lower(): other for other in reversed(names)}
        close = _close(name.lower(), spelled, is_own=module == asked_module)
        if close:
            return [_path(module, spelled[other]) for other in close]
    return []


def _close(name: str, candidates: Iterable[str], *, is_own: bool) -> list[str]:
    """Lists the name itself, or candidates that begin with it, resemble it, or contain it."""
    import difflib

    names = list(candidates)
    if name in names:
        return [name]
    longer = [other for other in names if is_own and name in other]
    first = [other for other in longer if other.startswith(name)]
    if 0 < len(first) <= _MOST_SUGGESTIONS:
        return first
    close = difflib.get_close_matches(name, names, _MOST_SUGGESTIONS, 0.75 if is_own else 0.85)
    return close or (longer if len(longer) <= _MOST_SUGGESTIONS else [])


def _path(module: str, name: str) -> str:
    return ".".join(filter(None, ("jaxgnn", module, name)))
