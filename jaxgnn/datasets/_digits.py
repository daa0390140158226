"""The embedded default: real images of digits, joined to their nearest neighbours."""

import numpy as np

from jaxgnn.datasets._node_dataset import SPLITS, NodeDataset

_MAX_PIXEL = 16
_FRACTIONS = (0.6, 0.2, 0.2)


def digits(neighbors: int = 8, *, seed: int = 0) -> NodeDataset:
    """Handwritten digits as a graph, without any download.

    The 1,797 images of 8x8 pixels that scikit-learn ships (the test part of UCI's optical
    recognition set). Each image is joined to its `neighbors` nearest others in Euclidean
    distance, ties to the lower node id, and every edge is there in both directions once. With
    the default, 96 % of the edges join equal digits.

    Args:
        neighbors: nearest images that each image is joined to, at least 1.
        seed: of the split, which takes 60 / 20 / 20 % of each digit for training, validation
            and test, rounded to whole images.

    Returns:
        The data set: 64 features in [0, 1], 10 classes.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: `neighbors` is less than 1 or not less than the number of images.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "datasets.digits: needs scikit-learn; install the extra jaxgnn[experiments]"
        ) from error
    images, classes = (np.asarray(array) for array in load_digits(return_X_y=True))
    labels = classes.astype(np.int32)
    senders, receivers = _nearest_neighbors(images, neighbors)
    dataset = NodeDataset(
        name="digits",
        senders=senders,
        receivers=receivers,
        features=(images / _MAX_PIXEL).astype(np.float32),
        labels=labels,
        num_classes=10,
        **_stratified_split(labels, seed),
    )
    dataset.validate()
    return dataset


def _nearest_neighbors(points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric nearest-neighbour graph of [points, d], as senders and receivers [edges] int32."""
    nodes = points.shape[0]
    if not 1 <= count < nodes:
        raise ValueError(f"datasets.digits: neighbors: expected 1 to {nodes - 1}, got {count}")
    squares = (points**2).sum(axis=1)
    # Pixels are small whole numbers, so that float64 has these distances exactly.
    distances = squares[:, None] + squares[None, :] - 2 * points @ points.T
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :count]
    joined = np.zeros((nodes, nodes), bool)
    joined[np.arange(nodes)[:, None], nearest] = True
    senders, receivers = np.nonzero(joined | joined.T)
    return senders.astype(np.int32), receivers.astype(np.int32)


def _stratified_split(labels: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    bounds = np.cumsum(_FRACTIONS)[:-1]
    parts: list[list[np.ndarray]] = [[] for _ in SPLITS]
    for digit in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == digit))
        cuts = np.rint(bounds * members.size).astype(int)
        for part, ids in zip(parts, np.split(members, cuts), strict=True):
            part.append(ids)
    return {
        split: np.sort(np.concatenate(part)).astype(np.int32)
        for split, part in zip(SPLITS, parts, strict=True)
    }
