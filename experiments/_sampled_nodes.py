"""Training on batches of nodes with sampled neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flax import nnx

from experiments._node_data import Batch
from experiments._node_training import Epochs
from experiments._nodes import node_loss, scheduled
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.sampling import HeteroBatch, HeteroNeighborLoader, NeighborLoader, SampledBatch

Sampled = SampledBatch | HeteroBatch
"""A batch of seeds, of one type of nodes or of several."""


@dataclass(frozen=True)
class SampledLoss:
    """Cross entropy over the seeds of a sampled batch, binary where labels are tasks.

    Attributes:
      input_dropout: probability of dropout of the features; 0 with several types of nodes.
    """

    input_dropout: float

    def __call__(self, model: Any, batch: Sampled, rngs: nnx.Rngs, k: int | None = None):
        x: Any = batch.x
        x = dropout(x, self.input_dropout, rngs)
        logits = model(batch.blocks, x, rngs=rngs, **scheduled(k)).astype("float32")
        return node_loss(logits[batch.seed_ids], batch.y, batch.seed_mask), {}


class SampledEpochs(Epochs):
    """Passes over the training nodes, whose batches a loader makes ahead."""

    def __init__(self, batch: Batch, loader: NeighborLoader | HeteroNeighborLoader):
        super().__init__(batch)
        self.loader, self.num_steps = loader, len(loader)

    def steps(self, start: int) -> _Steps:
        """The batches from a step on."""
        made = self.loader.steps(start)
        return _Steps(made, made.close, self._note)


@dataclass(frozen=True)
class _Steps:
    batch_of: Callable[[int], Sampled]
    close: Callable[[], None]
    note: Callable[[int], None]

    def __call__(self, step: int) -> Sampled:
        self.note(step)
        return self.batch_of(step)
