"""Command-line options of the MaxK experiments."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import tyro

from experiments._node_options import NodeDataOptions
from experiments._options import (
    PAGE_ALONE,
    GraphDevices,
    Reporting,
    SampleOptions,
    check_options,
)
from experiments.maxk.recipes import Activation, Model, Recipe, default_model, recipe
from jaxgnn._errors import bad_input

# Minimum of each numeric option.
_LOWEST = {
    "num_layers": 1,
    "hidden_features": 1,
    "epochs": 1,
    "eval_every": 0,
    "checkpoint_every": 0,
    "learning_rate": 0,
    "weight_decay": 0,
    "hyper_connections": 1,
    "k": 1,
    "devices": 1,
}


@dataclass(frozen=True)
class TrainConfig(NodeDataOptions, GraphDevices, SampleOptions):
    """Options of one training run, by default those of the dataset's recipe.

    Attributes:
      model: architecture; by default gcnii for cora and graphs of your own, else sage. With
        --sample it is sage by default, and cannot be gcnii.
      activation: nonlinearity before the aggregation.
      k: kept entries per row: one number, or one for each layer.
      k_schedule: k from a given epoch on, as EPOCH:K pairs, for example 1:64 50:32.
      num_layers: number of convolutions; with --sample as many as it has numbers.
      hidden_features: width of the hidden layers.
      dropout: probability of dropout after the activation.
      input_dropout: probability of dropout of the features.
      learning_rate: learning rate of Adam.
      weight_decay: strength of the L2 penalty on all parameters.
      normalize_features: divide the features of each node by their sum.
      epochs: number of full-batch steps, or with --sample of passes over the training nodes.
      self_loops: edges added from each node to itself: 0, 1 (where missing), 2 (one more).
      norm: LayerNorm after each convolution.
      hyper_connections: streams of hyper-connections between the layers; by default the published
        network, which has no residual connections.
      scan_layers: compile one layer and run it repeatedly; for deep networks.
      dtype: dtype of the computation; parameters are float32.
      kernel_mode: auto selects the fastest, maxk requires a k-sparse kernel, dense expands.
      implementation: implementation of the ops; by default the fastest.
      validate_kernels: before the first step, compare the kernels with the reference on this graph.
      fallback_threshold: relative error beyond which validation falls back to dense XLA; by default
        1e-3 for float32 and 2e-2, a few roundings, for bfloat16.
      profile_kernels: report the milliseconds an epoch spends in aggregation, forward and backward.
      eval_every: epochs between evaluations of the whole graph.
      checkpoint_every: epochs between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/maxk.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    model: Model | None = None
    activation: Activation = "maxk"
    k: tuple[int, ...] | None = None
    k_schedule: tuple[str, ...] = ()
    num_layers: int | None = None
    hidden_features: int | None = None
    dropout: float | None = None
    input_dropout: float | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    normalize_features: bool | None = None
    epochs: int | None = None
    self_loops: int | None = None
    norm: bool = True
    hyper_connections: int | None = None
    scan_layers: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    kernel_mode: Literal["auto", "maxk", "dense"] = "auto"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    validate_kernels: bool = False
    fallback_threshold: float | None = None
    profile_kernels: bool = False
    eval_every: int = 1
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def kind(self) -> Model:
        """The architecture of the options, or the default of the dataset and of --sample."""
        return self.model or ("sage" if self.sample else default_model(self.dataset))

    def recipe(self) -> Recipe:
        """The dataset's recipe with the options that were given."""
        base = recipe(self.dataset, self.kind(), self.activation)
        given = {
            field.name: getattr(self, field.name)
            for field in fields(Recipe)
            if field.name not in ("k", "metric") and getattr(self, field.name) is not None
        }
        if self.sample and self.num_layers is None:
            given["num_layers"] = len(self.sample)
        return replace(base, **given)

    def check(self) -> None:
        """Raises an error for invalid options, before any data is read.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        for name in ("dropout", "input_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                option = "--" + name.replace("_", "-")
                raise bad_input("train", option, "in [0, 1)", rate)
        for name in ("validate_kernels", "profile_kernels"):
            if self.devices > 1 and getattr(self, name):
                option = "--" + name.replace("_", "-")
                raise bad_input("train", option, f"left out with --devices {self.devices}", True)
        not_with = {
            "--model gcnii": self.kind() == "gcnii",
            "--profile-kernels": self.profile_kernels,
            "--devices": self.devices > 1,
            "--scan-layers": self.scan_layers,
            "--hyper-connections": self.hyper_connections is not None,
        }
        self.check_sample("train", self.recipe().num_layers, not_with)
        ks = self.all_ks()
        if self.kind() == "gcnii" and len(ks) > 1 and not self.k_schedule:
            raise bad_input(
                "train", "--k", "one number for gcnii", " ".join(map(str, self.k or ()))
            )

    def settings(self) -> str:
        """The hyper-parameters, including those of the recipe, as text of the command line."""
        parts = [f"--dataset {self.dataset} --model {self.kind()} --activation {self.activation}"]
        for field in fields(Recipe):
            value = getattr(self.recipe(), field.name)
            if field.name in ("metric", "k"):
                continue
            name = field.name.replace("_", "-")
            parts.append(f"--{name} {value}" if not isinstance(value, bool) else _flag(name, value))
        if self.sample:
            fanouts = " ".join(map(str, self.sample))
            parts.append(f"--sample {fanouts} --batch-size {self.batch_size}")
        ks = self.layer_ks()
        if ks is not None:
            parts.append(f"--k {' '.join(map(str, ks if len(set(ks)) > 1 else ks[:1]))}")
        return " ".join(parts)

    def layer_ks(self) -> tuple[int, ...] | None:
        """``k`` of each layer; None for ReLU.

        Raises:
          ValueError: if ``k`` has neither one entry nor one for each layer.
        """
        if self.activation == "relu":
            return None
        settings = self.recipe()
        k = (settings.k,) if self.k is None else self.k
        if len(k) == 1:
            return k * settings.num_layers
        if len(k) != settings.num_layers:
            expected = f"one number, or one for each of {settings.num_layers} layers"
            raise bad_input("train", "--k", expected, k)
        return k

    def scheduled_k(self, epoch: int) -> int | None:
        """The schedule's ``k`` at an epoch, counted from 1; None before its first entry.

        Raises:
          ValueError: if a pair is not EPOCH:K.
        """
        current = None
        for start, k in sorted(map(_parse_pair, self.k_schedule)):
            if epoch >= start:
                current = k
        return current

    def all_ks(self) -> set[int]:
        """Every ``k`` that some layer uses at some epoch; empty for ReLU.

        Raises:
          ValueError: if the schedule is malformed, repeats an epoch, goes beyond the last epoch,
            or is given for ReLU.
        """
        pairs = [_parse_pair(pair) for pair in self.k_schedule]
        starts = [start for start, _ in pairs]
        if pairs and self.activation == "relu":
            raise bad_input("train", "--k-schedule", "left out for relu", self.k_schedule)
        if len(set(starts)) < len(starts):
            raise bad_input("train", "--k-schedule", "one k for each epoch", self.k_schedule)
        if pairs and max(starts) > self.recipe().epochs:
            expected = f"within the {self.recipe().epochs} epochs"
            raise bad_input("train", "--k-schedule", expected, self.k_schedule)
        ks = () if self.scheduled_k(1) is not None else self.layer_ks() or ()
        return {*ks, *(k for _, k in pairs)}

    def threshold(self) -> float:
        """``fallback_threshold``, or the default of the dtype."""
        if self.fallback_threshold is not None:
            return self.fallback_threshold
        return 1e-3 if self.dtype == "float32" else 2e-2

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/maxk."""
        if self.run is not None:
            return self.run
        name = f"{self.data_name()}-{self.kind()}-{self.variant_name()}"
        return Path("runs") / "maxk" / name

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others of the same data and model."""
        ks = self.layer_ks()
        k = "" if ks is None else "-".join(map(str, sorted(set(ks), reverse=True)))
        n = "" if self.hyper_connections is None else f"-mhc{self.hyper_connections}"
        return f"{self.activation}{k}{n}{self.sample_name()}-seed{self.seed}"


def variants_of(config: TrainConfig, ks: tuple[int, ...]) -> list[TrainConfig]:
    """The options of the runs that ``compare`` compares: ReLU, and MaxK with each ``k``.

    Raises:
      ValueError: if the options give a schedule of k, or one of them is invalid.
    """
    if config.k_schedule:
        raise bad_input("compare", "--k-schedule", "left out", " ".join(config.k_schedule))
    if len(set(ks)) < len(ks):
        raise bad_input("compare", "--ks", "each k once", " ".join(map(str, ks)))
    maxk = replace(config, activation="maxk")
    variants = [replace(config, activation="relu", k=None)]
    variants += [replace(maxk, k=(k,)) for k in ks] or [maxk]
    for variant in variants:
        variant.check()
    return variants


@dataclass(frozen=True)
class PredictOptions:
    """Options of predictions with an exported model.

    Attributes:
      file: the model, written by experiments.maxk train --export.
      dataset: a graph of your own, a folder or a file of edges, whose labels may all be unknown; or
        the name of a dataset as for train.
      data: folder with the raw files of a published dataset.
      labels: file that lists the nodes, where the folder has none.
      features: file with the features of the nodes, where the folder has none.
      out: file for the table; by default it is printed.
    """

    file: tyro.conf.Positional[Path]
    dataset: str = "cora"
    data: Path | None = None
    labels: Path | None = None
    features: Path | None = None
    out: Path | None = None


def _flag(name: str, value: bool) -> str:
    return f"--{name}" if value else f"--no-{name}"


def _parse_pair(text: str) -> tuple[int, int]:
    try:
        start, k = (int(part) for part in text.split(":"))
    except ValueError:
        expected = "EPOCH:K pairs, for example 1:64 50:32"
        raise bad_input("train", "--k-schedule", expected, repr(text)) from None
    if start < 1 or k < 1:
        raise bad_input("train", "--k-schedule", "pairs of positive numbers", repr(text))
    return start, k
