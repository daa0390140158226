"""Builds jaxgnn/datasets/embedded/cora.npz, with the same bytes each time.

Its sources are two published copies of Cora.

The papers, words, classes and citations come from the wheel of graphdatascience 2.2, which carries
the files ``cora.content`` and ``cora.cites`` of the LINQS group as Parquet. The order of the papers
and classes comes from the files ``ind.cora.*`` of https://github.com/kimiyoung/planetoid (folder
``data``, commit af6abf4), in which the split of Planetoid is a range of nodes. Both copies
have the same words in the same order; papers are matched by words, class and neighbours, and the
two graphs are compared link by link. ::

    python -m venv pack && pack/bin/pip install numpy scipy pyarrow
    pip download --no-deps graphdatascience==2.2
    git clone https://github.com/kimiyoung/planetoid
    pack/bin/python tools/pack_cora.py graphdatascience-2.2-py3-none-any.whl planetoid/data
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import scipy.sparse

OUTPUT = Path(__file__).parent.parent / "jaxgnn" / "datasets" / "embedded" / "cora.npz"
NODES, WORDS, CITATIONS, PAIRS = 2708, 1433, 5429, 5278
LABELLED = 1708  # papers of ind.cora.allx; those of ind.cora.test.index follow
# The wheel's numbers of the classes, in the order of Planetoid, which _cora.py names.
CLASSES = (4, 2, 5, 0, 3, 6, 1)
_FOLDER = "graphdatascience/resources/cora/"


@dataclass(frozen=True)
class Copy:
    """One copy of the data.

    Attributes:
      words: [papers, words] bool.
      classes: [papers] ids in the order of Planetoid.
      links: pairs of papers of which one cites the other, the lower first.
    """

    words: np.ndarray
    classes: np.ndarray
    links: set[tuple[int, int]]


def main() -> None:
    """Reads both copies, compares them and writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("planetoid", type=Path)
    arguments = parser.parse_args()
    wheel, paper_ids, citations = read_wheel(arguments.wheel)
    planetoid = read_planetoid(arguments.planetoid)
    order = match(planetoid, wheel)  # for each paper of Planetoid, the paper of the wheel
    position = np.empty(NODES, int)
    position[order] = np.arange(NODES)
    moved = {tuple(sorted(position[list(link)].tolist())) for link in wheel.links}
    require((wheel.words[order] == planetoid.words).all(), "the words differ")
    require((wheel.classes[order] == planetoid.classes).all(), "the classes differ")
    require(moved == planetoid.links, "the links differ")
    papers, words = np.nonzero(planetoid.words)
    cited, citing = position[citations].T
    by_cited = np.lexsort([citing, cited])
    arrays: dict[str, Any] = {
        "paper_ids": paper_ids[order].astype(np.int32),
        "classes": planetoid.classes.astype(np.uint8),
        "words_of_paper": np.bincount(papers, minlength=NODES).astype(np.uint8),
        "words": words.astype(np.uint16),
        "cited": cited[by_cited].astype(np.uint16),
        "citing": citing[by_cited].astype(np.uint16),
    }
    with OUTPUT.open("wb") as file:
        np.savez(file, **arrays)  # without compression, whose bytes differ between libraries
    print(OUTPUT, hashlib.sha256(OUTPUT.read_bytes()).hexdigest())


def read_wheel(path: Path) -> tuple[Copy, np.ndarray, np.ndarray]:
    """The copy of the wheel, its ids of papers, and its citations as pairs (cited, citing)."""
    with zipfile.ZipFile(path) as archive:
        nodes, rels = (
            pyarrow.parquet.read_table(
                io.BytesIO(archive.read(f"{_FOLDER}cora_{name}.parquet.gzip"))
            )
            for name in ("nodes", "rels")
        )
    ids = nodes["nodeId"].to_numpy()
    index = {int(paper): number for number, paper in enumerate(ids)}
    ends = [rels[name].to_pylist() for name in ("sourceNodeId", "targetNodeId")]
    citations = np.array([[index[paper] for paper in column] for column in ends]).T
    require(len(set(map(tuple, citations.tolist()))) == CITATIONS, "a citation stands there twice")
    classes = np.argsort(CLASSES)[nodes["subject"].to_numpy()]
    words = np.array(nodes["features"].to_pylist())
    return _copy(words, classes, citations.tolist()), ids, citations


def read_planetoid(folder: Path) -> Copy:
    """The copy of Planetoid, whose test papers are in a file in the order of an index."""
    test = np.loadtxt(folder / "ind.cora.test.index", dtype=int)
    words, classes = np.zeros((NODES, WORDS)), np.zeros((NODES, len(CLASSES)))
    for where, features, labels in ((slice(LABELLED), "allx", "ally"), (test, "tx", "ty")):
        words[where] = _unpickled(folder, features).toarray()
        classes[where] = _unpickled(folder, labels)
    graph = _unpickled(folder, "graph")
    require((classes.sum(axis=1) == 1).all(), "a paper has not one class")
    pairs = [(paper, other) for paper, others in graph.items() for other in others]
    return _copy(words, classes.argmax(axis=1), pairs)


def match(one: Copy, other: Copy) -> np.ndarray:
    """For each paper of ``one`` the same paper of ``other``, by words, class and neighbours.

    Papers that can not be distinguished have the same words, class and neighbours up to a symmetry
    of the graph; they are matched in the order of their numbers.
    """
    ours, theirs = _refined(one, _names(one)), _refined(other, _names(other))
    while repeated := [name for name, count in collections.Counter(ours).items() if count > 1]:
        first = min(repeated)
        for names in (ours, theirs):
            names[names.index(first)] = "chosen"
        ours, theirs = _refined(one, ours), _refined(other, theirs)
    number = {name: paper for paper, name in enumerate(theirs)}
    require(number.keys() == set(ours), "the papers differ")
    return np.array([number[name] for name in ours])


def require(condition: bool | np.bool_, complaint: str) -> None:
    """Ends the program with a complaint unless the condition holds."""
    if not condition:
        raise SystemExit(f"pack_cora: {complaint}")


def _copy(words: np.ndarray, classes: np.ndarray, pairs: Sequence[Sequence[int]]) -> Copy:
    require(words.shape == (NODES, WORDS) and np.isin(words, (0, 1)).all(), "no such words")
    links = {(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}
    require(len(links) == PAIRS, f"{len(links)} links")
    return Copy(words.astype(bool), classes, links)


def _names(copy: Copy) -> list[str]:
    """A name for each paper, from its words and its class."""
    rows = zip(copy.classes.tolist(), np.packbits(copy.words, axis=1), strict=True)
    return [_digest((label, row.tobytes())) for label, row in rows]


def _refined(copy: Copy, names: list[str]) -> list[str]:
    """Names refined by the names of neighbours, and of their neighbours."""
    neighbours: list[list[int]] = [[] for _ in names]
    for low, high in copy.links:
        neighbours[low].append(high)
        neighbours[high].append(low)
    while True:
        finer = [
            _digest((name, sorted(names[other] for other in others)))
            for name, others in zip(names, neighbours, strict=True)
        ]
        if len(set(finer)) == len(set(names)):
            return finer
        names = finer


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


class _Unpickler(pickle.Unpickler):
    """Reads arrays, sparse matrices and dicts of lists, and rejects all other types."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function of a name in the file, if it is allowed."""
        allowed: dict[str, Any] = {
            "csr_matrix": scipy.sparse.csr_matrix,
            "_reconstruct": np._core.multiarray._reconstruct,
            "ndarray": np.ndarray,
            "dtype": np.dtype,
            "defaultdict": collections.defaultdict,
            "list": list,
        }
        require(name in allowed, f"a pickle refers to {module}.{name}")
        return allowed[name]


def _unpickled(folder: Path, name: str) -> Any:
    with (folder / f"ind.cora.{name}").open("rb") as file:
        return _Unpickler(file, encoding="latin1").load()


if __name__ == "__main__":
    main()
