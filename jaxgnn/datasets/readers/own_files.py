"""Finds the files of a user's own graph."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, require_file
from jaxgnn.datasets.records.node_dataset import SPLITS

_SUFFIXES = (".csv", ".tsv", ".txt", ".npy")

File = str | PathLike[str]


def find_files(
    path: Path, labels: File | None, features: File | None, splits: File | Mapping[str, File] | None
) -> dict[str, Path]:
    """The file of each field; ``features`` and all three parts are optional."""
    if not path.exists():
        raise FileNotFoundError(f"no folder or file {path}: expected a graph, as read_graph says")
    folder = path if path.is_dir() else path.parent
    given: dict[str, File | None] = {"labels": labels, "features": features}
    if isinstance(splits, Mapping):
        if sorted(splits) != sorted(SPLITS):
            expected = f"a file for each of {', '.join(SPLITS)}"
            raise bad_input("datasets.read_graph", "splits", expected, sorted(splits))
        given |= splits
    parts_folder = folder if splits is None or isinstance(splits, Mapping) else Path(splits)
    found = {"edges": _beside(path, "edges") if path.is_dir() else path}
    for field in ("labels", "features", *SPLITS):
        own = given.get(field)
        where = parts_folder if field in SPLITS else folder
        file = Path(own) if own else _beside(where, field)
        if field == "labels" and file is None:
            file = _beside(folder, "target")
        if file is not None:
            found[field] = file
    parts = [part for part in SPLITS if part in found]
    needed = ["edges", "labels", *(SPLITS if parts or splits is not None else ())]
    for field in needed:
        file = found.get(field)
        if file is None:
            where = parts_folder if field in SPLITS else folder
            beside = f", as there is one {parts[0]}.*" if field in SPLITS and parts else ""
            raise FileNotFoundError(
                f"no file {where / field}.* ({', '.join(_SUFFIXES)}): expected one{beside}"
            )
        require_file(file, f"the {field} of a graph")
    return {field: file for field, file in found.items() if file is not None}


def _beside(folder: Path, field: str) -> Path | None:
    """The only file in a folder with the name of a field."""
    names = [f"{field}{suffix}{gz}" for suffix in _SUFFIXES for gz in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise bad_file(folder, f"expected one file of {field}, got {' and '.join(map(str, found))}")
    return found[0] if found else None


def graph_name(path: Path) -> str:
    path = path.resolve()
    stem = path.name.partition(".")[0]
    return path.name if path.is_dir() else path.parent.name if stem == "edges" else stem
