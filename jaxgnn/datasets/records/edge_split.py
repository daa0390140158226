"""Splits of the edges of a graph for link prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets.records.record import Record
from jaxgnn.datasets.records.splits import generator_of

_WHERE = "datasets.split_edges"


@dataclass(frozen=True, eq=False, repr=False)
class LinkPart(Record):
    """One part of a split: the edges that carry messages, and the edges to predict.

    Attributes:
      messages: senders and receivers of the edges that the network sees, in the order of the input,
        int32 [2, messages].
      message_ids: position of each of them in the input, int64 [messages]; ``weights[message_ids]``
        are their weights.
      supervision: the pairs to distinguish from pairs without an edge, each once, in random order,
        int32 [2, pairs]. Without directions the lower node comes first.
    """

    messages: np.ndarray
    message_ids: np.ndarray
    supervision: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class EdgeSplit(Record):
    """Edges split for link prediction.

    Messages of the training are the training edges without supervision, or all training edges if
    supervision is not separate. Messages of the validation are all training edges, and those of the
    test all training and validation edges.

    Attributes:
      train: part for training.
      validation: part for model selection.
      test: part for the final score.
      num_nodes: number of nodes.
      undirected: whether pairs have no direction.
    """

    train: LinkPart
    validation: LinkPart
    test: LinkPart
    num_nodes: int
    undirected: bool


def split_edges(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int,
    *,
    validation: float = 0.05,
    test: float = 0.1,
    supervision: float | None = 0.5,
    undirected: bool = True,
    seed: int = 0,
) -> EdgeSplit:
    """Splits edges at random into training, validation and test.

    The supervision of a part is disjoint from its messages, and from the messages and supervision
    of earlier parts. So training uses no pair of the validation, and neither uses a pair of the
    test. Both directions of a pair without
    direction, and all repeats of an edge, are in one part. Self loops do not describe pairs: they
    are messages of every part, and supervision of none.

    Args:
      senders: node that each edge leaves, [edges] integers.
      receivers: node that each edge enters, [edges] integers.
      num_nodes: number of nodes.
      validation: fraction of the pairs for the validation.
      test: fraction of the pairs for the test.
      supervision: fraction of the training pairs that supervise and are not messages of the
        training; None if all training pairs do both, so that the network reads the edges that it
        predicts.
      undirected: whether ``(u, v)`` and ``(v, u)`` are one pair. Messages keep the directions of
        the input.
      seed: seed of the random choice.

    Returns:
      The split. Fractions are rounded to whole pairs.

    Raises:
      ValueError: if edges are not lists of nodes of one length, a fraction is not a number in
        (0, 1), ``validation`` and ``test`` leave nothing for training, a part would be empty, or
        the seed is not a non-negative integer.

    Example:
      >>> ring = np.arange(20)
      >>> split = split_edges(ring, (ring + 1) % 20, 20, supervision=0.2)
      >>> [part.supervision.shape[1] for part in (split.train, split.validation, split.test)]
      [3, 1, 2]
      >>> [part.messages.shape[1] for part in (split.train, split.validation, split.test)]
      [14, 17, 18]
    """
    ends = _checked_edges(senders, receivers, num_nodes)
    _check_fractions(validation, test, supervision)
    random = generator_of("datasets.split_edges", seed)
    pairs, pair_of_edge = _pairs(ends, num_nodes, undirected)
    bounds = _bounds(pairs.shape[1], validation, test, supervision)
    # Pairs in random order: those of the test, of the validation, of the supervision, and all
    # others.
    order = random.permutation(pairs.shape[1])
    rank = np.empty(order.size + 1, np.int64)
    rank[order] = np.arange(order.size)
    rank[-1] = order.size  # This entry is for self loops.
    rank_of_edge = rank[pair_of_edge]

    def part(seen_from: int, first: int, end: int) -> LinkPart:
        ids = np.flatnonzero(rank_of_edge >= seen_from)
        return LinkPart(ends[:, ids], ids, pairs[:, order[first:end]])

    test_end, validation_end, supervision_end = bounds
    training_messages = validation_end if supervision is None else supervision_end
    return EdgeSplit(
        train=part(training_messages, validation_end, supervision_end),
        validation=part(validation_end, test_end, validation_end),
        test=part(test_end, 0, test_end),
        num_nodes=int(num_nodes),
        undirected=undirected,
    )


def _pairs(ends: np.ndarray, num_nodes: int, undirected: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct pairs [2, pairs], and the pair of each edge; -1 for a self loop."""
    low, high = (ends.min(axis=0), ends.max(axis=0)) if undirected else ends
    is_loop = ends[0] == ends[1]
    keys = low.astype(np.int64) * num_nodes + high
    distinct, number = np.unique(keys[~is_loop], return_inverse=True)
    pair_of_edge = np.full(keys.size, -1)
    pair_of_edge[~is_loop] = number
    return np.stack(np.divmod(distinct, max(num_nodes, 1))).astype(np.int32), pair_of_edge


def _bounds(
    count: int, validation: float, test: float, supervision: float | None
) -> tuple[int, int, int]:
    """Ends of the ranges of test, validation and supervision pairs."""
    num_test, num_validation = _rounded(test, count), _rounded(validation, count)
    training = count - num_test - num_validation
    num_supervision = training if supervision is None else _rounded(supervision, training)
    sizes = {"test": num_test, "validation": num_validation, "training": training}
    sizes["supervision"] = num_supervision
    if supervision is not None:
        sizes["messages of the training"] = training - num_supervision
    for name, size in sizes.items():
        if size < 1:
            expected = f"of enough pairs for at least one in each part, of which {name} has none"
            raise bad_input(_WHERE, "senders", expected, f"{count} pairs")
    return num_test, num_test + num_validation, num_test + num_validation + num_supervision


def _rounded(share: float, count: int) -> int:
    return round(exact_fraction(share) * count)


def _check_fractions(validation: float, test: float, supervision: float | None) -> None:
    fractions = {"validation": validation, "test": test}
    if supervision is not None:
        fractions["supervision"] = supervision
    for name, value in fractions.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            or_none = "None or " if name == "supervision" else ""
            raise bad_input(_WHERE, name, f"{or_none}a fraction in (0, 1)", repr(value))
    if exact_fraction(validation) + exact_fraction(test) >= 1:
        got = f"{validation} + {test} = {validation + test:g}"
        raise bad_input(_WHERE, "validation + test", "below 1, to leave pairs to train on", got)


def _checked_edges(senders: Any, receivers: Any, num_nodes: int) -> np.ndarray:
    """The edges as int32 [2, edges]; raises unless they are lists of nodes of one length."""
    if isinstance(num_nodes, bool) or not isinstance(num_nodes, int | np.integer) or num_nodes < 1:
        raise bad_input(_WHERE, "num_nodes", "an int of at least 1", repr(num_nodes))
    ends = []
    for name, values in (("senders", senders), ("receivers", receivers)):
        ids = np.asarray(values)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            got = f"{ids.dtype} of shape {ids.shape}"
            raise bad_input(_WHERE, name, "integers of shape [edges]", got)
        in_range = (ids >= 0) & (ids < num_nodes)
        if not in_range.all():
            at = int(np.argmin(in_range))
            raise bad_input(_WHERE, f"{name}[{at}]", f"in [0, {num_nodes})", int(ids[at]))
        ends.append(ids.astype(np.int32))
    if ends[0].size != ends[1].size:
        expected = f"as many as senders ({ends[0].size})"
        raise bad_input(_WHERE, "receivers", expected, ends[1].size)
    return np.stack(ends)
