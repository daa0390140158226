"""Handwritten digits: a graph or hypergraph of similar images, and graphs of their pixels."""

import numpy as np

from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
from jaxgnn.datasets.records.node_dataset import HypergraphDataset, NodeDataset
from jaxgnn.datasets.records.splits import split_graphs, stratified_split

_SIDE, _MAX_PIXEL = 8, 16
# Half of the eight neighbours of a pixel; the others are the same edges in the other direction.
_OFFSETS = ((0, 1), (1, -1), (1, 0), (1, 1))
_FRACTIONS = (0.6, 0.2, 0.2)


def digits(neighbors: int = 8, *, seed: int = 0) -> NodeDataset:
    """Handwritten digits as a graph, without any download.

    The 1,797 images of 8x8 pixels that scikit-learn ships (the test part of UCI's optical
    recognition set). Each image is joined to its ``neighbors`` nearest others in Euclidean
    distance, ties to the lower node id. Every edge is listed once in each direction. With the
    default, 96 % of the edges join equal digits.

    Args:
      neighbors: nearest images that each image is joined to, at least 1.
      seed: seed of the split, which takes 60 / 20 / 20 % of each digit for training, validation
        and test, rounded to whole images.

    Returns:
      The data set: 64 features in [0, 1], 10 classes.

    Raises:
      ImportError: scikit-learn is not installed.
      ValueError: ``neighbors`` is less than 1 or not less than the number of images.
    """
    images, labels = _images_and_labels("digits")
    senders, receivers = _symmetric(_nearest("digits", images, neighbors))
    dataset = NodeDataset(
        name="digits",
        senders=senders,
        receivers=receivers,
        features=(images / _MAX_PIXEL).astype(np.float32),
        labels=labels,
        num_classes=10,
        **stratified_split(labels, _FRACTIONS, seed),
    )
    dataset.validate()
    return dataset


def digits_hypergraph(neighbors: int = 8, *, seed: int = 0) -> HypergraphDataset:
    """Handwritten digits as a hypergraph, without any download.

    Images and split are the same as in ``digits``. Hyperedge i contains image i and its
    ``neighbors`` nearest other images.

    Args:
      neighbors: number of nearest images in a hyperedge in addition to its own, at least 1.
      seed: seed of the split, which takes 60 / 20 / 20 % of each digit for training, validation
        and test, rounded to whole images.

    Returns:
      The data set: 64 features in [0, 1], 10 classes.

    Raises:
      ImportError: scikit-learn is not installed.
      ValueError: ``neighbors`` is less than 1 or not less than the number of images.
    """
    images, labels = _images_and_labels("digits_hypergraph")
    ids = np.arange(len(images), dtype=np.int32)
    members = np.column_stack([ids, _nearest("digits_hypergraph", images, neighbors)])
    dataset = HypergraphDataset(
        name="digits",
        node_ids=members.astype(np.int32).ravel(),
        hyperedge_ids=np.repeat(ids, members.shape[1]),
        num_hyperedges=len(images),
        features=(images / _MAX_PIXEL).astype(np.float32),
        labels=labels,
        num_classes=10,
        **stratified_split(labels, _FRACTIONS, seed),
    )
    dataset.validate()
    return dataset


def digit_graphs(
    *, seed: int = 0, fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
) -> GraphsDataset:
    """Handwritten digits as graphs of their dark pixels, without any download.

    The 1,797 images of 8x8 pixels that scikit-learn ships (the test part of UCI's optical
    recognition set), each as a graph. Its nodes are the pixels with ink, 16 to 42 of them. Edges
    lead from each to its up to eight neighbours with ink, in both directions. The feature of a node
    is the darkness of its pixel, not its position, so that digits can only be distinguished by the
    connections of their pixels. The features of an edge are the step from its sender to its
    receiver, in rows and in columns.

    Args:
      seed: seed of the split, which is random.
      fractions: fractions of each digit for training, validation and test; they add up to one.

    Returns:
      The data set: one feature of nodes in (0, 1], two of edges in {-1, 0, 1}, 10 classes.

    Raises:
      ImportError: scikit-learn is not installed.
      ValueError: the fractions are not three that add up to one, or leave a part empty.
    """
    images, labels = _images_and_labels("digit_graphs")
    images = images.reshape(-1, _SIDE, _SIDE)
    inked = images > 0
    number = (np.cumsum(inked.reshape(len(images), -1), axis=1) - 1).reshape(inked.shape)
    image, senders, receivers, steps = _edges(inked, number)
    order = np.argsort(image, kind="stable")
    dataset = GraphsDataset(
        name="digits",
        senders=senders[order].astype(np.int32),
        receivers=receivers[order].astype(np.int32),
        num_nodes_of_each=inked.sum(axis=(1, 2)).astype(np.int32),
        num_edges_of_each=np.bincount(image, minlength=len(images)).astype(np.int32),
        labels=labels,
        num_classes=10,
        node_features=(images[inked] / _MAX_PIXEL).astype(np.float32)[:, None],
        edge_features=steps[order],
    )
    return split_graphs(dataset, fractions, seed=seed)


def _edges(
    inked: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Image, sender, receiver and step [edges, 2] of each edge, from masks of pixels."""
    parts = []
    for down, right in _OFFSETS:
        here = np.s_[:, : _SIDE - down, max(0, -right) : _SIDE - max(0, right)]
        there = np.s_[:, down:, max(0, right) : _SIDE - max(0, -right)]
        both = inked[here] & inked[there]
        image, one, other = np.nonzero(both)[0], number[here][both], number[there][both]
        step = np.tile(np.array([down, right], np.float32), (image.size, 1))
        parts += [(image, one, other, step), (image, other, one, -step)]
    image, senders, receivers, steps = (
        np.concatenate([part[at] for part in parts]) for at in range(4)
    )
    return image, senders, receivers, steps


def _images_and_labels(where: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [images, 64] float64, and classes [images] int32."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"datasets.{where}: needs scikit-learn; install the extra jaxgnn[experiments]"
        ) from error
    images, classes = (np.asarray(array) for array in load_digits(return_X_y=True))
    return images, classes.astype(np.int32)


def _nearest(where: str, points: np.ndarray, count: int) -> np.ndarray:
    """Returns the ``count`` nearest others of each of [points, d]: [points, count]."""
    nodes = points.shape[0]
    if not 1 <= count < nodes:
        raise ValueError(f"datasets.{where}: neighbors: expected 1 to {nodes - 1}, got {count}")
    squares = (points**2).sum(axis=1)
    # Pixels are small whole numbers, so that float64 represents these distances exactly.
    distances = squares[:, None] + squares[None, :] - 2 * points @ points.T
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, :count]


def _symmetric(nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair once in each direction, as senders and receivers [edges] int32."""
    nodes = len(nearest)
    joined = np.zeros((nodes, nodes), bool)
    joined[np.arange(nodes)[:, None], nearest] = True
    senders, receivers = np.nonzero(joined | joined.T)
    return senders.astype(np.int32), receivers.astype(np.int32)
