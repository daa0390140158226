"""Command-line options of the mHC experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from experiments._options import PAGE_ALONE, BatchDevices, Reporting, check_options
from experiments._seeds import check_seeds
from experiments.maxk.config import TrainConfig as GraphConfig
from jaxgnn._errors import bad_input

# Minimum of each numeric option.
_LOWEST = {
    "hyper_connections": 0,
    "num_layers": 1,
    "features": 1,
    "num_heads": 1,
    "context": 1,
    "batch_size": 1,
    "steps": 1,
    "learning_rate": 0,
    "weight_decay": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
}


@dataclass(frozen=True)
class TrainConfig(BatchDevices):
    """Options of one training run of the language model.

    Attributes:
      hyper_connections: number of streams; 0 for plain residual connections.
      num_layers: number of attention blocks, and of MLPs.
      features: width of the model.
      num_heads: number of attention heads.
      context: number of previous bytes that a prediction reads.
      batch_size: number of pieces of text in a step.
      steps: number of training steps.
      learning_rate: the highest, after a tenth of the steps; it falls to a tenth along a cosine.
      weight_decay: weight decay of AdamW, on matrices.
      recompute_every: number of branches between stored streams; by default all are stored.
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the ops; by default the fastest.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: steps between evaluations on the whole validation text.
      checkpoint_every: steps between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/mhc.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    hyper_connections: int = 4
    num_layers: int = 8
    features: int = 64
    num_heads: int = 4
    context: int = 128
    batch_size: int = 16
    steps: int = 200
    learning_rate: float = 4e-3
    weight_decay: float = 0.1
    recompute_every: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 50
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def label(self) -> str:
        """Name of the run in tables and pictures."""
        n = self.hyper_connections
        kind = f"mHC n = {n}" if n else "plain residuals"
        return f"{kind}, width {self.features}, {self.steps} steps"

    def run_folder(self) -> Path:
        """Folder of the run."""
        return Path("runs") / "mhc" / self.variant_name() if self.run is None else self.run

    def variant_name(self) -> str:
        """The name that a run folder has by default."""
        kind = f"mhc{self.hyper_connections}" if self.hyper_connections else "plain"
        return f"lm-{kind}-width{self.features}-steps{self.steps}-seed{self.seed}"

    def check(self) -> None:
        """Raises an error for invalid options that neither the model nor the loop would find.

        Raises:
          ValueError: naming the option.
        """
        check_options("train", self, _LOWEST)
        self.check_devices("train", self.batch_size)


_DEEP_LOWEST = {
    "depths": 1,
    "streams": 1,
    "epochs": 1,
    "eval_every": 0,
    "k": 1,
    "hidden_features": 1,
}

Method = Literal["plain", "residuals", "mhc", "gcnii"]


@dataclass(frozen=True)
class DeepConfig:
    """Options of the graph networks of growing depth.

    Attributes:
      dataset: cora, digits, synthetic, or the path of a graph of your own.
      depths: numbers of convolutions.
      methods: connections of the layers: plain is the published network without residuals,
        residuals has gated ones, mhc hyper-connections of several streams, gcnii initial residuals.
      seeds: a run of every depth and method for each; all seeds are trained in one program.
      streams: number of streams of mhc.
      model: architecture of all methods except gcnii, which is its own architecture.
      activation: nonlinearity.
      k: kept entries per row, with MaxK.
      hidden_features: width of the hidden layers.
      dropout: probability of dropout after the activation.
      input_dropout: probability of dropout of the features.
      learning_rate: learning rate of Adam.
      weight_decay: strength of the L2 penalty on all parameters.
      epochs: number of full-batch steps.
      eval_every: epochs between evaluations.
      run: folder of the outcomes, the picture and the report.
      fresh: discard the outcomes in the folder instead of continuing.
      progress: show a progress bar.
    """

    dataset: str = "cora"
    depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    methods: tuple[Method, ...] = ("plain", "residuals", "mhc", "gcnii")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    streams: int = 4
    model: Literal["sage", "gcn", "gin"] = "gcn"
    activation: Literal["maxk", "relu"] = "relu"
    k: int = 16
    hidden_features: int = 64
    dropout: float = 0.6
    input_dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    epochs: int = 100
    eval_every: int = 5
    run: Path = Path("runs/mhc/deep")
    fresh: bool = False
    progress: bool = True

    def check(self) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_seeds("deep", self.seeds)
        check_options("deep", self, _DEEP_LOWEST)
        for name in ("depths", "methods"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                shown = " ".join(map(str, values)) or "none"
                raise bad_input("deep", f"--{name}", "one or more, all different", shown)

    def variant(self, depth: int, method: Method) -> GraphConfig:
        """The options of the runs of one depth and method."""
        streams = {"residuals": 1, "mhc": self.streams}
        return GraphConfig(
            dataset=self.dataset,
            model="gcnii" if method == "gcnii" else self.model,
            activation=self.activation,
            num_layers=depth,
            hidden_features=self.hidden_features,
            k=(self.k,) if self.activation == "maxk" else None,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            epochs=self.epochs,
            self_loops=1 if method == "gcnii" or self.model == "gcn" else 0,
            hyper_connections=streams.get(method),
            scan_layers=True,
            eval_every=self.eval_every,
            progress=self.progress,
        )

    def label(self, method: Method) -> str:
        """Name of a method in tables and pictures."""
        names = {"plain": "no residuals", "residuals": "residuals", "gcnii": "GCNII"}
        return names.get(method, f"mHC n = {self.streams}")
