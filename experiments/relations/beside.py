"""Scores of methods that do not read the relations between types, shown beside the network."""

from __future__ import annotations

from dataclasses import replace

from experiments._node_data import Batch
from experiments._node_tables import trivial_table
from experiments._node_training import optimizer_of
from experiments._nodes import Loss, Scores, predict
from experiments._seeds import streams
from experiments.relations.config import TrainConfig
from experiments.relations.networks import make_perceptron
from jaxgnn.datasets import NodeDataset, RelationsDataset
from jaxgnn.training import LoopConfig, Table, fit, jit_apply

PERCEPTRON = "perceptron on features"
_STEPS = 100


def table_beside(
    config: TrainConfig, dataset: RelationsDataset, papers: NodeDataset, batch: Batch
) -> Table:
    """Table of trivial methods on the papers and their citations, and of a perceptron.

    Args:
      config: the options of the run.
      dataset: the data.
      papers: its nodes to classify, as a data set.
      batch: the data on the device.
    """
    table = trivial_table(papers, config.metric)
    scores = perceptron_scores(config, dataset, papers, batch)
    columns = (f"{100 * scores[f'{part} {config.metric}']:.2f}" for part in ("validation", "test"))
    rows = (*table.rows, (PERCEPTRON, "", *columns))
    return replace(table, title="Methods without authors and venues, same split", rows=rows)


def perceptron_scores(
    config: TrainConfig, dataset: RelationsDataset, papers: NodeDataset, batch: Batch
) -> dict[str, float]:
    """Validation and test scores of a perceptron on the features of the papers, trained here."""
    features = batch.features[dataset.target]  # pyrefly: ignore
    alone = replace(batch, graph=None, features=features)
    scores, scored = Scores(papers, config.metric), jit_apply(predict)
    result = fit(
        make_perceptron(config, dataset),
        optimizer_of(config),
        Loss(config.input_dropout),
        lambda _: alone,
        config=LoopConfig(
            steps=_STEPS,
            eval_every=5,
            seed=streams(config.seed).training,
            select=f"validation {config.metric}",
        ),
        evaluate=lambda model: scores(scored(model, alone)),
        progress=False,
    )
    if result.best is None:
        raise FloatingPointError("train: every evaluation of the perceptron was NaN")
    return result.best.metrics
