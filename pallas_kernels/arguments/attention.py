"""Arguments of the functions of attention over neighbours: arrays, constants, cotangents.

Graphs have N rows (receivers), M columns (senders) and E edge slots. H is the number of heads, and
K divides it: the first H / K heads share the first head of keys and values, and so on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax


@dataclass(frozen=True)
class Form:
    """The constants of a call, static in every function.

    Attributes:
      scale: multiplies the inner products of ``dot_attention``.
      slope: slope below zero of the leaky ReLU of ``gat_attention`` and ``gatv2_attention``.
      dropout: probability of dropping an edge for a head.
    """

    scale: float = 1.0
    slope: float = 1.0
    dropout: float = 0.0

    @property
    def dropped(self) -> int:
        """The number of random words, of 2^32, that drop an edge."""
        return min(round(self.dropout * 2**32), 2**32 - 1)

    @property
    def kept_scale(self) -> float:
        """The factor of the weights of kept edges."""
        return 1.0 / (1.0 - self.dropout)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Operands:
    """The arrays of a call; those that a call does not have are None.

    ===========  ==================================  =================================
    op           ``rows``, ``columns``               ``values``
    ===========  ==================================  =================================
    dot          q [N, H, D], k [M, K, D]            v [M, K, Dv]
    gat          a_dst [N, H], a_src [M, H]          v [M, H, Dv]
    gatv2        x_dst [N, H, D], x_src [M, H, D]    None: they are ``columns``
    ===========  ==================================  =================================

    Attributes:
      rows: what receivers give to the scores. Features may be float32 while columns have a shorter
        dtype that represents all of their numbers exactly; their gradient is then not rounded.
      columns: what senders give to the scores.
      values: what senders give to the sums, or None if that is ``columns``. Outside of the kernels
        it may be k-sparse rows.
      edge_logits: what edges add to the scores, [E, H].
      edge_values: what edges add to the values of their senders, [E, K, Dv].
      edge_features: features of edges, [E, F], which ``edge_kernel`` turns into an addend of the
        ends' sum. Those of ``dot_attention`` are added outside of its kernels.
      edge_kernel: linear map of ``edge_features``, [F, H, D]; for ``dot_attention`` to what is
        added to keys, [F, K, D], or None.
      edge_value_kernel: linear map of ``edge_features`` to what is added to values, [F, K, Dv].
      attention: the vectors that turn the ends' sum into scores, [H, D].
      seed: two words of uint32 that choose which edges are dropped, [2], or None without dropout.
    """

    rows: Any
    columns: Any
    values: Any = None
    edge_logits: Any = None
    edge_values: Any = None
    edge_features: Any = None
    edge_kernel: Any = None
    edge_value_kernel: Any = None
    attention: Any = None
    seed: Any = None

    @property
    def summed(self) -> Any:
        """The arrays that senders give to the sums."""
        return self.columns if self.values is None else self.values

    @property
    def heads(self) -> int:
        """Number of heads of the scores."""
        return self.rows.shape[1]

    def replace(self, **fields: Any) -> Operands:
        """These arrays with some of them replaced."""
        return dataclasses.replace(self, **fields)


class Cotangents(NamedTuple):
    """Arguments of the backward pass besides the operands of the forward pass.

    Attributes:
      lse: logarithm of each row's sum of exponentials, [N, H]; -inf for rows that attend to
        nothing.
      delta: sum over a row's edges of weight times gradient of the weight, [N, H].
      dy: gradient of the result, [N, H, Dv].
      dweights: gradient of the weights that the caller requested, [E, H], or None.
    """

    lse: Any
    delta: Any
    dy: Any
    dweights: Any = None
