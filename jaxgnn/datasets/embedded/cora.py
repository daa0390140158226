"""Cora, the citation network on which methods for few labelled nodes are compared."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.sparse import csgraph, csr_array

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.npy import read_npz
from jaxgnn.datasets.records.node_dataset import NodeDataset, distinct_edges
from jaxgnn.datasets.records.splits import class_split

_PATH = Path(__file__).parent / "cora.npz"
_WORDS = 1433
_CLASSES = (
    "Theory",
    "Reinforcement_Learning",
    "Genetic_Algorithms",
    "Neural_Networks",
    "Probabilistic_Methods",
    "Case_Based",
    "Rule_Learning",
)
# Labelled nodes of each class for training and for validation.
_SHCHUR = (20, 30)
# In the order of the file. Nodes between the last two ranges are in no part.
_PLANETOID = {"train": (0, 140), "validation": (140, 640), "test": (1708, 2708)}
_SPLITS = ("shchur", "planetoid")


def cora(
    *,
    seed: int = 0,
    split: Literal["shchur", "planetoid"] = "shchur",
    largest_component: bool | None = None,
) -> NodeDataset:
    """Cora: papers on machine learning that cite each other, without any download.

    2,708 papers of seven classes. Features are zeros and ones: whether a paper has each of 1,433
    words. Of the 5,429 citations 302 are mutual, so that 5,278 pairs of papers are joined. Every
    pair is listed once in each direction. Nodes and classes are in the order of Planetoid's files,
    and ``node_names`` has the original number of each paper.

    The papers were collected by McCallum, Nigam, Rennie and Seymore, "Automating the construction
    of internet portals with machine learning", Information Retrieval 2000; words and citations
    are those of Sen, Namata, Bilgic, Getoor, Gallagher and Eliassi-Rad, "Collective classification
    in network data", AI Magazine 2008. They were copied from the package graphdatascience 2.2.

    There are two splits:

    - ``"shchur"``, of Shchur, Mumme, Bojchevski and Günnemann, "Pitfalls of graph neural network
      evaluation", 2018: from the largest component (2,485 papers, 5,069 pairs) 20 papers a class
      for training and 30 a class for validation, at random, and the others for the test. It is
      meant to be drawn many times.
    - ``"planetoid"``, of Yang, Cohen and Salakhutdinov, "Revisiting semi-supervised learning with
      graph embeddings", ICML 2016: fixed 140 papers for training (20 a class), 500 for validation
      and 1,000 for the test, out of all 2,708.

    Args:
      seed: seed of the split; the fixed one does not depend on it.
      split: name of the split.
      largest_component: whether papers outside of the largest component are dropped; None for the
        default of the split. The fixed split needs all papers.

    Returns:
      The data set, with ``class_names`` and ``node_names``.

    Raises:
      ValueError: the name of the split is unknown, or ``largest_component`` is true with the fixed
        split.
    """
    if split not in _SPLITS:
        raise bad_input("datasets.cora", "split", f"one of {', '.join(_SPLITS)}", repr(split))
    if largest_component is None:
        largest_component = split == "shchur"
    elif largest_component and split == "planetoid":
        expected = "False or None with the split planetoid, which is of all papers"
        raise bad_input("datasets.cora", "largest_component", expected, largest_component)
    stored = read_npz(_PATH, None, "the data set Cora, which comes with the library")
    labels = stored["classes"].astype(np.int32)
    cited = np.stack([stored["cited"], stored["citing"]])
    edges = distinct_edges(cited, labels.size, both_directions=True)
    kept = np.ones(labels.size, bool)
    if largest_component:
        kept = _largest_component(edges, labels.size)
    number = np.cumsum(kept, dtype=np.int32) - 1  # The new number of each kept paper.
    senders, receivers = number[edges[:, kept[edges[0]]]]
    if split == "shchur":
        parts: dict[str, Any] = class_split(labels[kept], *_SHCHUR, seed)
    else:
        parts = {name: np.arange(*ends, dtype=np.int32) for name, ends in _PLANETOID.items()}
    dataset = NodeDataset(
        name="cora",
        senders=senders,
        receivers=receivers,
        features=_words(stored["words_of_paper"], stored["words"])[kept],
        labels=labels[kept],
        num_classes=len(_CLASSES),
        class_names=_CLASSES,
        node_names=stored["paper_ids"][kept],
        **parts,
    )
    dataset.validate()
    return dataset


def _largest_component(edges: np.ndarray, papers: int) -> np.ndarray:
    """Returns the mask of the papers in the largest connected component: [papers] bool."""
    adjacency = csr_array((np.ones(edges.shape[1], bool), tuple(edges)), (papers, papers))
    _, component = csgraph.connected_components(adjacency, directed=False)
    return component == np.bincount(component).argmax()


def _words(counts: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Converts concatenated word numbers of papers to float32 zeros and ones [papers, words]."""
    features = np.zeros((counts.size, _WORDS), np.float32)
    features[np.repeat(np.arange(counts.size), counts), words] = 1
    return features
