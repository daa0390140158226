"""MUTAG, molecules that have long been used to compare methods for whole graphs."""

from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.npy import read_npz
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
from jaxgnn.datasets.records.splits import split_graphs

_PATH = Path(__file__).parent / "mutag.npz"
_ATOMS = ("C", "N", "O", "F", "I", "Cl", "Br")
_BONDS = ("aromatic", "single", "double", "triple")
_CLASSES = ("not mutagenic", "mutagenic")


def mutag(
    *, seed: int = 0, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> GraphsDataset:
    """MUTAG: molecules that are or are not mutagenic to a bacterium, without any download.

    188 nitro compounds of 10 to 28 atoms, without hydrogen, of which 125 are mutagenic. The
    features of an atom encode its element: C, N, O, F, I, Cl or Br. Those of a bond encode whether
    it is aromatic, single, double or triple. Every bond is listed in both directions.

    The measurements are those of Debnath, Lopez de Compadre, Debnath, Shusterman and Hansch,
    "Structure-activity relationship of mutagenic aromatic and heteroaromatic nitro compounds",
    Journal of Medicinal Chemistry 1991; the graphs are those of the TU collection
    (https://arxiv.org/abs/2007.08663), copied from the package grakel 0.1.11.

    Args:
      seed: seed of the split, which is random.
      fractions: fractions of each class for training, validation and test; they add up to one.

    Returns:
      The data set: 7 features of atoms, 4 of bonds, both one-hot, and 2 classes.

    Raises:
      ValueError: the fractions are not three that add up to one, or leave a part empty.
    """
    stored = read_npz(_PATH, None, "the data set MUTAG, which comes with the library")
    counts = stored["bonds_of_molecule"].astype(np.int32)
    molecule = np.repeat(np.arange(counts.size), counts)
    # The bonds of a molecule in one direction, and then the same in the other one.
    order = np.argsort(np.concatenate([molecule, molecule]), kind="stable")
    ends = np.stack([stored["one_end"], stored["other_end"]]).astype(np.int32)
    senders, receivers = np.concatenate([ends, ends[::-1]], axis=1)[:, order]
    bonds = np.concatenate([stored["bonds"], stored["bonds"]])[order]
    dataset = GraphsDataset(
        name="mutag",
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=stored["atoms_of_molecule"].astype(np.int32),
        num_edges_of_each=2 * counts,
        labels=stored["classes"].astype(np.int32),
        num_classes=len(_CLASSES),
        node_features=np.eye(len(_ATOMS), dtype=np.float32)[stored["atoms"]],
        edge_features=np.eye(len(_BONDS), dtype=np.float32)[bonds],
        class_names=_CLASSES,
    )
    return split_graphs(dataset, fractions, seed=seed)
