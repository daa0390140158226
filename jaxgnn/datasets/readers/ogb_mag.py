"""ogbn-mag: papers, authors, institutions and fields of study, from OGB's raw csv folder."""

from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import csv_path, read_csv
from jaxgnn.datasets.readers.ogb_tables import (
    read_counts,
    read_ends,
    read_features,
    read_numbers_of_types,
    read_parts,
    read_table_of_text,
    require_rows,
)
from jaxgnn.datasets.records.relations_dataset import Relation, RelationsDataset

_SPLIT = "time"


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

    Raises:
      FileNotFoundError: a folder or file is missing.
      ValueError: a file is invalid; the message names it and the line.
    """
    folder = Path(path)
    raw = folder / "raw"
    require_folder(raw, "the csv files of ogbn-mag")
    num_nodes = read_numbers_of_types(raw / "num-node-dict.csv.gz")
    target = _labelled_type(raw / "nodetype-has-label.csv.gz", num_nodes)
    relations = _relations(raw / "triplet-type-list.csv.gz", num_nodes)
    features, years = {}, {}
    for kind, count in num_nodes.items():
        found = read_features(raw / "node-feat" / kind / "node-feat.csv.gz", count, "num-node-dict")
        if found is not None:
            features[kind] = found
        years_file = raw / "node-feat" / kind / "node_year.csv.gz"
        if csv_path(years_file).is_file():
            years[kind] = _column(years_file, "the year of a node", count)
    labels_file = raw / "node-label" / target / "node-label.csv.gz"
    labels = _column(labels_file, "the class of a node", num_nodes[target])
    if (labels < 0).any():
        line = int(np.argmax(labels < 0))
        message = f"line {line + 1}: expected classes from 0 on, got {labels[line]}"
        raise bad_file(csv_path(labels_file), message)
    return RelationsDataset(
        name="ogbn-mag",
        num_nodes=num_nodes,
        edges={relation: _edges(raw, relation, num_nodes) for relation in relations},
        features=features,
        target=target,
        labels=labels,
        num_classes=int(labels.max(initial=-1)) + 1,
        years=years,
        **read_parts(folder / "split" / _SPLIT / target, num_nodes[target], f"{target}s"),
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
    for line, row in enumerate(
        read_table_of_text(path, "a line a relation: senders, name, receivers"), 1
    ):
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
    counts = read_counts(folder / "num-edge-list.csv.gz", "edges")
    require_rows(folder / "num-edge-list.csv.gz", counts.size, 1, "num-node-dict")
    limits = np.array([num_nodes[relation[0]]]), np.array([num_nodes[relation[2]]])
    edges = read_ends(folder / "edge.csv.gz", limits)
    require_rows(folder / "edge.csv.gz", edges.shape[1], int(counts[0]), "num-edge-list")
    return edges


def _column(path: Path, contents: str, rows: int) -> np.ndarray:
    """A whole number on each line, int32 [rows]."""
    values = read_csv(path, np.int32, f"a line for each: {contents}", columns=1)[:, 0]
    require_rows(path, values.size, rows, "num-node-dict")
    return values
