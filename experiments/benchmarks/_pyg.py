"""``MaxKGNN`` of kind ``"sage"`` in torch-geometric, and its training.

Imports torch and torch-geometric, so import it only where they are installed.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch  # pyrefly: ignore
import torch_geometric  # pyrefly: ignore
from torch.nn import functional  # pyrefly: ignore
from torch_geometric import EdgeIndex  # pyrefly: ignore
from torch_geometric.nn import GraphConv  # pyrefly: ignore

from experiments.benchmarks._report import Row
from experiments.maxk.recipes import Recipe
from jaxgnn.datasets import NodeDataset

VERSIONS = {"torch": torch.__version__, "torch_geometric": torch_geometric.__version__}


def unavailable(device: str) -> str | None:
    """The reason that training on ``"cuda"`` or ``"cpu"`` is impossible; None if it is possible."""
    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return None


class MaxK(torch.autograd.Function):
    """Keeps the k largest entries of each row, as MaxK-GNN's training code does: top-k and mask."""

    @staticmethod
    def forward(ctx, x, k):
        """Returns ``x`` with all but the k largest entries of each row set to zero."""
        _, columns = x.topk(k, dim=1)
        mask = torch.zeros_like(x).scatter_(1, columns, 1.0)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, dy):
        """Returns the gradient at the kept entries."""
        (mask,) = ctx.saved_tensors
        return dy * mask, None


class SageNet(torch.nn.Module):
    """``lin_in``; then activation, dropout, mean SAGE and LayerNorm for each layer; ``lin_out``.

    ``GraphConv`` with the mean is ``W_rel mean h + b + W_root h``, the same as our ``SAGEConv``. Of
    torch-geometric's layers with that formula, it passes a whole ``EdgeIndex`` to a sparse product;
    ``SAGEConv`` would gather a row for each edge.

    Args:
      in_features: width of the node features.
      recipe: layers, width and dropout.
      num_classes: width of the output.
      k: entries that MaxK keeps; None for ReLU.
    """

    def __init__(self, in_features: int, recipe: Recipe, num_classes: int, k: int | None):
        super().__init__()
        hidden, layers = recipe.hidden_features, range(recipe.num_layers)
        self.k = k
        self.dropout = recipe.dropout
        self.lin_in = torch.nn.Linear(in_features, hidden)
        self.convolutions = torch.nn.ModuleList(
            GraphConv(hidden, hidden, aggr="mean") for _ in layers
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(hidden) for _ in layers)
        self.lin_out = torch.nn.Linear(hidden, num_classes)

    def forward(self, edges, x):
        """Returns class scores of each node."""
        h = self.lin_in(x)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            h = functional.relu(h) if self.k is None else MaxK.apply(h, self.k)
            h = functional.dropout(h, self.dropout, self.training)
            h = norm(convolution(h, edges))
        return self.lin_out(h)


def make_edges(senders: np.ndarray, receivers: np.ndarray, num_nodes: int, device: str):
    """The ``EdgeIndex`` of a symmetric graph whose edges are sorted by receiver.

    With both properties declared, torch-geometric multiplies by one CSR matrix, forward and
    backward. A step sorts, transposes and gathers nothing.
    """
    edges = torch.from_numpy(np.stack([senders, receivers])).to(device)
    size = (num_nodes, num_nodes)
    edge_index = EdgeIndex(edges, sparse_size=size, sort_order="col", is_undirected=True)
    return edge_index.fill_cache_(no_transpose=True)


def train(dataset: NodeDataset, recipe: Recipe, k: int | None, *, device: str, seed: int) -> Row:
    """Trains as ``experiments.maxk`` does, with a step and an evaluation in each epoch.

    Returns:
      Milliseconds of every step, and of every epoch including its evaluation; peak memory, None
      on a CPU; accuracies at the first best validation, and its epoch.
    """
    warnings.filterwarnings("ignore", "Sparse CS[RC] tensor support is in beta", UserWarning)
    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as XLA has it
    edges = make_edges(dataset.senders, dataset.receivers, dataset.num_nodes, device)
    x = torch.tensor(dataset.features, device=device)
    labels = torch.tensor(dataset.labels, device=device).long()
    splits = {
        name: torch.tensor(getattr(dataset, name), device=device)
        for name in ("train", "validation", "test")
    }
    model = SageNet(x.shape[1], recipe, dataset.num_classes, k).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(edges, x)[splits["train"]], labels[splits["train"]])
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the step; our loop also reads the loss every epoch

    @torch.no_grad()
    def evaluate() -> Row:
        model.eval()
        logits = model(edges, x)
        # Summed in float64; a non-finite score counts as wrong, as in our accuracy.
        right = (logits.argmax(dim=-1) == labels).double()
        right[~logits.amax(dim=-1).isfinite()] = torch.nan
        return {name: right[splits[name]].mean().item() for name in ("validation", "test")}

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step_ms, epoch_ms, best = [], [], {}
    for epoch in range(1, recipe.epochs + 1):
        start = time.perf_counter()
        step()
        step_ms.append(1e3 * (time.perf_counter() - start))
        scores = evaluate()
        epoch_ms.append(1e3 * (time.perf_counter() - start))
        if scores["validation"] > best.get("validation", -1.0):
            best = {**scores, "best_epoch": epoch}
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"step_ms": step_ms, "epoch_ms": epoch_ms, "peak_bytes": peak, **best}
