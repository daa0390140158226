"""Command-line options of node classification on relations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from experiments._options import PAGE_ALONE, Reporting, SampleOptions, check_options, option
from jaxgnn._errors import bad_input

Layer = Literal["sage", "gat"]

# Minimum of each numeric option.
_LOWEST = {
    "papers": 100,
    "authors": 4,
    "venues": 2,
    "hidden_features": 1,
    "num_layers": 1,
    "dropout": 0,
    "learning_rate": 0,
    "weight_decay": 0,
    "epochs": 1,
    "eval_every": 0,
    "checkpoint_every": 0,
}


@dataclass(frozen=True)
class TrainConfig(SampleOptions):
    """Options of one training run.

    Attributes:
      papers: papers of the generated graph, which are classified.
      authors: authors of these papers.
      venues: venues that publish them.
      layer: layer of each relation.
      num_layers: number of layers; by default two, or with --sample as many as it has numbers.
      hidden_features: width of the hidden layers.
      dropout: probability of dropout before each layer.
      learning_rate: learning rate of Adam.
      weight_decay: strength of the L2 penalty on all parameters.
      epochs: number of full-batch steps, or with --sample of passes over the training papers.
      batch_size: training papers of a step with --sample.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: epochs between evaluations of the whole graph.
      checkpoint_every: epochs between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/relations.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    papers: int = 2000
    authors: int = 1000
    venues: int = 40
    layer: Layer = "sage"
    num_layers: int | None = None
    hidden_features: int = 32
    dropout: float = 0.3
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    epochs: int = 60
    batch_size: int = 256
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 2
    checkpoint_every: int = 20
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    input_dropout = 0.0
    metric = "accuracy"

    def check(self) -> None:
        """Raises an error for invalid options, before any data is made.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        if self.dropout >= 1:
            raise bad_input("train", option("dropout"), "in [0, 1)", self.dropout)
        self.check_sample("train", self.layers(), {})

    def recipe(self) -> TrainConfig:
        """The settings of the training, which are these options: there is one data set."""
        return self

    def layers(self) -> int:
        """Number of layers of the network: as given, else one for each fan-out, else two."""
        return self.num_layers or len(self.sample) or 2

    def label(self) -> str:
        """Name of the network in tables and pictures."""
        sampled = f", sampled {' '.join(map(str, self.sample))}" if self.sample else ""
        return f"{self.layer.upper()} for each relation{sampled}"

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others."""
        return f"{self.layer}{self.sample_name()}-seed{self.seed}"

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/relations."""
        if self.run is not None:
            return self.run
        return Path("runs") / "relations" / f"papers{self.papers}-{self.variant_name()}"
