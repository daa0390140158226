"""Errors about names that a module does not have say which name was probably meant."""

import copy
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxgnn
from jaxgnn._suggestions import FROM_PYG

DOCS = Path(__file__).parents[1] / "docs"
MEANT = {
    "nn.GCNconv": "did you mean jaxgnn.nn.GCNConv?",
    "nn.SAGE": "did you mean jaxgnn.nn.SAGEConv?",
    "nn.GATv3Conv": "did you mean jaxgnn.nn.GATv2Conv",
    "nn.MaxKGNN": "did you mean jaxgnn.models.MaxKGNN?",
    "nn.global_mean_pool": 'use jaxgnn.nn.pool(x, batch, "mean")',
    "nn.graphconv": 'PyTorch Geometric\'s GraphConv use jaxgnn.nn.SAGEConv(reduce="sum")',
    "GCNConv": "did you mean jaxgnn.nn.GCNConv?",
    "CSRgraph": "did you mean jaxgnn.CSRGraph?",
    "segment_som": "did you mean jaxgnn.segment_sum",
    "dataset": "did you mean jaxgnn.datasets?",
    "ops.SpMM": "did you mean jaxgnn.ops.spmm?",
    "ops.nn": "did you mean jaxgnn.nn?",
    "graph.Incidences": "did you mean jaxgnn.graph.Incidence",
    "models.GCNConv": "did you mean jaxgnn.nn.GCNConv?",
    "metrics.hits": "did you mean jaxgnn.metrics.hits_at_k?",
    "datasets.planetoid": "use jaxgnn.datasets.read_planetoid",
    "pretrained.laod_model": "did you mean jaxgnn.pretrained.load_model?",
}


def _get(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"jaxgnn.{module}".rstrip(".")), name)


@pytest.mark.parametrize("path", MEANT)
def test_a_missing_name_is_answered_with_the_one_that_was_meant(path):
    with pytest.raises(AttributeError, match=re.escape(MEANT[path])) as error:
        _get(path)
    assert str(error.value).startswith(f"module 'jaxgnn{'.' * ('.' in path)}")


@pytest.mark.parametrize("path", ["zzz", "nn.zzz", "nn.__wrapped__", "nn._GCNConv", "ops.x"])
def test_nothing_is_suggested_where_nothing_is_alike(path):
    with pytest.raises(AttributeError, match=rf"has no attribute '{path.rpartition('.')[2]}'$"):
        _get(path)


def test_names_of_pytorch_geometric_are_those_of_the_docs():
    pages = ("start/coming_from_pyg.md", "layers/readouts.md")
    told = "".join((DOCS / page).read_text() for page in pages)
    for theirs, ours in FROM_PYG.items():
        assert re.search(rf"`(torch_geometric\.utils\.)?{theirs}[`(]", told), theirs
        path = re.match(r"(jaxgnn|flax)\.([\w.]+)", ours)
        assert path is not None, ours
        target = importlib.import_module(path[1]) if path[1] == "jaxgnn" else None
        for part in path[2].split(".") if target else ():
            target = getattr(target, part)


def test_modules_are_still_modules():
    assert not hasattr(jaxgnn, "GCNConv") and not hasattr(jaxgnn.nn, "GCNconv")
    assert pickle.loads(pickle.dumps(jaxgnn.nn.GCNConv)) is jaxgnn.nn.GCNConv
    assert copy.copy(jaxgnn.graph.CSRGraph) is jaxgnn.graph.CSRGraph
    with pytest.raises(ImportError, match="cannot import name 'GCNconv'"):
        from jaxgnn.nn import GCNconv  # noqa: F401  # pyrefly: ignore


def test_a_suggestion_imports_nothing():
    ask = "import sys, jaxgnn; print(hasattr(jaxgnn, 'GCNConv'), 'flax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr
