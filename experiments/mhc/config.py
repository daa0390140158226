"""Command-line options of the mHC experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.maxk.config import TrainConfig as GraphConfig
from jaxgnn._errors import bad_input


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run of the language model.

    Attributes:
      hyper_connections: number of streams; 0 for plain residual connections.
      num_layers: number of attention blocks, and of MLPs.
      features: width of the model.
      num_heads: number of attention heads.
      context: bytes that a prediction may look back on.
      batch_size: number of pieces of text in a step.
      steps: number of training steps.
      learning_rate: the highest, after a tenth of the steps; it falls to a tenth along a cosine.
      weight_decay: weight decay of AdamW, on matrices.
      recompute_every: branches between stored streams; left out, all are kept.
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the ops; left out, the fastest.
      seed: seed of parameters, batches and the split.
      eval_every: steps between evaluations on the whole validation text.
      checkpoint_every: steps between checkpoints; 0 for only the last.
      run: folder of the run; left out, a name made from the options below runs/mhc.
      fresh: discard what the run folder holds, rather than resume from it.
      progress: show a progress bar.
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
    seed: int = 0
    eval_every: int = 50
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True

    def label(self) -> str:
        """Name of the run in tables and pictures."""
        n = self.hyper_connections
        return f"mHC n = {n}" if n else "plain residuals"

    def run_folder(self) -> Path:
        """Folder of the run."""
        return Path("runs") / "mhc" / self.run_name() if self.run is None else self.run

    def run_name(self) -> str:
        """The name that a run folder has by default."""
        kind = f"mhc{self.hyper_connections}" if self.hyper_connections else "plain"
        return f"lm-{kind}-seed{self.seed}"

    def check(self) -> None:
        """Raises for invalid options that neither the model nor the loop would find.

        Raises:
          ValueError: naming the option.
        """
        for name, lowest in (("hyper_connections", 0), ("context", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if value < lowest:
                option = "--" + name.replace("_", "-")
                raise bad_input("train", option, f"at least {lowest}", value)


@dataclass(frozen=True)
class DeepConfig:
    """Options of the graph networks of growing depth, on the digits.

    Attributes:
      depths: convolutions, one set of runs for each.
      streams: of hyper-connections, one run for each; 0 for the published network, which has no
        residual connections, 1 for residual connections, with gates.
      model: architecture.
      hidden_features: width of the hidden layers.
      k: kept entries per row.
      dropout: probability of dropout after the activation.
      learning_rate: learning rate of Adam.
      epochs: number of full-batch steps.
      eval_every: epochs between evaluations.
      seed: seed of parameters and dropout.
      run: folder for the runs and the picture.
      fresh: discard what the run folders hold, rather than resume from them.
      progress: show a progress bar.
    """

    depths: tuple[int, ...] = (2, 8, 32, 64)
    streams: tuple[int, ...] = (0, 1, 4)
    model: Literal["sage", "gcn", "gin"] = "sage"
    hidden_features: int = 64
    k: int = 16
    dropout: float = 0.3
    learning_rate: float = 0.01
    epochs: int = 60
    eval_every: int = 5
    seed: int = 97
    run: Path = Path("runs/mhc/deep")
    fresh: bool = False
    progress: bool = True

    def variant(self, depth: int, streams: int) -> GraphConfig:
        """The options of one run."""
        kind = f"mhc{streams}" if streams else "plain"
        return GraphConfig(
            model=self.model,
            num_layers=depth,
            hidden_features=self.hidden_features,
            k=(self.k,),
            dropout=self.dropout,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            hyper_connections=streams or None,
            scan_layers=True,
            eval_every=self.eval_every,
            seed=self.seed,
            run=self.run / f"{self.model}-{depth}-{kind}-seed{self.seed}",
            fresh=self.fresh,
            progress=self.progress,
        )
