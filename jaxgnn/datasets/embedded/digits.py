"""The default data set: images of digits, joined to their nearest neighbours."""

import numpy as np

from jaxgnn.datasets.records.node_dataset import HypergraphDataset, NodeDataset
from jaxgnn.datasets.records.splits import stratified_split

MAX_PIXEL = 16
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
    images, labels = images_and_labels("digits")
    senders, receivers = _symmetric(_nearest("digits", images, neighbors))
    dataset = NodeDataset(
        name="digits",
        senders=senders,
        receivers=receivers,
        features=(images / MAX_PIXEL).astype(np.float32),
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
    images, labels = images_and_labels("digits_hypergraph")
    own = np.arange(len(images), dtype=np.int32)
    members = np.column_stack([own, _nearest("digits_hypergraph", images, neighbors)])
    dataset = HypergraphDataset(
        name="digits",
        node_ids=members.astype(np.int32).ravel(),
        hyperedge_ids=np.repeat(own, members.shape[1]),
        num_hyperedges=len(images),
        features=(images / MAX_PIXEL).astype(np.float32),
        labels=labels,
        num_classes=10,
        **stratified_split(labels, _FRACTIONS, seed),
    )
    dataset.validate()
    return dataset


def images_and_labels(where: str) -> tuple[np.ndarray, np.ndarray]:
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
    """The ``count`` nearest others of each of [points, d]: [points, count]."""
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
