"""ogbn-mag: papers, authors, institutions and fields of study, from OGB's raw csv folder."""

from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, is_there, require_folder
from jaxgnn.datasets.formats.files import csv_path, require_cells
from jaxgnn.datasets.readers.ogb_tables import (
    read_column,
    read_count,
    read_ends,
    read_features,
    read_numbers_of_types,
    read_parts,
    read_table_of_text,
)
from jaxgnn.datasets.records.relations_dataset import Relation, RelationsDataset

_COUNTS = "num-node-dict"


def read_ogb_mag(path: str | PathLike[str]) -> RelationsDataset:
    """Reads ogbn-mag as unpacked from OGB's archive: nodes of four types, and four relations.

    Edges keep the one direction of the files: authors write papers, and not the reverse.

    Args:
      path: folder with ``raw/`` and ``split/time/``. Files may be .csv.gz or .csv. Types come from
        ``num-node-dict``, relations from ``triplet-type-list``; the edges of a relation are in
        ``relations/author___writes___paper/edge.csv.gz``, the features of a type in
        ``node-feat/paper/node-feat.csv.gz``, and labels in ``node-label/paper/node-label.csv.gz``.

    Returns:
      The data set, with labels and split of the one type that ``nodetype-has-label`` names.
    """
    folder = Path(path)
    raw = folder / "raw"
    require_folder(raw, "the csv files of ogbn-mag")
    num_nodes = read_numbers_of_types(raw / "num-node-dict.csv.gz")
    target = _labelled_type(raw / "nodetype-has-label.csv.gz", num_nodes)
    relations = _relations(raw / "triplet-type-list.csv.gz", num_nodes)
    features, years = {}, {}
    for kind, count in num_nodes.items():
        folder_of_kind = raw / "node-feat" / kind
        file = folder_of_kind / "node-feat.csv.gz"
        if is_there(csv_path(file)):
            features[kind] = read_features(file, count, "node", counted_in=_COUNTS)
        file = folder_of_kind / "node_year.csv.gz"
        if is_there(csv_path(file)):
            years[kind] = read_column(file, "the year of a node", count, _COUNTS)
    labels_file = raw / "node-label" / target / "node-label.csv.gz"
    labels = read_column(labels_file, "the class of a node", num_nodes[target], _COUNTS)
    require_cells(labels_file, labels, labels >= 0, "classes from 0 on")
    return RelationsDataset(
        name="ogbn-mag",
        num_nodes=num_nodes,
        edges={relation: _edges(raw, relation, num_nodes) for relation in relations},
        features=features,
        target=target,
        labels=labels,
        num_classes=int(labels.max(initial=-1)) + 1,
        years=years,
        **read_parts(folder / "split" / "time" / target, num_nodes[target], f"{target}s"),
    )


def _labelled_type(path: Path, num_nodes: dict[str, int]) -> str:
    """The one type whose nodes have labels."""
    contents = "a line of types, and a line of True and False"
    rows = read_table_of_text(path, contents)
    named = dict(zip(*rows, strict=False)) if len(rows) == 2 else {}
    labelled = [kind for kind, has in named.items() if has == "True"]
    if len(labelled) != 1 or labelled[0] not in num_nodes:
        expected = f"{contents}, with labels of one of {', '.join(num_nodes)}"
        raise bad_file(csv_path(path), f"expected {expected}, got {rows!s:.200}")
    return labelled[0]


def _relations(path: Path, num_nodes: dict[str, int]) -> list[Relation]:
    """The relations, in the order of the file."""
    relations: list[Relation] = []
    rows = read_table_of_text(path, "a line a relation: senders, name, receivers")
    for line, row in enumerate(rows, start=1):
        fits = len(row) == 3 and row[0] in num_nodes and row[2] in num_nodes
        if not fits or not row[1].replace("_", "").isalnum():
            expected = f"type, name, type, with types of {', '.join(num_nodes)}"
            raise bad_file(csv_path(path), f"line {line}: expected {expected}, got {row!s:.200}")
        relation = row[0], row[1], row[2]
        if relation in relations:
            raise bad_file(csv_path(path), f"line {line}: expected each relation once, got {row}")
        relations.append(relation)
    return relations


def _edges(raw: Path, relation: Relation, num_nodes: dict[str, int]) -> np.ndarray:
    """Senders and receivers of a relation, int32 [2, edges]."""
    folder = raw / "relations" / "___".join(relation)
    require_folder(folder, "edge.csv.gz and num-edge-list.csv.gz")
    count = read_count(folder / "num-edge-list.csv.gz", "edges", _COUNTS)
    limits = num_nodes[relation[0]], num_nodes[relation[2]]
    return read_ends(folder / "edge.csv.gz", count, limits)
