"""A small random graph of authors, papers and venues, whose classes only all relations tell."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.records.relations_dataset import RelationsDataset
from jaxgnn.datasets.records.splits import generator_of, stratified_split

_WHERE = "datasets.synthetic_relations"
_TOPICS = 4
_AREAS = 2
_FEATURES = 16
# Authors of a paper are 1 to 4.
_MOST_AUTHORS = 4
_CITATIONS = 4
# Smallest numbers of nodes: each class has a paper in each part of the split.
_LOWEST = {"papers": 100, "authors": _TOPICS, "venues": _AREAS}


def synthetic_relations(
    papers: int = 2000,
    authors: int = 1000,
    venues: int = 40,
    *,
    seed: int = 0,
    fidelity: float = 0.8,
    signal: float = 1.0,
) -> RelationsDataset:
    """Generates authors who write papers, venues that publish them, and papers that cite papers.

    Each paper has one of 4 topics and one of 2 areas, and its class is this pair: 8 classes of
    equal size. Authors have a topic and venues an area. A paper has 1 to 4 authors, one venue, and
    cites 4 papers. With probability ``fidelity`` each author and each cited paper is drawn from
    those of the paper's topic, and the venue from those of its area, else from all. Repeats are
    dropped. Authors and citations therefore tell the topic of a paper and only its venue tells the
    area: no relation alone tells the class.

    Features are a centre plus standard normal noise. The centres, one for each class of papers,
    topic of authors and area of venues, are normal vectors of expected squared length ``signal``²:
    at the default, the features of a node alone predict poorly.

    Args:
      papers: number of papers, at least 100.
      authors: number of authors, at least 4.
      venues: number of venues, at least 2.
      seed: seed of all random numbers, an integer from 0 on; equal seeds give equal data.
      fidelity: probability in [0, 1] with which a paper is joined to nodes of its topic or area.
      signal: length of the centres, in deviations of the noise of one feature; at least 0.

    Returns:
      The data set, with 16 features for each type and with the papers as target: 60, 20 and 20 %
      of each class to train, validate and test. Each relation has one direction, and its edges are
      sorted by receiver, then sender. No node has a year.

    Raises:
      ValueError: if a number is outside of its range.

    Example:
      >>> from jaxgnn import datasets
      >>> data = datasets.synthetic_relations(papers=200, authors=80, venues=6)
      >>> data.num_classes, [name for _, name, _ in data.edges]
      (8, ['writes', 'publishes', 'cites'])
      >>> data.edges["venue", "publishes", "paper"].shape, data.features["author"].shape
      ((2, 200), (80, 16))
    """
    num_nodes = {"author": authors, "paper": papers, "venue": venues}
    _check(num_nodes, fidelity, signal)
    rng = generator_of(_WHERE, seed)
    of_authors, of_venues = _groups(rng, authors, _TOPICS), _groups(rng, venues, _AREAS)
    labels = _groups(rng, papers, _TOPICS * _AREAS)
    topics, areas = labels // _AREAS, labels % _AREAS

    def edges(receivers: Any, senders: Any, counts: Any) -> np.ndarray:
        return _edges(rng, receivers, senders, np.broadcast_to(counts, papers), fidelity)

    num_authors = rng.integers(1, _MOST_AUTHORS + 1, papers)
    cites = edges(topics, topics, _CITATIONS)
    relations = {
        ("author", "writes", "paper"): edges(topics, of_authors, num_authors),
        ("venue", "publishes", "paper"): edges(areas, of_venues, 1),
        ("paper", "cites", "paper"): cites[:, cites[0] != cites[1]],
    }
    groups = {"author": of_authors, "paper": labels, "venue": of_venues}
    return RelationsDataset(
        name="synthetic-relations",
        num_nodes=num_nodes,
        edges=relations,
        features={kind: _features(rng, group, signal) for kind, group in groups.items()},
        target="paper",
        labels=labels,
        num_classes=_TOPICS * _AREAS,
        years={},
        **stratified_split(labels, (0.6, 0.2, 0.2), seed),
    )


def _check(num_nodes: dict[str, int], fidelity: float, signal: float) -> None:
    for kind, number in num_nodes.items():
        name = f"{kind}s"
        is_count = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_count or number < _LOWEST[name]:
            expected = f"an int of at least {_LOWEST[name]}"
            raise bad_input(_WHERE, name, expected, repr(number))
    if not 0 <= fidelity <= 1:
        raise bad_input(_WHERE, "fidelity", "in [0, 1]", fidelity)
    if not 0 <= signal < np.inf:
        raise bad_input(_WHERE, "signal", "finite and at least 0", signal)


def _groups(rng: np.random.Generator, count: int, groups: int) -> np.ndarray:
    """The group of each node, int32 [count]: groups of equal size, up to one, in random order."""
    return rng.permutation(np.arange(count, dtype=np.int32) % groups)


def _edges(
    rng: np.random.Generator,
    receivers: np.ndarray,
    senders: np.ndarray,
    counts: np.ndarray,
    fidelity: float,
) -> np.ndarray:
    """Draws senders of each receiver, of its own group with probability ``fidelity``.

    Args:
      rng: random numbers.
      receivers: group of each receiver.
      senders: group of each sender; no group is empty.
      counts: number of senders that each receiver draws.
      fidelity: the probability.

    Returns:
      Distinct senders and receivers, int32 [2, edges], sorted by receiver, then sender.
    """
    ends = np.repeat(np.arange(receivers.size), counts)
    by_group = np.argsort(senders, kind="stable")
    sizes = np.bincount(senders)
    starts = np.cumsum(sizes) - sizes
    receivers_of_ends = receivers[ends]
    chosen = by_group[starts[receivers_of_ends] + rng.integers(0, sizes[receivers_of_ends])]
    others = rng.integers(0, senders.size, ends.size)
    drawn = np.where(rng.random(ends.size) < fidelity, chosen, others)
    pairs = np.unique(ends * senders.size + drawn)
    return np.stack([pairs % senders.size, pairs // senders.size]).astype(np.int32)


def _features(rng: np.random.Generator, groups: np.ndarray, signal: float) -> np.ndarray:
    """Returns a centre for each group plus noise, float32 [nodes, features]."""
    centres = rng.standard_normal((int(groups.max()) + 1, _FEATURES))
    noise = rng.standard_normal((groups.size, _FEATURES))
    return ((signal / _FEATURES**0.5) * centres[groups] + noise).astype(np.float32)
