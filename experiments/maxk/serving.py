"""Export of a trained model, and predictions with the file on any graph, without training code."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgnn
from experiments._node_data import load, make_graph, rows_to_one
from experiments._node_options import DATASETS
from experiments._nodes import scheduled
from experiments._runs import shown
from experiments.maxk.config import PredictOptions, TrainConfig
from experiments.maxk.setup import NORMALIZATIONS
from jaxgnn import CSRGraph, datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset

_PURPOSE = "probabilities of nodes"


def check_export(config: TrainConfig, path: Path, *, is_one_run: bool) -> None:
    """Raises an error before the training if the model could not be exported after it.

    Raises:
      ValueError: naming the option as it is typed.
    """
    if not is_one_run:
        raise bad_input("train", "--export", "left out with several --seeds and with --vmap", path)
    if config.implementation not in (None, "xla"):
        expected = "left out, or xla, with --export: these kernels have to know the size of a graph"
        raise bad_input("train", "--implementation", expected, config.implementation)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise bad_input("train", "--export", "a file in a folder that exists", path)


def export_model(
    path: Path, config: TrainConfig, model: Any, dataset: NodeDataset, k: int | None
) -> None:
    """Writes a program that maps any graph and its features to the probabilities of each node.

    It takes the graph with self loops and normalisation, and dense features [nodes, features]. For
    classes, the probabilities of a node sum to one; each task has its own probability.

    Args:
      path: the file.
      config: options of the run, which define the preparation of the graph.
      model: the trained network.
      dataset: training data; the file stores its widths and names.
      k: the scheduled ``k`` of the epoch that the model comes from, or None.
    """
    model.eval()
    is_multilabel, settings = dataset.multilabel, config.recipe()

    def probabilities(graph: CSRGraph, x: jax.Array) -> jax.Array:
        logits = model(graph, x, **scheduled(k)).astype(jnp.float32)
        return jax.nn.sigmoid(logits) if is_multilabel else jax.nn.softmax(logits)

    normalization: Any = NORMALIZATIONS[config.kind()]
    example = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3).normalized(normalization)
    features = jax.ShapeDtypeStruct((3, dataset.features.shape[1]), jnp.dtype(config.dtype))
    names = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
    file = jaxgnn.export(
        probabilities,
        example,
        features,
        shapes=("nodes, edges", "nodes, _"),
        platforms=("cpu", "cuda"),
        metadata={
            "purpose": _PURPOSE,
            "classes": list(names),
            "multilabel": is_multilabel,
            "normalization": normalization,
            "self_loops": settings.self_loops,
            "normalize_features": settings.normalize_features,
            "features": features.shape[1],
            "dtype": config.dtype,
        },
    )
    path.write_bytes(file)


def predict(options: PredictOptions) -> None:
    """Writes a row for each node: its name, its class and that class's probability.

    Where labels are tasks, the row has the probability of each task.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if an option, the file of the model or a file of the graph is invalid.
    """
    model = jaxgnn.load_exported(options.file)
    made = model.metadata
    if made.get("purpose") != _PURPOSE:
        expected = "a model that experiments.maxk train --export has written"
        raise bad_input("predict", "FILE", expected, f"another exported function, {options.file}")
    dataset = _read(options)
    width = dataset.features.shape[1]
    if width != made["features"]:
        expected = f"of {made['features']} numbers a node, as the model was trained"
        raise bad_input("predict", "the features", expected, f"{width} in {options.dataset}")
    graph = make_graph(dataset, None, made["normalization"], made["self_loops"])
    x = rows_to_one(dataset.features) if made["normalize_features"] else dataset.features
    probabilities = np.asarray(model(graph, jnp.array(x).astype(made["dtype"])))
    table = _table(dataset, made, probabilities)
    if options.out is None:
        sys.stdout.write(table)
        return
    options.out.write_text(table)
    print(f"{dataset.num_nodes} nodes: {shown(options.out)}")


def _read(options: PredictOptions) -> NodeDataset:
    if options.dataset not in DATASETS and Path(options.dataset).exists():
        files = {"labels": options.labels, "features": options.features}
        return datasets.read_graph(Path(options.dataset), **files, labelled=False)
    given = {name: getattr(options, name) for name in ("dataset", "data", "labels", "features")}
    return load(TrainConfig(**given), "predict")


def _table(dataset: NodeDataset, made: Any, probabilities: np.ndarray) -> str:
    """The rows as comma-separated values, after a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = range(dataset.num_nodes) if dataset.node_names is None else dataset.node_names
    if made["multilabel"]:
        writer.writerow(["node", *made["classes"]])
        rows = ([f"{p:.6f}" for p in row] for row in probabilities)
    else:
        writer.writerow(["node", "class", "probability"])
        best = probabilities.argmax(axis=1)
        rows = (
            (made["classes"][c], f"{row[c]:.6f}")
            for c, row in zip(best, probabilities, strict=True)
        )
    writer.writerows([name, *row] for name, row in zip(names, rows, strict=True))
    return text.getvalue()
