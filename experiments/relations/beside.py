"""Scores of methods that read neither authors nor venues, shown beside the network."""

from __future__ import annotations

from dataclasses import replace

from experiments._baselines import BaselineScore, baselines
from experiments._node_data import Batch
from experiments._node_training import optimizer_of
from experiments._nodes import SCORES, Loss, Scores, predict
from experiments._seeds import streams
from experiments.relations.config import TrainConfig
from experiments.relations.networks import make_perceptron
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import LoopConfig, fit, jit_apply

PERCEPTRON = "perceptron on features"
_STEPS = 100


def scores_beside(
    config: TrainConfig, papers: NodeDataset, batch: Batch
) -> dict[str, BaselineScore]:
    """Scores trivial methods on the papers and their citations, and a perceptron on the papers.

    Args:
      config: the options of the run.
      papers: the nodes to classify, with their citations.
      batch: the papers on the device, without a graph.

    Returns:
      The score of each method, by its name.
    """
    found = baselines(papers, SCORES[config.metric])
    return found | {PERCEPTRON: _perceptron_score(config, papers, batch)}


def features_of(batch: Batch, target: str) -> Batch:
    """The nodes of one type alone: their features, labels and split."""
    return replace(batch, graph=None, features=batch.features[target])  # pyrefly: ignore


def _perceptron_score(config: TrainConfig, papers: NodeDataset, batch: Batch) -> BaselineScore:
    """Trains a perceptron on the features of each paper."""
    scores, scored = Scores(papers, config.metric), jit_apply(predict)
    result = fit(
        make_perceptron(config, papers),
        optimizer_of(config),
        Loss(config.input_dropout),
        lambda _: batch,
        config=LoopConfig(
            steps=_STEPS,
            eval_every=5,
            seed=streams(config.seed).training,
            select=f"validation {config.metric}",
        ),
        evaluate=lambda model: scores(scored(model, batch)),
        progress=False,
    )
    best = result.best
    if best is None:
        raise FloatingPointError("train: every evaluation of the perceptron was NaN")
    test, validation = (best.metrics[f"{part} {config.metric}"] for part in ("test", "validation"))
    return BaselineScore(test, validation, f"{best.step} steps")
