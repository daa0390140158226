"""Command-line options of the experiments with attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from experiments._node_options import NodeDataOptions
from experiments._options import PAGE_ALONE, GraphDevices, Reporting, check_options, option
from experiments._seeds import Repeats
from experiments.attention.recipes import NAMES, Model, Recipe, recipe
from jaxgnn._errors import bad_input

PublishedModel = Literal["gcn", "gat"]

# Minimum of each numeric option.
_LOWEST = {
    "num_layers": 1,
    "hidden_features": 1,
    "heads": 1,
    "epochs": 1,
    "eval_every": 0,
    "checkpoint_every": 0,
    "learning_rate": 0,
    "weight_decay": 0,
    "hyper_connections": 1,
    "k": 0,
    "laplacian": 0,
    "walks": 0,
    "virtual_nodes": 0,
    "devices": 1,
}
_RATES = ("dropout", "attention_dropout", "input_dropout")
_OF_TRANSFORMER = ("laplacian", "walks", "virtual_nodes", "hyper_connections")
IDLE: dict[Model, tuple[str, ...]] = {
    "sage": ("heads", "attention_dropout", *_OF_TRANSFORMER),
    "gat": ("k", *_OF_TRANSFORMER),
    "gatv2": ("k", *_OF_TRANSFORMER),
    "transformer": (),
}
"""Options that do not apply to a network."""


@dataclass(frozen=True)
class AttentionConfig(NodeDataOptions, GraphDevices):
    """Options of one training run, by default those of the dataset's recipe.

    Attributes:
      model: the network.
      num_layers: number of layers that read neighbours.
      hidden_features: width of the hidden layers.
      heads: number of attention heads, which share the width.
      k: for sage, kept entries per row; for the transformer, kept entries of each head's values, 0
        for all.
      laplacian: for the transformer, number of Laplacian eigenvectors as positions.
      walks: for the transformer, number of steps of random walks as positions.
      virtual_nodes: for the transformer, number of virtual nodes for attention to all nodes.
      hyper_connections: for the transformer, streams of hyper-connections between the branches.
      dropout: probability of dropout inside the network.
      attention_dropout: probability of dropping a neighbour for a head.
      input_dropout: probability of dropout of the features.
      learning_rate: learning rate of Adam.
      weight_decay: strength of the L2 penalty on all parameters.
      normalize_features: divide the features of each node by their sum.
      epochs: number of full-batch steps.
      self_loops: edges added from each node to itself: 0, 1 (where missing), 2 (one more).
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the ops; by default the fastest.
      eval_every: epochs between evaluations of the whole graph.
      checkpoint_every: epochs between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/attention.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    model: Model = "transformer"
    num_layers: int | None = None
    hidden_features: int | None = None
    heads: int | None = None
    k: int | None = None
    laplacian: int | None = None
    walks: int | None = None
    virtual_nodes: int | None = None
    hyper_connections: int | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    input_dropout: float | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    normalize_features: bool | None = None
    epochs: int | None = None
    self_loops: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    eval_every: int = 1
    checkpoint_every: int = 50
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def recipe(self) -> Recipe:
        """The recipe of the dataset and the network, with the options that were given."""
        names = {field.name for field in fields(Recipe)} - {"metric"}
        given = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        return replace(recipe(self.dataset, self.model), **given)

    def check(self) -> None:
        """Raises an error for invalid options, before any data is read.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        for name in _RATES:
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise bad_input("train", option(name), "in [0, 1)", rate)
        for name in IDLE[self.model]:
            if getattr(self, name) is not None:
                expected = f"left out for {self.model}, which has no use for it"
                raise bad_input("train", option(name), expected, getattr(self, name))
        settings = self.recipe()
        if self.model == "sage" and not 1 <= settings.k <= settings.hidden_features:
            expected = f"in 1..{settings.hidden_features}, the width"
            raise bad_input("train", "--k", expected, settings.k)
        if self.model != "sage" and settings.hidden_features % settings.heads:
            expected = f"a multiple of {settings.heads} heads"
            raise bad_input("train", "--hidden-features", expected, settings.hidden_features)

    def used(self, model: Model) -> AttentionConfig:
        """These options without those that do not apply to a network."""
        return replace(self, model=model, **dict.fromkeys(IDLE[model]))

    def settings(self) -> str:
        """The hyper-parameters, including those of the recipe, as text of the command line."""
        parts = [f"--dataset {self.dataset} --model {self.model}"]
        for field in fields(Recipe):
            value = getattr(self.recipe(), field.name)
            if field.name == "metric" or field.name in IDLE[self.model]:
                continue
            name = option(field.name)
            if isinstance(value, bool):
                parts.append(name if value else name.replace("--", "--no-", 1))
            else:
                parts.append(f"{name} {value}")
        if self.hyper_connections is not None:
            parts.append(f"--hyper-connections {self.hyper_connections}")
        return " ".join(parts)

    def label(self) -> str:
        """Name of the run in tables and pictures: its network."""
        return NAMES[self.model]

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/attention."""
        if self.run is not None:
            return self.run
        return Path("runs") / "attention" / f"{self.data_name()}-{self.variant_name()}"

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others on the same data."""
        return f"{self.model}-seed{self.seed}"


@dataclass(frozen=True)
class PublishedConfig:
    """Options of the repetition of published results.

    Attributes:
      models: the networks.
      epochs: most epochs; training stops long before.
      progress: print a line for each seed.
      commit_results: add the results to those that are stored with the code.
    """

    models: tuple[PublishedModel, ...] = ("gcn", "gat")
    epochs: int = 10_000
    progress: bool = True
    commit_results: bool = False

    def check(self, repeats: Repeats) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the option as it is typed.
        """
        if not self.models or len(set(self.models)) < len(self.models):
            got = " ".join(self.models) or "none"
            raise bad_input("published", "--models", "one or more, each once", got)
        if self.epochs < 1:
            raise bad_input("published", "--epochs", "at least 1", self.epochs)
        if repeats.processes != 1:
            raise bad_input("published", "--processes", "1", repeats.processes)


def variants_of(config: AttentionConfig, models: Sequence[Model]) -> list[AttentionConfig]:
    """The options of the runs that ``compare`` compares, one for each network.

    Raises:
      ValueError: if a network is repeated, or an option is invalid or of use to none.
    """
    if not models or len(set(models)) < len(models):
        raise bad_input("compare", "--models", "one or more, each once", " ".join(models) or "none")
    for name in set.intersection(*(set(IDLE[model]) for model in models)):
        if getattr(config, name) is not None:
            expected = f"left out for {', '.join(models)}, which have no use for it"
            raise bad_input("compare", option(name), expected, getattr(config, name))
    variants = [config.used(model) for model in models]
    for variant in variants:
        variant.check()
    return variants
