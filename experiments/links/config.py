"""Command-line options of link prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from experiments._node_options import name_of_data
from experiments._options import (
    PAGE_ALONE,
    GraphDevices,
    Reporting,
    SampleOptions,
    check_options,
    option,
)
from jaxgnn._errors import bad_input

# Minimum of each numeric option.
_LOWEST = {
    "num_layers": 1,
    "hidden_features": 1,
    "embedding_features": 1,
    "k": 1,
    "dropout": 0,
    "learning_rate": 0,
    "weight_decay": 0,
    "epochs": 1,
    "negatives_per_edge": 1,
    "candidates": 1,
    "hits_k": 1,
    "supervision": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
    "devices": 1,
}
# Options that are fractions below one.
_FRACTIONS = ("dropout", "input_dropout", "validation", "test", "supervision")


@dataclass(frozen=True)
class TrainConfig(GraphDevices, SampleOptions):
    """Options of one training run.

    Attributes:
      dataset: edges to predict: cora, citeseer, pubmed, digits, synthetic, reddit, flickr,
        yelp, ogbn-arxiv, ogbn-products, ogbn-proteins, or the path of a graph of your own, a
        folder, a file of edges or an .npz file.
      data: folder with the raw files of a published dataset. Cora, CiteSeer and PubMed are read
        from Planetoid's files ind.cora.* or from one .npz file; without it Cora is the embedded
        one. Digits and synthetic have no files.
      labels: file with the labels of your own graph, where its folder has none.
      features: file with the features of your own graph, where its folder has none.
      scale: size of the synthetic graph: tiny, flickr, reddit, products or proteins.
      validation: fraction of the edges used to choose the best epoch.
      test: fraction of the edges used for the test scores.
      supervision: fraction of the training edges that are predicted and not used as messages; with
        0, all training edges are both predicted and used as messages.
      read_validation: at the test, let the network read the validation edges too. Without it, it
        reads the training edges alone, as published results on Cora do.
      model: convolutions of the encoder.
      activation: nonlinearity before the aggregation.
      k: kept entries per row, for maxk.
      num_layers: number of convolutions; by default one, or with --sample as many as it has
        numbers.
      hidden_features: width of the hidden layers.
      embedding_features: width of the embeddings, from which the decoder scores pairs.
      decoder: dot is the inner product of two embeddings, mlp a perceptron on their product.
      dropout: probability of dropout after the activation.
      input_dropout: probability of dropout of the features.
      norm: LayerNorm after each convolution.
      learning_rate: learning rate of Adam.
      weight_decay: strength of the L2 penalty on all parameters.
      epochs: number of full-batch steps, or with --sample of passes over the predicted edges.
      batch_size: predicted edges of a step with --sample, from whose ends the neighbours are drawn.
        They are not messages of that step.
      negatives: sampling of pairs without an edge in training: uniform, degree by the number of
        edges of both nodes, or source, which replaces one node of each edge.
      negatives_per_edge: number of negatives for each edge.
      candidates: number of nodes among which the other node of an edge is ranked, for the MRR.
      hits_k: the K of hits@K.
      select: the score by which validation chooses the best epoch.
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the ops; by default the fastest.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: epochs between evaluations.
      checkpoint_every: epochs between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/links.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    dataset: str = "cora"
    data: Path | None = None
    labels: Path | None = None
    features: Path | None = None
    scale: str = "tiny"
    validation: float = 0.05
    test: float = 0.1
    supervision: float = 0.0
    read_validation: bool = False
    model: Literal["sage", "gcn", "gin"] = "gcn"
    activation: Literal["maxk", "relu"] = "relu"
    k: int = 32
    num_layers: int | None = None
    hidden_features: int = 128
    embedding_features: int = 64
    decoder: Literal["dot", "mlp"] = "dot"
    dropout: float = 0.5
    input_dropout: float = 0.0
    norm: bool = False
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    epochs: int = 200
    batch_size: int = 1024
    negatives: Literal["uniform", "degree", "source"] = "uniform"
    negatives_per_edge: int = 1
    candidates: int = 100
    hits_k: int = 20
    select: Literal["ROC-AUC", "AP", "MRR", "hits"] = "ROC-AUC"
    dtype: Literal["float32", "bfloat16"] = "float32"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 5
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    @property
    def splits(self) -> None:
        """None: link prediction does not use a split of nodes."""

    def check(self) -> None:
        """Raises an error for invalid options, before any data is read.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        for name in _FRACTIONS:
            if not 0 <= getattr(self, name) < 1:
                raise bad_input("train", option(name), "in [0, 1)", getattr(self, name))
        for name in ("validation", "test"):
            if not getattr(self, name):
                raise bad_input("train", option(name), "above 0", getattr(self, name))
        if self.validation + self.test >= 1:
            got = f"{self.validation} and {self.test}"
            raise bad_input("train", "--validation and --test", "below 1 together", got)
        if self.activation == "maxk" and self.k > self.hidden_features:
            expected = f"at most --hidden-features, {self.hidden_features}"
            raise bad_input("train", "--k", expected, self.k)

        self.check_sample("train", self.layers(), {"--devices": self.devices > 1})

    def layers(self) -> int:
        """Number of convolutions of the network: as given, else one for each fan-out, else one."""
        return self.num_layers or len(self.sample) or 1

    def metric(self) -> str:
        """The name of the score that chooses the best epoch."""
        return f"hits@{self.hits_k}" if self.select == "hits" else self.select

    def data_name(self) -> str:
        """The name of the dataset, or of the file or folder of a user's own graph."""
        return name_of_data(self.dataset, self.data)

    def label(self) -> str:
        """Name of the network in tables and pictures."""
        activation = "ReLU" if self.activation == "relu" else f"MaxK k = {self.k}"
        sampled = f", sampled {' '.join(map(str, self.sample))}" if self.sample else ""
        return f"{self.model.upper()} {activation}, {self.decoder}{sampled}"

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others on the same data."""
        k = self.k if self.activation == "maxk" else ""
        read = "-validation" if self.read_validation else ""
        name = f"{self.model}-{self.activation}{k}-{self.decoder}{read}"
        return f"{name}{self.sample_name()}-seed{self.seed}"

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/links."""
        if self.run is not None:
            return self.run
        return Path("runs") / "links" / f"{self.data_name()}-{self.variant_name()}"
