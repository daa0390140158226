"""A training step of the recurrent relational network, written as is usual in torch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.benchmarks._baselines import to_torch, torch_here, wait_for_torch
from experiments.benchmarks._cases import Candidate
from experiments.benchmarks._workloads import Messages
from jaxgnn.graph import CSRGraph

_EMBEDDING_FEATURES = 16
_MLP_LAYERS = 4


def torch_training_steps(
    workload: Messages, graph: CSRGraph, dtype: str, puzzles: jax.Array, solutions: jax.Array
) -> dict[str, Candidate]:
    """Training steps with eager messages, and with one step of messages compiled.

    Parameters are float32; products and LSTM run in autocast to ``dtype``. There is no candidate
    without torch, and no compiled one without triton.
    """
    torch = torch_here()
    if torch is None:
        return {}
    forms: dict[str, Callable] = {"torch": lambda step: step}
    if importlib.util.find_spec("triton") is not None:
        forms["torch compiled"] = torch.compile
    boards = [to_torch(array).long() for array in (puzzles, solutions)]
    made = {}
    for name, form in forms.items():
        step = training_step(workload, graph, getattr(torch, dtype), form, *boards)
        made[name] = Candidate(lambda call: call(), [(step,)], jit=False, wait=wait_for_torch)
    return made


def training_step(
    workload: Messages, graph: CSRGraph, dtype: Any, form: Callable, puzzles: Any, solutions: Any
) -> Callable[[], Any]:
    """Returns a call that takes a step of Adam and returns the loss.

    Args:
      workload: boards, widths and steps.
      graph: graph of one board.
      dtype: torch dtype of products.
      form: transformation of a step of messages, such as compilation.
      puzzles: digits, 0 where blank, [boards, cells] int64.
      solutions: digits of the solutions, [boards, cells] int64.
    """
    torch = importlib.import_module("torch")
    functional = torch.nn.functional
    model = network(torch, workload, graph, form).to(puzzles.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)

    def step():
        optimizer.zero_grad()
        with torch.autocast(puzzles.device.type, dtype, enabled=dtype != torch.float32):
            logits = model(puzzles)
        targets = solutions.expand(workload.steps, -1, -1)
        loss = functional.cross_entropy(logits.flatten(0, 2).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def network(torch: Any, workload: Messages, graph: CSRGraph, form: Callable) -> Any:
    """Builds ``RecurrentRelationalNetwork`` in torch; ``form`` transforms a step of messages."""
    side, width, cells = workload.box**2, workload.dim, workload.box**4
    receivers, senders = (
        torch.from_numpy(np.array(ends)).long() for ends in (graph.receivers(), graph.indices)
    )
    degree = graph.uniform_degrees()[0]
    assert degree is not None  # all cells of a Sudoku have the same number of neighbours

    def mlp(features: int) -> Any:
        layers = [torch.nn.Linear(features, width)]
        for _ in range(_MLP_LAYERS - 1):
            layers += [torch.nn.ReLU(), torch.nn.Linear(width, width)]
        return torch.nn.Sequential(*layers)

    class Step(torch.nn.Module):
        """Messages of all edges, their sums, and the update of the cells."""

        def __init__(self):
            super().__init__()
            self.message, self.update = mlp(2 * width), mlp(2 * width)
            self.cell = torch.nn.LSTMCell(width, width)
            self.register_buffer("receivers", receivers)
            self.register_buffer("senders", senders)

        def forward(self, h, hidden, memory, x):
            ends = [h.index_select(1, ids) for ids in (self.receivers, self.senders)]
            messages = self.message(torch.cat(ends, -1)).unflatten(1, (-1, degree)).sum(2)
            read = self.update(torch.cat([messages, x], -1)).flatten(0, 1)
            state = self.cell(read, (hidden.flatten(0, 1), memory.flatten(0, 1)))
            return tuple(part.view_as(h) for part in state)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            counts = (side + 1, side, side)
            self.embeddings = torch.nn.ModuleList(
                torch.nn.Embedding(count, _EMBEDDING_FEATURES) for count in counts
            )
            self.encoder = mlp(3 * _EMBEDDING_FEATURES)
            self.step = Step()
            self.readout = torch.nn.Linear(width, side + 1)
            self.register_buffer("places", torch.arange(cells))

        def forward(self, puzzles):
            numbers = (puzzles, self.places // side, self.places % side)
            parts = [e(n) for e, n in zip(self.embeddings, numbers, strict=True)]
            parts = [part.expand(*puzzles.shape, -1) for part in parts]
            x = self.encoder(torch.cat(parts, -1))
            h, hidden, memory, logits = x, torch.zeros_like(x), torch.zeros_like(x), []
            for _ in range(workload.steps):
                h, memory = run_step(h, hidden, memory, x)
                hidden = h
                logits.append(self.readout(h))
            return torch.stack(logits)

    made = Network()
    run_step = form(made.step)
    return made
