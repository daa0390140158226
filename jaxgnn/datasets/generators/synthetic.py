"""Random graphs with the size, degrees and classes of published ones, generated on the device."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgnn._fractions import exact_fraction
from jaxgnn.datasets.records.node_dataset import NodeDataset

_ROUNDS = 16
_TOLERANCE = 0.01


@dataclass(frozen=True)
class SyntheticScale:
    """Size and shape of a synthetic graph.

    Attributes:
      nodes: number of nodes.
      edges: target number of directed edges, both directions counted; met within 1 %, and on small
        graphs within sampling error.
      features: width of the features.
      communities: planted communities, which are the classes unless there are tasks.
      exponent: s in [0, 1); the node of rank r is drawn with weight (r + 1)^-s, and has about that
        share of the edges.
      tasks: number of binary tasks, or None for one class a node.
      train: fraction of the nodes in the training split; it and the next are rounded down to whole
        nodes.
      validation: fraction in the validation split; the test split has the rest.
    """

    nodes: int
    edges: int
    features: int
    communities: int
    exponent: float
    tasks: int | None = None
    train: float = 0.6
    validation: float = 0.2


SCALES: dict[str, SyntheticScale] = {
    "tiny": SyntheticScale(2_000, 20_000, 32, 5, 0.5),
    "flickr": SyntheticScale(89_250, 900_000, 500, 7, 0.6, train=0.5, validation=0.25),
    "reddit": SyntheticScale(232_965, 111_400_000, 602, 41, 0.6, train=0.66, validation=0.1),
    "products": SyntheticScale(2_449_029, 123_700_000, 100, 47, 0.5, train=0.08, validation=0.016),
    "proteins": SyntheticScale(
        132_534, 78_500_000, 8, 64, 0.4, tasks=112, train=0.65, validation=0.16
    ),
}
"""Sizes of ``synthetic`` by name; all except "tiny" are close to those of published graphs."""


def synthetic(
    scale: str | SyntheticScale = "tiny",
    *,
    seed: int = 0,
    homophily: float = 0.6,
    signal: float = 1.5,
    on_device: bool = False,
) -> NodeDataset:
    """Generates an undirected graph with planted communities and a power law of degrees.

    Both ends of an edge are drawn by rank, rank r with weight (r + 1)^-s. Rank r belongs to
    community r mod C. With probability ``homophily`` the second end is moved to the nearest rank
    of the first end's community. Node ids are then shuffled, so that their order is meaningless.
    There are no self edges and no repeats; edges are sorted by receiver, then sender. Repeated
    edges are drawn again, which saturates the pairs of the heaviest nodes.

    Features are the community's centre plus standard normal noise. The centres are normal
    vectors of expected squared length ``signal``²: at the default, a node's own features predict
    its community poorly, their mean over the neighbours well. Labels are the communities; with
    tasks, each task's label is the sign of a random projection of the community membership.

    Args:
      scale: a key of ``SCALES``, or custom sizes.
      seed: seed of all random numbers; equal seeds give equal data on one kind of device.
      homophily: probability in [0, 1] of forcing an edge into one community.
      signal: length of the centres, in deviations of the noise of one feature.
      on_device: whether to return jax arrays on the device, rather than numpy arrays.

    Returns:
      The data set. Arrays of either kind have NodeDataset's dtypes and shapes.

    Raises:
      ValueError: an unknown or impossible scale, or ``homophily`` outside [0, 1].
    """
    name, sizes = _resolve(scale)
    if not 0 <= homophily <= 1:
        raise ValueError(f"datasets.synthetic: homophily: expected 0 to 1, got {homophily}")
    edge_key, node_key, feature_key, label_key, split_key = jax.random.split(
        jax.random.key(seed), 5
    )
    low, high = _draw_pairs(edge_key, sizes, homophily)
    # node_of_rank is a permutation, hence moves whole communities without changing the graph.
    node_of_rank = jax.random.permutation(node_key, sizes.nodes).astype(jnp.int32)
    senders, receivers = _both_directions(node_of_rank[low], node_of_rank[high])
    ranks = jnp.arange(sizes.nodes, dtype=jnp.int32)
    community = jnp.zeros_like(ranks).at[node_of_rank].set(ranks % sizes.communities)
    train, validation, test = _split(split_key, sizes)
    arrays: dict[str, Any] = {
        "senders": senders,
        "receivers": receivers,
        "features": _features(feature_key, community, sizes, signal),
        "labels": _labels(label_key, community, sizes),
        "train": train,
        "validation": validation,
        "test": test,
    }
    return NodeDataset(
        name=f"synthetic-{name}",
        num_classes=sizes.tasks or sizes.communities,
        **(arrays if on_device else jax.device_get(arrays)),
    )


def _resolve(scale: str | SyntheticScale) -> tuple[str, SyntheticScale]:
    if isinstance(scale, str) and scale not in SCALES:
        raise ValueError(
            f"datasets.synthetic: scale: expected one of {sorted(SCALES)}, got {scale!r}"
        )
    name, sizes = (scale, SCALES[scale]) if isinstance(scale, str) else ("custom", scale)
    requirements = {
        "communities >= 1": sizes.communities >= 1,
        "nodes >= 2 * communities": sizes.nodes >= 2 * sizes.communities,
        "0 <= exponent < 1": 0 <= sizes.exponent < 1,
        "0 < edges <= nodes * (nodes - 1)": 0 < sizes.edges <= sizes.nodes * (sizes.nodes - 1),
        "every split gets a node": math.isfinite(sizes.train + sizes.validation)
        and min(_split_sizes(sizes)) > 0,
    }
    for requirement, met in requirements.items():
        if not met:
            raise ValueError(f"datasets.synthetic: scale: expected {requirement}, got {sizes}")
    return name, sizes


def _draw_pairs(
    key: jax.Array, sizes: SyntheticScale, homophily: float
) -> tuple[jax.Array, jax.Array]:
    """Draws distinct pairs of ranks low < high, each [pairs] int32, until there are enough."""
    target = sizes.edges // 2
    low = high = jnp.zeros(0, jnp.int32)
    draws = target
    for round_key in jax.random.split(key, _ROUNDS):
        first, second = _draw_ends(round_key, sizes, homophily, draws)
        size = low.size
        low, high = _distinct(jnp.concatenate([low, first]), jnp.concatenate([high, second]))
        missing = target - low.size
        if missing <= _TOLERANCE * target:
            return low, high
        accepted = (low.size - size) / draws
        # Repeats become more likely with every round; the bound limits the device's memory.
        draws = min(int(missing / max(accepted, 0.1)) + 1, target)
    raise ValueError(
        f"datasets.synthetic: scale: {2 * target} edges are too many for these degrees and "
        f"communities; {_ROUNDS} rounds of drawing found {2 * low.size}"
    )


@partial(jax.jit, static_argnums=(1, 3))
def _draw_ends(
    key: jax.Array, sizes: SyntheticScale, homophily: float, count: int
) -> tuple[jax.Array, jax.Array]:
    """Both ends of ``count`` independent pairs as (lower, higher) rank; they may be equal."""
    first_key, second_key, coin_key = jax.random.split(key, 3)
    first = _draw_ranks(first_key, sizes, count)
    second = _draw_ranks(second_key, sizes, count)
    moved = second - second % sizes.communities + first % sizes.communities
    moved = jnp.where(moved < sizes.nodes, moved, moved - sizes.communities)
    second = jnp.where(jax.random.bernoulli(coin_key, homophily, (count,)), moved, second)
    return jnp.minimum(first, second), jnp.maximum(first, second)


def _draw_ranks(key: jax.Array, sizes: SyntheticScale, count: int) -> jax.Array:
    """[count] int32 ranks in [0, nodes), by the inverse of the weights' continuous integral."""
    power = 1 - sizes.exponent
    uniform = jax.random.uniform(key, (count,), jnp.float32)
    ranks = (uniform * ((sizes.nodes + 1.0) ** power - 1) + 1) ** (1 / power) - 1
    # float32 may round the last rank up to ``nodes``.
    return jnp.clip(ranks.astype(jnp.int32), 0, sizes.nodes - 1)


def _distinct(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Drops repeated pairs and pairs of equal ends, and sorts the others."""
    low, high, keep = _sort_and_mark(low, high)
    return low[keep], high[keep]


@jax.jit
def _sort_and_mark(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    # Two sort keys: one key low * nodes + high would overflow int32.
    low, high = jax.lax.sort((low, high), num_keys=2)
    changed = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    first = jnp.concatenate([jnp.ones(1, bool), changed])
    return low, high, first & (low != high)


@jax.jit
def _both_directions(one: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Converts pairs of nodes to senders and receivers, sorted by receiver, then sender."""
    receivers = jnp.concatenate([one, other])
    senders = jnp.concatenate([other, one])
    receivers, senders = jax.lax.sort((receivers, senders), num_keys=2)
    return senders, receivers


@partial(jax.jit, static_argnums=2)
def _features(
    key: jax.Array, community: jax.Array, sizes: SyntheticScale, signal: float
) -> jax.Array:
    centre_key, noise_key = jax.random.split(key)
    centres = jax.random.normal(centre_key, (sizes.communities, sizes.features))
    noise = jax.random.normal(noise_key, (sizes.nodes, sizes.features))
    return (signal / sizes.features**0.5) * centres[community] + noise


def _labels(key: jax.Array, community: jax.Array, sizes: SyntheticScale) -> jax.Array:
    if sizes.tasks is None:
        return community
    projections = jax.random.normal(key, (sizes.communities, sizes.tasks))
    return (projections > 0).astype(jnp.float32)[community]


def _split_sizes(sizes: SyntheticScale) -> tuple[int, int, int]:
    train = math.floor(exact_fraction(sizes.train) * sizes.nodes)
    validation = math.floor(exact_fraction(sizes.validation) * sizes.nodes)
    return train, validation, sizes.nodes - train - validation


def _split(key: jax.Array, sizes: SyntheticScale) -> list[jax.Array]:
    shuffled = jax.random.permutation(key, sizes.nodes).astype(jnp.int32)
    train, validation, _ = _split_sizes(sizes)
    return [jnp.sort(part) for part in jnp.split(shuffled, (train, train + validation))]
