"""Reads spoiled files by the thousand: `python -m tests.datasets.fuzz_readers --count N --seed S`.

Every reader of pickles and of numpy's files reads files that were valid once, in a process of its
own, with a limit on its memory. For each file it must either raise a ValueError that names it, or
return what the file says, as the standard library and numpy read it too, after our reader has
admitted it. It must not end the process, not come to no end, and not take more memory than ten
times the file, or what it holds unpacked, and 64 MiB.
"""

import argparse
import io
import json
import pickle
import random
import resource
import select
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxgnn import datasets
from jaxgnn.datasets.formats.npy import read_npy, read_npz
from jaxgnn.datasets.formats.pickle_parts import PARTS, StoredArray, StoredCSR, StoredSet
from jaxgnn.datasets.formats.safe_pickle import read_numbers

from . import formats, mutations

ALLOWED_GROWTH = 10
ALLOWED_SLACK = 64 << 20
_ADDRESS_SPACE = 768 << 20  # beside what the process has when it begins
_SECONDS = 600  # for one file
_MOST_UNPACKED = 256 << 20


class Fault(Exception):
    """What a reader must not do."""


@dataclass(frozen=True)
class Target:
    """A file of a data set that a reader reads.

    Attributes:
        folder: of the data set.
        file: its path in there.
        content: what it holds before it is spoiled.
        read: reads the data set; None if the file is read alone.
    """

    folder: Path
    file: str
    content: bytes
    read: Callable[[Path], Any] | None

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / self.file


def make_targets(root: Path) -> list[Target]:
    """Writes a data set in each format, and lists their files."""
    small, graph = formats.small_hypergraph(), formats.small_dataset()
    dense = {"features.pickle": small.features, "labels.pickle": small.labels}
    lists = {"features.pickle": small.features.tolist(), "labels.pickle": (1, 2, 3) * 4}
    edges = {i: np.array(e, ">i8") for i, e in enumerate(formats.hyperedges(small))}
    arrays = dense | {"hypergraph.pickle": edges}
    pickles = ("hypergraph.pickle", "features.pickle", "labels.pickle", "splits/3.pickle")
    targets: list[Target] = []

    def add(name: str, files: tuple[str, ...], read: Callable[[Path], Any] | None) -> None:
        folder = root / name
        targets.extend(Target(folder, f, (folder / f).read_bytes(), read) for f in files)

    for protocol in range(6):
        for name, contents in (("sparse", {}), ("dense", dense), ("lists", lists), ("big", arrays)):
            folder = root / f"{name}{protocol}"
            formats.write_hypergcn(folder, small, protocol=protocol, sets=protocol % 2 == 0)
            for file, content in contents.items():
                formats.write_pickle(folder / file, content, protocol)
            add(folder.name, pickles, _read_hypergcn)
    for name, write in (("reddit", formats.write_reddit), ("graphsaint", formats.write_graphsaint)):
        (root / name).mkdir()
        write(root / name, graph)
    for protocol in (0, 2, 4):
        formats.write_planetoid(root / f"planetoid{protocol}", protocol=protocol)
        planetoid = tuple(f"ind.tiny.{part}" for part in ("allx", "ally", "tx", "ty", "y", "graph"))
        add(f"planetoid{protocol}", planetoid, datasets.read_planetoid)
    (root / "pitfalls").mkdir()
    formats.write_npz_graph(root / "pitfalls/small.npz", graph)
    for _ in range(8):  # as often as there are pickles
        add("reddit", ("reddit_data.npz", "reddit_graph.npz"), datasets.read_reddit)
        add("graphsaint", ("adj_full.npz", "feats.npy"), _read_graphsaint)
        add("pitfalls", ("small.npz",), _read_npz_graph)
        add("weights", (_write_weights(root / "weights"),), None)
    return targets


def _read_hypergcn(folder: Path) -> Any:
    return datasets.read_hypergcn(folder, split=3)


def _read_graphsaint(folder: Path) -> Any:
    return datasets.read_graphsaint(folder, "small")


def _read_npz_graph(folder: Path) -> Any:
    return datasets.read_npz_graph(folder / "small.npz", per_class=(1, 1), directed=True)


def kind_of(path: Path) -> str:
    """What a file is, by its name: those of Planetoid are pickles."""
    return ".pickle" if path.name.startswith("ind.") else path.suffix


def _write_weights(folder: Path) -> str:
    """A file as `save_weights` writes it, short floats among its arrays."""
    folder.mkdir(exist_ok=True)
    arrays = {"description.json": np.array('{"network": "SudokuGNN", "options": {}}')}
    arrays |= {"a.kernel": np.ones((3, 4), np.float32), "b.bias": np.ones(5, "V2")}
    np.savez(folder / "small.npz", **arrays)
    return "small.npz"


def check(target: Target) -> bool:
    """Reads a spoiled file; returns whether it was admitted.

    Raises:
        Fault: the reader did what it must not.
    """
    try:
        data = None if target.read is None else target.read(target.folder)
        raw = read_alone(target.path)
    except (ValueError, FileNotFoundError) as error:
        if str(target.path) not in str(error):
            raise Fault(f"the file is not named: {error!r}") from error
        if isinstance(error.__cause__, MemoryError):
            raise Fault("a size was believed until memory ran out") from error
        return False
    except Exception as error:
        raise Fault(f"no ValueError but {error!r}") from error
    for array in _arrays(raw):
        _require(_holds(target.path, array), "an array is not in the file")
    try:
        expected = plain(_read_by_others(target.path))
    except Exception as error:
        raise Fault(f"others do not read what was admitted: {error!r}") from error
    _require(plain(raw) == expected, "it does not say what others read in it")
    if data is not None:
        _check_data(data, target, raw)
    return True


def read_alone(path: Path) -> Any:
    """What the reader of a kind of file makes of it."""
    if kind_of(path) == ".pickle":
        return read_numbers(path, "numbers")
    if path.suffix == ".npy":
        return read_npy(path, "an array")
    return read_npz(path, None, "arrays", short_floats=path.parent.name == "weights")


def _require(good: bool, message: str) -> None:
    if not good:
        raise Fault(message)


# -- what a file says ----------------------------------------------------------------------------


class _Others(pickle.Unpickler):
    """The standard library's reader, for what ours has admitted."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PARTS:
            raise Fault(f"{module}.{name} was admitted")
        return super().find_class(module, name)


def _read_by_others(path: Path) -> Any:
    if kind_of(path) == ".pickle":
        return _Others(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def plain(value: Any, depth: int = 0) -> Any:
    """Something that compares equal if two readers have read the same."""
    if depth > 8:
        return "..."
    if isinstance(value, StoredArray):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="))
        return ("array", native.dtype.str, native.shape, native.tobytes())
    if isinstance(value, StoredCSR | scipy.sparse.csr_matrix):
        fields = value.fields if isinstance(value, StoredCSR) else vars(value)
        names = ("_shape", "data", "indices", "indptr")
        return ("csr", *(plain(fields.get(name), depth + 1) for name in names))
    if isinstance(value, StoredSet | set | frozenset):
        members = value.members if isinstance(value, StoredSet) else value
        return ("set", sorted({repr(plain(member, depth + 1)) for member in members}))
    if isinstance(value, dict):
        return {repr(plain(key)): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(plain(item, depth + 1) for item in value)]
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    return getattr(value, "__name__", None) or getattr(value, "name", type(value).__name__)


def _arrays(raw: Any, depth: int = 0) -> Iterator[np.ndarray]:
    if isinstance(raw, StoredArray):
        yield raw.value
    elif isinstance(raw, np.ndarray):
        yield raw
    elif isinstance(raw, StoredCSR | dict) and depth < 8:
        fields = raw.fields if isinstance(raw, StoredCSR) else raw
        for value in fields.values():
            yield from _arrays(value, depth + 1)
    elif isinstance(raw, list | tuple) and depth < 8:
        for value in raw:
            yield from _arrays(value, depth + 1)


def _holds(path: Path, array: np.ndarray) -> bool:
    """Whether the bytes of an array are in the file, in one piece."""
    pieces = [path.read_bytes()]
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            pieces = [_unzipped(archive, info) for info in archive.infolist()]
    elif kind_of(path) == ".pickle":  # bytes as text, in UTF-8 or in the escapes of protocol 0
        pieces += [_latin1(pieces[0]), _unescaped(pieces[0], "raw-unicode-escape")]
        pieces += [_unescaped(pieces[0], "unicode-escape")]
    swapped = array.byteswap() if array.dtype.kind in "iufU" else array
    contents = [a.tobytes(order) for a in (array, swapped) for order in ("C", "F")]
    return any(content in piece for content in contents for piece in pieces)


def _unzipped(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member a little at a time, since zipfile believes the sizes of all members."""
    with archive.open(info) as stream:
        return b"".join(iter(lambda: stream.read(1 << 16), b""))


def _latin1(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode("latin1", "replace")


def _unescaped(data: bytes, escapes: str) -> bytes:
    """Each line on its own, since one that is not escaped may have anything in it."""
    texts = (line.decode(escapes, "replace") for line in data.split(b"\n"))
    return "\n".join(texts).encode("latin1", "replace")


def _check_data(data: Any, target: Target, raw: Any) -> None:
    """What a reader has made of a file, compared to loops over what the file says."""
    if target.file == "features.pickle":
        same = np.array_equal(data.features, _dense(raw))
    elif target.file == "hypergraph.pickle":
        members = [_list(value) for value in raw.values()]
        same = data.node_ids.tolist() == [node for nodes in members for node in nodes]
        sizes = np.bincount(data.hyperedge_ids, minlength=len(members)).tolist()
        same = same and sizes == list(map(len, members))
    elif target.file == "labels.pickle":
        labels = _list(raw)
        same = data.labels.tolist() == [sorted(set(labels)).index(label) for label in labels]
    elif target.file == "splits/3.pickle":
        found = {"train": data.train, "test": data.test}
        same = all(ids.tolist() == sorted(_list(raw[part])) for part, ids in found.items())
    elif target.file == "reddit_data.npz":
        same = np.array_equal(data.features, raw["feature"].astype(np.float32))
        same = same and data.labels.tolist() == raw["label"].tolist()
        for code, part in enumerate((data.train, data.validation, data.test), start=1):
            types = enumerate(raw["node_types"])
            same = same and part.tolist() == [i for i, kind in types if kind == code]
    elif target.file == "reddit_graph.npz":
        is_csr = "indptr" in raw and str(raw.get("format")) != "coo"
        senders = _rows(raw["indptr"]) if is_csr else raw["row"].tolist()
        same = data.senders.tolist() == senders
        same = same and data.receivers.tolist() == raw["indices" if is_csr else "col"].tolist()
    elif target.file.startswith("ind.tiny."):
        same = _is_planetoid(data, target.file.removeprefix("ind.tiny."), raw)
    elif target.file == "small.npz":
        same = _is_npz_graph(data, raw)
    elif target.file == "adj_full.npz":
        same = data.senders.tolist() == _rows(raw["indptr"])
        same = same and data.receivers.tolist() == raw["indices"].tolist()
    else:
        same = np.array_equal(data.features, raw.astype(np.float32))
    _require(same, f"{target.file} does not say what was read")


def _is_planetoid(data: Any, part: str, raw: Any) -> bool:
    """Whether a data set says what a part of it says."""
    if part == "graph":
        pairs = {(int(a), int(b)) for a, others in raw.items() for b in _list(others)}
        both = {pair for a, b in pairs if a != b for pair in ((a, b), (b, a))}
        return sorted(both) == list(
            zip(data.senders.tolist(), data.receivers.tolist(), strict=True)
        )
    dense = _dense(raw)
    index = np.sort(data.test)
    if part in ("allx", "tx"):
        rows = data.features[: len(dense)] if part == "allx" else data.features[index]
        return np.array_equal(np.sort(rows, axis=0), np.sort(dense, axis=0))
    classes = np.where(dense.any(axis=1), dense.argmax(axis=1), -1)
    if part == "y":
        return data.train.size == len(dense)
    found = data.labels[: len(dense)] if part == "ally" else data.labels[index]
    return sorted(found.tolist()) == sorted(classes.tolist())


def _is_npz_graph(data: Any, raw: Any) -> bool:
    """Whether a data set says what the arrays of its file say."""
    pairs = zip(_rows(raw["adj_indptr"]), raw["adj_indices"].tolist(), strict=True)
    expected = sorted({(a, b) for a, b in pairs if a != b})
    found = list(zip(data.senders.tolist(), data.receivers.tolist(), strict=True))
    names = ("data", "indices", "indptr", "shape")
    fields = {name.replace("shape", "_shape"): raw[f"attr_{name}"] for name in names}
    dense = np.zeros(tuple(map(int, fields["_shape"])), np.float64)
    for row, column, value in zip(
        _rows(fields["indptr"]), fields["indices"], fields["data"], strict=True
    ):
        dense[row, column] += value
    classes = np.unique(raw["labels"], return_inverse=True)[1]
    same = np.array_equal(data.features, dense.astype(np.float32))
    return same and found == expected and data.labels.tolist() == classes.tolist()


def _list(stored: Any) -> list[Any]:
    if isinstance(stored, StoredSet):
        return sorted(set(stored.members))
    return stored.value.tolist() if isinstance(stored, StoredArray) else list(stored)


def _rows(indptr: np.ndarray) -> list[int]:
    ends = list(map(int, indptr))
    return [row for row in range(len(ends) - 1) for _ in range(ends[row], ends[row + 1])]


def _dense(raw: Any) -> np.ndarray:
    if isinstance(raw, StoredArray):
        return raw.value.astype(np.float32)
    if not isinstance(raw, StoredCSR):
        return np.array([_list(row) if isinstance(row, StoredArray) else row for row in raw], "f4")
    data, indices, indptr = (raw.fields[name].value for name in ("data", "indices", "indptr"))
    dense = np.zeros(raw.fields["_shape"], np.float64)
    for row, column, value in zip(_rows(indptr), indices, data, strict=True):
        dense[row, column] += value
    return dense.astype(np.float32)


# -- processes -----------------------------------------------------------------------------------


def _unpacked(path: Path) -> int:
    """Bytes of a file, or of what its members say that they hold."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            size += sum(min(info.file_size, _MOST_UNPACKED) for info in archive.infolist())
    except Exception:  # no archive, or none any more
        return size
    return min(size, _MOST_UNPACKED)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(seed: int, first: int, last: int) -> None:
    """Reads files one after another, and prints what came of each."""
    with tempfile.TemporaryDirectory() as root:
        targets = make_targets(Path(root))
        contents: dict[str, list[bytes]] = {}
        for target in targets:
            contents.setdefault(kind_of(target.path), []).append(target.content)
        _limit_memory()
        tracemalloc.start()
        for number in range(first, last):
            _say({"begins": number})
            rng = random.Random(f"{seed}:{number}")
            target = rng.choice(targets)
            kind = kind_of(target.path)
            target.path.write_bytes(mutations.spoil(rng, kind, target.content, contents[kind]))
            _say({"number": number, "file": target.file} | _outcome(target))
            target.path.write_bytes(target.content)


def _outcome(target: Target) -> dict[str, Any]:
    size = target.path.stat().st_size
    allowed = ALLOWED_SLACK + ALLOWED_GROWTH * _unpacked(target.path)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    try:
        admitted = check(target)
    except Fault as fault:
        return {"fault": str(fault)}
    peak = tracemalloc.get_traced_memory()[1] - before
    if peak > allowed:
        return {"fault": f"{peak} bytes of memory for a file of {size}"}
    return {"admitted": admitted, "peak": peak}


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def run(seed: int, first: int, count: int) -> tuple[Counter[str], list[str], int]:
    """Reads `count` spoiled files; returns outcomes by kind, faults, and the highest peak."""
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    peak, number, last = 0, first, first + count
    while number < last:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.datasets.fuzz_readers",
            "--seed",
            str(seed),
        ]
        command += ["--first", str(number), "--count", str(last - number), "--work"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
            for line in _lines(process):
                if "begins" in line:
                    number = line["begins"]
                elif "fault" in line:
                    faults.append(f"{seed}:{line['number']} {line['file']}: {line['fault']}")
                else:
                    kind = line["file"].rpartition(".")[2]
                    outcomes[f"{kind} {'admitted' if line['admitted'] else 'refused'}"] += 1
                    peak = max(peak, line["peak"])
        if process.returncode == 0:
            break
        faults.append(f"{seed}:{number}: the process ended with {process.returncode}")
        number += 1
    return outcomes, faults, peak


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a process prints, until it ends or prints nothing for too long."""
    stream: Any = process.stdout
    while True:
        if not select.select([stream], [], [], _SECONDS)[0]:
            process.kill()
            return
        line = stream.readline()
        if not line:
            return
        yield json.loads(line)


def main() -> None:
    """Reads spoiled files, prints figures, and ends with 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--work", action="store_true", help="read them here, without a guard")
    options = parser.parse_args()
    if options.work:
        work(options.seed, options.first, options.first + options.count)
        return
    outcomes, faults, peak = run(options.seed, options.first, options.count)
    print(f"{sum(outcomes.values())} files: {dict(sorted(outcomes.items()))}")
    print(f"highest peak of memory: {peak / 2**20:.1f} MiB; faults: {len(faults)}")
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
