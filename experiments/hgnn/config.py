"""Command-line options of the experiments on hypergraphs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from experiments._options import (
    PAGE_ALONE,
    BatchDevices,
    Reporting,
    check_devices,
    check_options,
)
from jaxgnn._errors import bad_input

if TYPE_CHECKING:
    from jaxgnn import ops

Coupling = Literal["alone", "hypergraph", "pairwise", "mean"]
# ``jaxgnn.models.HypergraphKind``, without the seconds that its import takes.
Model = Literal[
    "hgnn",
    "hcha",
    "unigcn",
    "unisage",
    "unigin",
    "unigat",
    "hnhn",
    "alldeepsets",
    "allsettransformer",
    "hypergcn",
]
# Minimum of each numeric option.
_TRAINING_LOWEST = {"num_layers": 1, "learning_rate": 0, "weight_decay": 0, "eval_every": 0}
_LM_LOWEST = _TRAINING_LOWEST | {
    "features": 1,
    "num_heads": 1,
    "coupler_layers": 1,
    "context": 1,
    "batch_size": 1,
    "steps": 1,
    "checkpoint_every": 0,
    "output_orthogonality": 0,
    "weight_orthogonality": 0,
}
_NODES_LOWEST = _TRAINING_LOWEST | {
    "hidden_features": 1,
    "epochs": 1,
    "checkpoint_every": 0,
    "devices": 1,
}
_FEWEST_EXPERTS = {"all_pairs": 2, "all_triples": 3, "all": 2}


@dataclass(frozen=True)
class LMOptions(BatchDevices):
    """Options that all runs share.

    Attributes:
      strategy: hyperedges of the coupling hypergraph.
      coupler_layers: number of hypergraph convolutions, or rounds of messages, in each layer.
      num_layers: number of layers of experts.
      features: width of the model.
      num_heads: number of attention heads of each expert.
      context: number of previous bytes that a prediction reads.
      batch_size: number of pieces of text in a step.
      steps: number of training steps.
      learning_rate: the highest, after a tenth of the steps; it falls to a tenth along a cosine.
      weight_decay: weight decay of AdamW, on matrices.
      output_orthogonality: strength of the loss on the experts' mean outputs, reached after a tenth
        of the steps.
      weight_orthogonality: strength of the loss on their weights, reached likewise.
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the hypergraph convolution; by default the fastest.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: steps between evaluations on the whole validation text.
      checkpoint_every: steps between checkpoints; 0 for only the last.
      run: folder for the runs and the pictures.
      fresh: discard the runs in the folders instead of resuming them.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    strategy: Literal["all_pairs", "all_triples", "all"] = "all_pairs"
    coupler_layers: int = 2
    num_layers: int = 2
    features: int = 32
    num_heads: int = 2
    context: int = 64
    batch_size: int = 8
    steps: int = 200
    learning_rate: float = 1e-2
    weight_decay: float = 0.1
    output_orthogonality: float = 0.0
    weight_orthogonality: float = 0.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 100
    checkpoint_every: int = 100
    run: Path = Path("runs/hgnn/lm")
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE


@dataclass(frozen=True)
class LMRun(LMOptions):
    """One run.

    Attributes:
      experts: number of experts in each layer.
      coupling: ``alone`` for hyperedges of one expert each, with the same number of matrices as the
        hypergraph; ``hypergraph``; ``pairwise`` for gated messages; ``mean`` for the combiner only.
    """

    experts: int = 8
    coupling: Coupling = "hypergraph"

    def label(self) -> str:
        """Name of the run in tables and pictures."""
        if self.experts == 1:
            return "1 expert"
        return f"{self.experts} experts, {coupling_name(self)}"

    def run_folder(self) -> Path:
        """Folder of the run."""
        kind = self.strategy if self.coupling == "hypergraph" else self.coupling
        return self.run / f"experts{self.experts}-{kind}-seed{self.seed}"


@dataclass(frozen=True)
class LMConfig(LMOptions):
    """Options of a comparison.

    Attributes:
      experts: numbers of experts, one set of runs for each.
      couplings: couplings of the experts, one run for each; a single expert has one run.
    """

    experts: tuple[int, ...] = (1, 2, 4, 8)
    couplings: tuple[Coupling, ...] = ("alone", "hypergraph")

    def check(self) -> None:
        """Raises an error for invalid options that neither the model nor the loop would find.

        Raises:
          ValueError: naming the option.
        """
        for name, values in (("experts", self.experts), ("couplings", self.couplings)):
            if not values or len(set(values)) < len(values):
                raise bad_input("lm", f"--{name}", "one or more, all different", values)
        fewest = _FEWEST_EXPERTS[self.strategy]
        check_options("lm", self, {"experts": 1})
        short = [count for count in self.experts if 1 < count < fewest]
        if short and "hypergraph" in self.couplings:
            expected = f"1, or at least {fewest} for --strategy {self.strategy}"
            raise bad_input("lm", "--experts", expected, short[0])
        check_options("lm", self, _LM_LOWEST)
        self.check_devices("lm", self.batch_size)
        if self.output_orthogonality and self.devices > 1:
            # The loss uses the experts' means over a whole batch, which no device has.
            expected = f"left out with --devices {self.devices}"
            raise bad_input("lm", "--output-orthogonality", expected, self.output_orthogonality)

    def variants(self) -> list[LMRun]:
        """The runs, by number of experts."""
        shared: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(LMOptions)}
        return [
            LMRun(**shared, experts=experts, coupling=coupling)
            for experts in self.experts
            # A single expert has no coupling.
            for coupling in (("alone",) if experts == 1 else self.couplings)
        ]


def coupling_name(run: LMRun) -> str:
    """Description of the coupling."""
    names = {"alone": "not coupled", "pairwise": "gated messages", "mean": "mean"}
    return names.get(run.coupling, run.strategy.replace("_", " "))


@dataclass(frozen=True)
class NodesConfig:
    """Options of node classification.

    Attributes:
      dataset: ``digits``, images with hyperedges of nearest neighbours; ``hypergcn``, a folder of
        cocitations or coauthorships in HyperGCN's files; ``text``, a folder with lines of node ids;
        ``cora``, ``citeseer`` or ``pubmed``, with a hyperedge of each paper and the papers that it
        cites or that cite it.
      data: the folder; for the last three one with Planetoid's files, or an .npz file. Cora is also
        embedded.
      neighbors: nearest images in a hyperedge of digits besides its own.
      split: number of a published split of hypergcn, which has no validation nodes; by default 50 /
        25 / 25 % of each class.
      first_id: for text, id of the first node.
      feature_noise: for text without features, build them from the labels and noise of this
        deviation.
      model: kind of convolution.
      num_layers: number of convolutions.
      hidden_features: width between the convolutions.
      dropout: probability of dropout before each convolution.
      learning_rate: learning rate of Adam.
      weight_decay: factor of the L2 loss of all parameters.
      epochs: number of full-batch steps.
      self_loops: add a hyperedge for each node alone.
      normalize: divide the features of each node by their sum, as for bags of words.
      implementation: implementation of the layers; by default the fastest.
      devices: number of devices that share the columns of the features; each has the whole
        hypergraph, and the layers run plain XLA ops.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: epochs between evaluations.
      checkpoint_every: epochs between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/hgnn.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    dataset: Literal["digits", "hypergcn", "text", "cora", "citeseer", "pubmed"] = "digits"
    data: Path | None = None
    neighbors: int = 8
    split: int | None = None
    first_id: int = 1
    feature_noise: float | None = None
    model: Model = "hgnn"
    num_layers: int = 2
    hidden_features: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    epochs: int = 200
    self_loops: bool = True
    normalize: bool = False
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    devices: int = 1
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 5
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def check(self) -> None:
        """Raises an error for invalid options that neither the model nor a reader would find.

        Raises:
          ValueError: naming the option.
        """
        check_options("nodes", self, _NODES_LOWEST)
        if self.devices == 1:  # so that JAX need not start
            return
        check_devices("nodes", self.devices)
        if self.hidden_features % self.devices:
            expected = f"divisible by --devices {self.devices}"
            raise bad_input("nodes", "--hidden-features", expected, self.hidden_features)
        if self.implementation not in (None, "xla"):
            expected = f"left out, or xla, with --devices {self.devices}"
            raise bad_input("nodes", "--implementation", expected, self.implementation)

    def layers_run(self) -> ops.Name | None:
        """The implementation of the layers; XLA for several devices, as it can be partitioned."""
        return self.implementation if self.devices == 1 else "xla"

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others of the same options."""
        return f"seed{self.seed}"

    def run_folder(self) -> Path:
        """Folder of the run."""
        if self.run is not None:
            return self.run
        source = "" if self.data is None else f"-{self.data.name}"
        return Path("runs") / "hgnn" / f"nodes-{self.dataset}{source}-{self.model}-seed{self.seed}"
