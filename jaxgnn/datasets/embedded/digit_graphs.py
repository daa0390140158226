"""Handwritten digits as graphs of their pixels."""

import numpy as np

from jaxgnn.datasets.embedded.digits import MAX_PIXEL, images_and_labels
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
from jaxgnn.datasets.records.splits import split_graphs

_SIDE = 8
# Half of the eight neighbours of a pixel; the others are the same edges in the other direction.
_OFFSETS = ((0, 1), (1, -1), (1, 0), (1, 1))


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
    images, labels = images_and_labels("digit_graphs")
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
        node_features=(images[inked] / MAX_PIXEL).astype(np.float32)[:, None],
        edge_features=steps[order],
    )
    return split_graphs(dataset, fractions, seed=seed)


def _edges(
    inked: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Image, sender, receiver and step [edges, 2] of each edge, offset by offset.

    Args:
      inked: mask of pixels with ink, [images, side, side] bool.
      number: number of each such pixel in its image, [images, side, side].
    """
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
