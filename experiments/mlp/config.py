"""Command-line options of the experiments with multilayer perceptrons, and the nine networks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments._options import BatchDevices
from experiments._seeds import check_seeds
from jaxgnn._errors import bad_input

Direction = Literal["forward", "forward+backward"]
Dtype = Literal["float32", "bfloat16"]
Implementation = Literal["xla", "pallas", "ffi"]

# Divisor of widths and batch on a CPU.
_REDUCTION = 8


@dataclass(frozen=True)
class Network:
    """Linear layers with relu between them.

    Attributes:
      in_features: width of the input.
      hidden_features: width of the hidden layers.
      num_hidden: number of hidden layers.
      out_features: width of the output.
      batch_size: number of rows of the input.
    """

    in_features: int
    hidden_features: int
    num_hidden: int
    out_features: int
    batch_size: int

    def features(self) -> tuple[int, ...]:
        """All widths, from the input to the output."""
        hidden = (self.hidden_features,) * self.num_hidden
        return (self.in_features, *hidden, self.out_features)

    def name(self) -> str:
        """Name in tables, for example ``784-256x2-10``, without the batch size."""
        hidden = f"{self.hidden_features}x{self.num_hidden}"
        return f"{self.in_features}-{hidden}-{self.out_features}"

    def reduced(self) -> Network:
        """The network with an eighth of widths and batch; an output of ten classes is kept."""
        return replace(
            self,
            in_features=self.in_features // _REDUCTION,
            hidden_features=self.hidden_features // _REDUCTION,
            out_features=max(10, self.out_features // _REDUCTION),
            batch_size=self.batch_size // _REDUCTION,
        )


# The configurations of Hypatia's benchmark.
NETWORKS = (
    Network(784, 256, 2, 10, 64),
    Network(784, 256, 2, 10, 256),
    Network(512, 512, 3, 128, 128),
    Network(784, 512, 3, 128, 256),
    Network(1024, 512, 4, 256, 256),
    Network(784, 2048, 4, 1000, 512),
    Network(784, 2048, 4, 1000, 1024),
    Network(2048, 2048, 4, 1000, 1024),
    Network(1024, 4096, 6, 1000, 512),
)


@dataclass(frozen=True)
class BenchConfig:
    """Options of the comparison with plain JAX and torch.

    Attributes:
      scale: full, or reduced: widths and batches divided by eight; by default reduced on a CPU.
      dtypes: dtypes of features and parameters.
      directions: forward, and forward+backward, with the gradients to input and parameters.
      implementation: implementation of the op; by default the fastest.
      precision: precision of float32 products of all three: by default JAX's default, TF32 on
        recent GPUs; highest for float32.
      networks: numbers of the networks to time, from 1 to 9; by default all.
      run: folder for the rows and the picture.
    """

    scale: Literal["full", "reduced"] | None = None
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    directions: tuple[Direction, ...] = ("forward", "forward+backward")
    implementation: Implementation | None = None
    precision: Literal["highest"] | None = None
    networks: tuple[int, ...] = ()
    run: Path = Path("runs/mlp")

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for name, values in (("--dtypes", self.dtypes), ("--directions", self.directions)):
            if not values:
                raise bad_input("bench", name, "at least one", "none")
        for number in self.networks:
            if not 1 <= number <= len(NETWORKS):
                raise bad_input("bench", "--networks", f"in 1..{len(NETWORKS)}", number)


@dataclass(frozen=True)
class ValidateConfig(BatchDevices):
    """Options of the check of a trained network.

    Attributes:
      implementation: implementation of the ops; by default the fastest.
      tolerance: the largest difference of an entry, and in the strict mode relative to the largest
        entry of its array.
      batch_size: number of images in a step.
      steps: number of training steps.
      learning_rate: learning rate of Adam.
      seeds: seeds of the runs; each fixes the split of the images, the parameters and the batches.
      progress: show a progress bar.
    """

    implementation: Implementation | None = None
    tolerance: float = 1e-5
    batch_size: int = 32
    steps: int = 200
    learning_rate: float = 1e-3
    seeds: tuple[int, ...] = (0,)
    progress: bool = True

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        check_seeds("validate", self.seeds)
        for name, value in (("--steps", self.steps), ("--batch-size", self.batch_size)):
            if value < 1:
                raise bad_input("validate", name, "at least 1", value)
        positive = (("--learning-rate", self.learning_rate), ("--tolerance", self.tolerance))
        for name, number in positive:
            # Written so that NaN fails.
            if not number > 0:
                raise bad_input("validate", name, "more than 0", number)
        self.check_devices("validate", self.batch_size)


@dataclass(frozen=True)
class FuseConfig:
    """Options of the tour of rewritten networks.

    Attributes:
      model: names of networks, such as ``784-256x2-10@64`` or ``jraph.GAT``; by default all.
      nodes: number of nodes of the random graph, for networks that need one.
      edges: number of edges of that graph.
      dim: width of those networks.
      all_rewrites: apply every sound rewrite, also where it was not measured to be faster.
      measure: run each network unmodified and rewritten, and print both times.
      run: folder for the pages.
    """

    model: tuple[str, ...] = ()
    nodes: int = 2_000
    edges: int = 40_000
    dim: int = 64
    all_rewrites: bool = False
    measure: bool = True
    run: Path = Path("runs/mlp")

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        least = (("--nodes", self.nodes, 2), ("--edges", self.edges, 0), ("--dim", self.dim, 1))
        for name, value, smallest in least:
            if value < smallest:
                raise bad_input("fuse", name, f"at least {smallest}", value)
