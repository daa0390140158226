"""Names of data sets of nodes, and the options that select one; nothing here imports JAX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import tyro

from experiments._options import ProcessOptions
from experiments._seeds import Repeats
from jaxgnn._errors import bad_input

PLANETOID = ("cora", "citeseer", "pubmed")
"""Citation networks from Planetoid's files or from one .npz file; Cora is embedded too."""

DATASETS = (
    *PLANETOID,
    "digits",
    "synthetic",
    "reddit",
    "flickr",
    "yelp",
    "ogbn-products",
    "ogbn-proteins",
    "ogbn-arxiv",
)
"""Names of the data sets; any other name is the path of a user's own graph."""

Metric = Literal["accuracy", "micro F1", "ROC-AUC"]
"""Metrics by which validation can select."""


class DataOptions(Protocol):
    """Options that ``load`` reads: the name of the data set and its location.

    Attributes:
      dataset: one of ``DATASETS``, or the path of a user's own graph.
      data: folder with the raw files of a published data set, or its file.
      labels: file with the labels of a user's own graph, where its folder has none.
      features: file with the features of a user's own graph, where its folder has none.
      splits: folder with the split of a user's own graph.
      scale: size of the synthetic graph.
      seed: seed of the split.
    """

    @property
    def dataset(self) -> str: ...
    @property
    def data(self) -> Path | None: ...
    @property
    def labels(self) -> Path | None: ...
    @property
    def features(self) -> Path | None: ...
    @property
    def splits(self) -> Path | None: ...
    @property
    def scale(self) -> str: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class NodeDataOptions:
    """Options that name a data set of nodes.

    Attributes:
      dataset: what to train on: cora, citeseer, pubmed, digits, synthetic, reddit, flickr, yelp,
        ogbn-arxiv, ogbn-products, ogbn-proteins, or the path of a graph of your own, a folder, a
        file of edges or an .npz file.
      data: folder with the raw files of a published dataset. Cora, CiteSeer and PubMed are read
        from Planetoid's files ind.cora.* or from one .npz file; without it Cora is the embedded
        one. Digits and synthetic have no files.
      labels: file with the labels of your own graph, where its folder has none.
      features: file with the features of your own graph, where its folder has none.
      splits: folder with train.txt, validation.txt and test.txt for your own graph; by default, a
        split of 60, 20 and 20 % of each class.
      scale: size of the synthetic graph: tiny, flickr, reddit, products or proteins.
      seed: seed of the random streams of this run; commands have ``--seeds``.
    """

    dataset: str = "cora"
    data: Path | None = None
    labels: Path | None = None
    features: Path | None = None
    splits: Path | None = None
    scale: str = "tiny"
    seed: tyro.conf.Suppress[int] = 0

    def data_name(self) -> str:
        """The name of the dataset, or of the file or folder of a user's own graph."""
        return name_of_data(self.dataset, self.data)


def name_of_data(dataset: str, data: Path | None) -> str:
    """Name of a data set for its runs; its files' name where another form of it is embedded."""
    if dataset == "cora" and data is not None:
        return f"cora-{data.stem}"
    return Path(dataset).stem


def check_data(config: DataOptions, command: str = "train") -> None:
    """Raises an error unless the options name a data set, before any data is read.

    Args:
      config: the options.
      command: the command that errors name.

    Raises:
      ValueError: naming the option as it is typed.
    """
    name, path = config.dataset, Path(config.dataset)
    parts = ("labels", "features", "splits")
    if name in DATASETS:
        _require_left_out(config, command, parts, f"{name}, which has its own")
        if name in ("digits", "synthetic"):
            _require_left_out(config, command, ("data",), f"{name}, which is not read from files")
        elif config.data is None and name != "cora":
            raise bad_input(command, "--data", f"the folder with the raw files of {name}", None)
        return
    if not path.exists():
        expected = f"one of {', '.join(DATASETS)}, or the path of a folder or a file of edges"
        raise bad_input(command, "--dataset", expected, name)
    _require_left_out(config, command, ("data",), f"{path}, which is the data itself")
    if path.suffix == ".npz":
        _require_left_out(config, command, parts, f"{path}, which has all")


def check_training(config: Any, repeats: Repeats, processes: ProcessOptions) -> None:
    """Checks the options of a training on nodes, before JAX is imported.

    Those of one of several processes are checked when they are connected: an error then ends all.

    Args:
      config: the options of a run: those that name its data, and a method ``check``.
      repeats: seeds, and number of concurrent runs.
      processes: options that connect the processes.

    Raises:
      ValueError: naming the option as it is typed.
    """
    processes.check("train")
    if processes.coordinator is None:
        repeats.check("train")
        config.check()
        check_data(config)


def _require_left_out(
    config: DataOptions, command: str, names: tuple[str, ...], reason: str
) -> None:
    """Raises ValueError for a data option that does not apply to the data set."""
    for name in names:
        if getattr(config, name) is not None:
            expected = f"left out for {reason}"
            raise bad_input(command, f"--{name}", expected, getattr(config, name))
