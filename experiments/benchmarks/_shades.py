"""Colours of implementations and ops, the same in every picture of a benchmark."""

from __future__ import annotations

from jaxgnn.training.plots import PALETTE, colour

# Names of other libraries' functions in pictures.
_LIBRARIES = {
    "lax.top_k": "jax",
    "torch.topk": "torch",
    "torch.sparse.mm": "torch",
    "torch-geometric": "torch_geometric",
}
# Ops of this library, as ``implementation=None`` runs them, and other ways to call them.
_OURS = {
    "spmm": PALETTE[9],
    "maxk_spmm": PALETTE[4],
    "auto": PALETTE[5],
    "plain": PALETTE[6],
    "copy": PALETTE[7],
    "two ops": PALETTE[8],
}


def shade(label: str) -> str:
    """The colour of an implementation or an op by its name in the tables, as ``#rrggbb``."""
    return _OURS.get(label) or colour(_LIBRARIES.get(label, label))
