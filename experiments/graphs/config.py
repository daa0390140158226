"""Command-line options of the experiments with whole graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import tyro

from experiments._options import PAGE_ALONE, BatchDevices, Reporting, check_options, option
from jaxgnn._errors import bad_input

Model = Literal["gin", "gcn", "transformer"]
MODELS: tuple[Model, ...] = get_args(Model)
Readout = Literal["sum", "mean", "max"]
Metric = Literal["accuracy", "ROC-AUC", "AP", "MAE", "RMSE"]
NAMES: dict[Model, str] = {"gin": "GIN", "gcn": "GCN", "transformer": "transformer"}
"""Names of the networks in tables and pictures."""

# Minimum of each numeric option.
_LOWEST = {
    "num_layers": 1,
    "hidden_features": 1,
    "heads": 1,
    "dropout": 0,
    "learning_rate": 0,
    "weight_decay": 0,
    "batch_size": 1,
    "epochs": 1,
    "eval_every": 0,
    "checkpoint_every": 0,
}


@dataclass(frozen=True)
class GraphsConfig(BatchDevices):
    """Options of one training run.

    Attributes:
      dataset: graphs to classify: digits, mutag, zinc, zinc-12k with the 12,000 molecules of its
        benchmark, an OGB set of molecules such as ogbg-molhiv, or the path of a folder in the
        format of the TU collection.
      data: folder with the files of zinc, or of the OGB set; digits and mutag have none.
      validation: fraction of the graphs to choose the best epoch by, where the files have no split.
      test: fraction of the graphs to score with, where the files have no split.
      model: the network: gin, gcn, or a transformer that attends to neighbours.
      num_layers: number of layers that read neighbours.
      hidden_features: width of the hidden layers.
      heads: attention heads of the transformer, which share the width.
      readout: reduction over the nodes of a graph: sum, mean, max or several of them.
      virtual_node: add a node to each graph that all its nodes read, before each layer of gin
        and gcn.
      norm: norm between the layers of gin and gcn: batch, graph or none.
      dropout: probability of dropout after each layer.
      learning_rate: learning rate of Adam.
      weight_decay: weight decay of AdamW.
      batch_size: number of graphs in a batch, or one less.
      epochs: number of passes over the training graphs.
      metric: the score by which validation chooses the best epoch; by default that of the dataset.
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the ops; by default the fastest.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: epochs between evaluations.
      checkpoint_every: epochs between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/graphs.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    dataset: str = "digits"
    data: Path | None = None
    validation: float = 0.2
    test: float = 0.2
    model: Model = "transformer"
    num_layers: int = 2
    hidden_features: int = 32
    heads: int = 4
    readout: tuple[Readout, ...] = ("mean", "max")
    virtual_node: bool = False
    norm: Literal["batch", "graph", "none"] = "batch"
    dropout: float = 0.0
    learning_rate: float = 0.002
    weight_decay: float = 0.0
    batch_size: int = 64
    epochs: int = 20
    metric: Metric | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 1
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def check(self) -> None:
        """Raises an error for invalid options, before any data is read.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        self.check_devices("train", self.batch_size)
        for name in ("dropout", "validation", "test"):
            if not getattr(self, name) < 1:
                raise bad_input("train", option(name), "in [0, 1)", getattr(self, name))
        for name in ("validation", "test"):
            if not getattr(self, name) > 0:
                raise bad_input("train", option(name), "above 0", getattr(self, name))
        if self.validation + self.test >= 1:
            got = f"{self.validation} and {self.test}"
            raise bad_input("train", "--validation and --test", "below 1 together", got)
        if not self.readout or len(set(self.readout)) < len(self.readout):
            got = " ".join(self.readout) or "none"
            raise bad_input("train", "--readout", "one or more, each once", got)
        if self.model == "transformer" and self.hidden_features % self.heads:
            expected = f"a multiple of {self.heads} heads"
            raise bad_input("train", "--hidden-features", expected, self.hidden_features)
        if self.model == "transformer" and self.virtual_node:
            raise bad_input("train", "--virtual-node", "left out for the transformer", "it")

    def data_name(self) -> str:
        """The name of the dataset, or of the folder of a user's own graphs."""
        return Path(self.dataset).name

    def label(self) -> str:
        """Name of the run in tables and pictures: its network."""
        return NAMES[self.model]

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others on the same data."""
        return f"{self.model}-seed{self.seed}"

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/graphs."""
        if self.run is not None:
            return self.run
        return Path("runs") / "graphs" / f"{self.data_name()}-{self.variant_name()}"


@dataclass(frozen=True)
class FoldsConfig:
    """Options of GIN on the ten folds of MUTAG.

    Attributes:
      hidden_features: width of the layers; the paper tries 16 and 32.
      batch_size: graphs of a step; the paper tries 32 and 128.
      dropout: probability of dropping the score of a layer; the paper tries 0 and 0.5.
      epochs: epochs of 50 steps.
      folds: number of parts of the data.
      seed: seed of the folds, the initial parameters and the draws of training.
      progress: print a line for each fold.
      commit_results: add the result to those that are stored with the code.
    """

    hidden_features: int = 32
    batch_size: int = 32
    dropout: float = 0.5
    epochs: int = 350
    folds: int = 10
    seed: int = 0
    progress: bool = True
    commit_results: bool = False

    def check(self) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the option as it is typed.
        """
        lowest = {"hidden_features": 1, "batch_size": 1, "epochs": 1, "folds": 2, "seed": 0}
        check_options("folds", self, lowest)
        if not 0 <= self.dropout < 1:
            raise bad_input("folds", "--dropout", "in [0, 1)", self.dropout)


def variants_of(config: GraphsConfig, models: Sequence[Model]) -> list[GraphsConfig]:
    """The options of the runs that ``compare`` compares, one for each network.

    Raises:
      ValueError: if a network is repeated, or an option is invalid.
    """
    if not models or len(set(models)) < len(models):
        raise bad_input("compare", "--models", "one or more, each once", " ".join(models) or "none")
    variants = [replace(config, model=model) for model in models]
    for variant in variants:
        variant.check()
    return variants
