"""Writes a small data set to disk in each published format, as the publishers lay it out."""

import gzip
import json
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse

from jaxgnn.datasets import HypergraphDataset, NodeDataset

NODES, FEATURES, CLASSES, TASKS, EDGE_FEATURES = 12, 3, 4, 112, 8
OGB_SPLITS = {
    "ogbn-products": "sales_ranking",
    "ogbn-proteins": "species",
    "ogbn-arxiv": "time",
}


def small_dataset(*, tasks: int | None = None, seed: int = 0) -> NodeDataset:
    """Random undirected graph; every class and split occurs, and the last node is isolated."""
    rng = np.random.default_rng(seed)
    low, high = np.triu_indices(NODES - 1, k=1)
    kept = rng.random(low.size) < 0.3
    low, high = low[kept].astype(np.int32), high[kept].astype(np.int32)
    classes = rng.permutation(np.arange(NODES, dtype=np.int32) % CLASSES)
    order = rng.permutation(NODES).astype(np.int32)
    return NodeDataset(
        name="small",
        senders=np.concatenate([low, high]),
        receivers=np.concatenate([high, low]),
        features=rng.normal(size=(NODES, FEATURES)).astype(np.float32),
        labels=rng.integers(0, 2, (NODES, tasks)).astype(np.float32) if tasks else classes,
        train=np.sort(order[:6]),
        validation=np.sort(order[6:9]),
        test=np.sort(order[9:]),
        num_classes=tasks or CLASSES,
    )


def adjacency(data: NodeDataset) -> scipy.sparse.coo_matrix:
    ones = np.ones(data.num_edges)
    return scipy.sparse.coo_matrix((ones, (data.senders, data.receivers)), (data.num_nodes,) * 2)


def write_reddit(folder: Path, data: NodeDataset) -> None:
    node_types = np.zeros(data.num_nodes, np.int64)
    for code, split in enumerate((data.train, data.validation, data.test), start=1):
        node_types[split] = code
    np.savez(
        folder / "reddit_data.npz",
        feature=data.features,
        label=data.labels.astype(np.int64),
        node_types=node_types,
        node_ids=np.arange(data.num_nodes),
    )
    scipy.sparse.save_npz(folder / "reddit_graph.npz", adjacency(data))


def write_graphsaint(folder: Path, data: NodeDataset, *, stored_format: bool = True) -> None:
    csr = adjacency(data).tocsr()
    if stored_format:
        scipy.sparse.save_npz(folder / "adj_full.npz", csr)
    else:
        np.savez(
            folder / "adj_full.npz",
            data=csr.data,
            indices=csr.indices,
            indptr=csr.indptr,
            shape=csr.shape,
        )
    np.save(folder / "feats.npy", data.features.astype(np.float64))
    labels = data.labels.astype(int).tolist()
    # Backwards: the order of the keys carries no meaning.
    class_map = {str(node): labels[node] for node in reversed(range(data.num_nodes))}
    (folder / "class_map.json").write_text(json.dumps(class_map))
    splits = {"tr": data.train, "va": data.validation, "te": data.test}
    roles = {role: ids[::-1].tolist() for role, ids in splits.items()}
    (folder / "role.json").write_text(json.dumps(roles))


def write_ogb(
    folder: Path,
    data: NodeDataset,
    name: str,
    *,
    edge_features: np.ndarray | None = None,
    compressed: bool = True,
) -> None:
    """Lists each edge once, low id first; `edge_features` [edges / 2, d] replace the nodes'."""
    once = data.senders < data.receivers
    edges = np.stack([data.senders[once], data.receivers[once]], axis=1)
    raw = {
        "edge": edges,
        "num-node-list": [[data.num_nodes]],
        "num-edge-list": [[len(edges)]],
        "node-label": data.labels.astype(int).reshape(data.num_nodes, -1),
    }
    if edge_features is None:
        raw["node-feat"] = data.features
    else:
        raw["edge-feat"] = edge_features
        raw["node_species"] = np.full((data.num_nodes, 1), 9606)
    for file, table in raw.items():
        write_csv(folder / "raw" / f"{file}.csv", table, compressed)
    splits = {"train": data.train, "valid": data.validation, "test": data.test}
    for file, ids in splits.items():
        path = folder / "split" / OGB_SPLITS[name] / f"{file}.csv"
        write_csv(path, ids[::-1, None], compressed)


def write_csv(path: Path, table: np.ndarray | list[list[int]], compressed: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in np.asarray(table).tolist())
    if compressed:
        Path(f"{path}.gz").write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def edge_features(data: NodeDataset) -> np.ndarray:
    """[undirected edges, 8] float32, in the order in which `write_ogb` lists the edges."""
    rng = np.random.default_rng(7)
    return rng.random((data.num_edges // 2, EDGE_FEATURES)).astype(np.float32)


def _write_proteins(folder: Path) -> None:
    data = small_dataset(tasks=TASKS)
    write_ogb(folder, data, "ogbn-proteins", edge_features=edge_features(data))


def small_hypergraph(seed: int = 0) -> HypergraphDataset:
    """Random hyperedges, the last of them empty; every class occurs, and one node is isolated."""
    rng = np.random.default_rng(seed)
    members = [np.sort(rng.permutation(NODES - 1)[:size]) for size in (3, 2, 1, 5, 0)]
    labels = rng.permutation(np.arange(NODES, dtype=np.int32) % CLASSES)
    features = rng.integers(0, 2, (NODES, FEATURES)).astype(np.float32)
    order = rng.permutation(NODES).astype(np.int32)
    return HypergraphDataset(
        name="small",
        node_ids=np.concatenate(members).astype(np.int32),
        hyperedge_ids=np.repeat(np.arange(5, dtype=np.int32), [len(m) for m in members]),
        num_hyperedges=5,
        features=features,
        labels=labels,
        train=np.sort(order[:4]),
        validation=np.zeros(0, np.int32),
        test=np.sort(order[4:]),
        num_classes=CLASSES,
    )


def hyperedges(data: HypergraphDataset) -> list[list[int]]:
    """The nodes of each hyperedge."""
    ids = range(data.num_hyperedges)
    return [data.node_ids[data.hyperedge_ids == hyperedge].tolist() for hyperedge in ids]


def write_pickle(path: Path, value: object, protocol: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))


def write_hypergcn(
    folder: Path, data: HypergraphDataset, *, protocol: int = 4, sets: bool = True
) -> None:
    """As published: a sparse matrix, a list of labels, sets or lists of numpy's integers."""
    kind = set if sets else list
    named = {f"paper {i}": kind(map(np.int64, e)) for i, e in enumerate(hyperedges(data))}
    write_pickle(folder / "hypergraph.pickle", named, protocol)
    features = scipy.sparse.csr_matrix(data.features.astype(np.float64))
    write_pickle(folder / "features.pickle", features, protocol)
    write_pickle(folder / "labels.pickle", data.labels.tolist(), protocol)
    split = {"train": list(map(np.int64, data.train))[::-1], "test": data.test.tolist()}
    write_pickle(folder / "splits/3.pickle", split, protocol)


def write_planetoid(
    folder: Path,
    name: str = "tiny",
    *,
    protocol: int = 2,
    missing: int = 1,
    as_sparse=scipy.sparse.csr_matrix,
) -> NodeDataset:
    """Random papers as Planetoid has them; ``missing`` numbers of test nodes are left out."""
    rng = np.random.default_rng(0)
    train, known, test = 4, 510, 8
    count = known + test + missing
    features = (rng.random((count, FEATURES)) < 0.5).astype(np.float32)
    labels = rng.permutation(np.arange(count) % CLASSES)
    left_out = known + 2 + np.arange(missing)
    features[left_out] = 0
    index = rng.permutation(np.setdiff1d(np.arange(known, count), left_out))
    one, other = rng.integers(0, count, (2, 900))
    graph: dict[int, list[int]] = defaultdict(list)
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        graph[a].append(b)
        graph[b].append(a)
    hot = np.eye(CLASSES, dtype=np.int32)[labels]
    sparse = as_sparse(features)
    parts = {
        "allx": sparse[:known],
        "ally": hot[:known],
        "x": sparse[:train],
        "y": hot[:train],
        "tx": sparse[index],
        "ty": hot[index],
        "graph": graph,
    }
    for part, value in parts.items():
        write_pickle(folder / f"ind.{name}.{part}", value, protocol)
    (folder / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in index))
    pairs = {(a, b) for a, others in graph.items() for b in others if a != b}
    senders, receivers = np.array(sorted(pairs), np.int32).T
    labels[left_out] = -1
    return NodeDataset(
        name=name,
        senders=senders,
        receivers=receivers,
        features=features,
        labels=labels.astype(np.int32),
        train=np.arange(train, dtype=np.int32),
        validation=np.arange(train, train + 500, dtype=np.int32),
        test=np.sort(index).astype(np.int32),
        num_classes=CLASSES,
    )


def write_npz_graph(path: Path, data: NodeDataset, *, beginning: str = "{}_") -> None:
    """The data set as "Pitfalls of graph neural network evaluation" stores it, values and all."""
    arrays: dict[str, np.ndarray] = {"labels": data.labels.astype(np.int64)}
    matrices = {"adj": adjacency(data).tocsr(), "attr": scipy.sparse.csr_matrix(data.features)}
    for name, matrix in matrices.items():
        for part in ("data", "indices", "indptr", "shape"):
            arrays[beginning.format(name) + part] = np.asarray(getattr(matrix, part))
    np.savez(path, **arrays)


def write_hyperedge_text(
    folder: Path, data: HypergraphDataset, *, separator: str = ",", features: bool = True
) -> None:
    """Ids and classes counted from one, as published; features are not."""
    lines = [separator.join(str(node + 1) for node in e) for e in hyperedges(data)]
    (folder / "hyperedges-small.txt").write_text("\n".join(lines) + "\n")
    labels = "".join(f"{label + 1}\n" for label in data.labels)
    (folder / "node-labels-small.txt").write_text(labels)
    if features:
        rows = [separator.join(map(str, row)) for row in data.features.tolist()]
        (folder / "node-features-small.txt").write_text("\n".join(rows) + "\n")


WRITERS: dict[str, Callable[[Path], None]] = {
    "reddit": lambda folder: write_reddit(folder, small_dataset()),
    "flickr": lambda folder: write_graphsaint(folder, small_dataset()),
    "yelp": lambda folder: write_graphsaint(folder, small_dataset(tasks=5)),
    "ogbn-products": lambda folder: write_ogb(folder, small_dataset(), "ogbn-products"),
    "ogbn-arxiv": lambda folder: write_ogb(folder, small_dataset(), "ogbn-arxiv"),
    "ogbn-proteins": _write_proteins,
}
