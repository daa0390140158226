"""The table of published data sets."""

from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any

from jaxgnn.datasets.readers.graphsaint import read_graphsaint, read_reddit
from jaxgnn.datasets.readers.ogb import OGB_GRAPHS, read_ogb, read_ogb_graphs
from jaxgnn.datasets.readers.zinc import read_zinc
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
from jaxgnn.datasets.records.node_dataset import NodeDataset

READERS: dict[str, Callable[..., NodeDataset]] = {
    "reddit": read_reddit,
    "flickr": partial(read_graphsaint, name="flickr"),
    "yelp": partial(read_graphsaint, name="yelp"),
    "ogbn-products": partial(read_ogb, name="ogbn-products"),
    "ogbn-proteins": partial(read_ogb, name="ogbn-proteins"),
    "ogbn-arxiv": partial(read_ogb, name="ogbn-arxiv"),
}
"""The reader of each published data set, by the name that ``read`` takes."""

GRAPH_READERS: dict[str, Callable[..., GraphsDataset]] = {
    "zinc": read_zinc,
    "zinc-12k": partial(read_zinc, subset=True),
    **{name: partial(read_ogb_graphs, name=name) for name in OGB_GRAPHS},
}
"""The reader of each published data set of graphs, a function of its folder, by its name."""


def read(name: str, path: str | PathLike[str], **options: Any) -> NodeDataset:
    """Reads a published data set, in its published files, from a folder.

    Args:
      name: a key of ``READERS``.
      path: the folder.
      **options: passed to the reader, such as ``standardize=True`` for flickr.

    Returns:
      The validated data set.
    """
    if name not in READERS:
        raise ValueError(f"datasets.read: name: expected one of {sorted(READERS)}, got {name!r}")
    return READERS[name](path, **options)
