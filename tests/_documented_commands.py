"""Command lines that the README and the docs print, and how tests shorten each of them."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest import mock

import tyro

from tests.datasets.formats import (
    small_dataset,
    small_hypergraph,
    write_hyperedge_text,
    write_hypergcn,
    write_planetoid,
    write_reddit,
)
from tests.datasets.test_zinc import _write as write_zinc
from tests.experiments.test_report import make_run
from tests.experiments.test_serving import _write_graph

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
_PROGRAM = r"(?:python -m experiments[\w.]*|jaxgnn (?:info|sudoku))\b"
_ENVIRONMENT = r"(?:[A-Z_]+=\S+ )*"
# In a block, or between backticks; a line may go on behind a backslash.
_COMMAND = re.compile(
    rf"^(?:    |\$ )?{_ENVIRONMENT}({_PROGRAM}.*)$|`{_ENVIRONMENT}({_PROGRAM}[^`]*)`", re.M
)
# Names of commands in sentences, without their arguments.
NAMED = {"python -m experiments report RUN…", "jaxgnn sudoku"}

PUZZLE = "1....7.9..3..2...8..96..5....53..9...1..8...26....4...3......1..4......7..7...3.."


def commands_of(text: str) -> list[str]:
    """The command lines of a page, without environment variables and comments."""
    lines = (block or inline for block, inline in _COMMAND.findall(text.replace("\\\n", " ")))
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


def documented() -> list[str]:
    """All of them, each once."""
    found = {command for page in PAGES for command in commands_of(page.read_text())}
    return sorted(found - {shlex.join(shlex.split(named)) for named in NAMED})


@dataclass(frozen=True)
class Cut:
    """The short form of commands.

    Attributes:
      begins: words that the commands begin with.
      options: what is added; a later value of an option replaces that of the docs.
    """

    begins: str
    options: str = ""


_TEXT = "--steps 2 --eval-every 2 --num-layers 2 --features 16 --batch-size 8 --no-progress"
_BOARDS = (
    "--num-steps 2 --test-steps 2 --warm-up 0 --batch-size 4 --puzzles 200 --test 20 "
    "--eval-puzzles 4 --evaluations 2 --no-progress"
)
# The first that fits counts.
CUTS = (
    Cut("jaxgnn"),
    Cut("python -m experiments report"),
    Cut("python -m experiments.maxk predict"),
    Cut("python -m experiments.maxk", "--epochs 2 --no-progress"),
    Cut("python -m experiments.attention", "--epochs 2 --no-progress"),
    Cut("python -m experiments.links", "--epochs 2 --no-progress"),
    Cut("python -m experiments.relations", "--epochs 2 --no-progress"),
    Cut("python -m experiments.graphs folds", "--epochs 1 --folds 2 --no-progress"),
    Cut("python -m experiments.graphs", "--epochs 1 --eval-every 1 --no-progress"),
    Cut("python -m experiments.mhc deep", "--epochs 2 --depths 2 --seeds 0 --no-progress"),
    Cut("python -m experiments.mhc", f"{_TEXT} --context 16 --processes 1 --seeds 0"),
    Cut(
        "python -m experiments.hgnn lm",
        f"{_TEXT} --num-layers 1 --context 16 --experts 3 --processes 1 --seeds 0",
    ),
    Cut("python -m experiments.hgnn nodes", "--epochs 2 --no-progress"),
    Cut(
        "python -m experiments.mlp bench",
        "--scale reduced --networks 6 --dtypes float32 --directions forward",
    ),
    Cut(
        "python -m experiments.physics train",
        "--particles 9 --runs 4 --frames 12 --horizon 6 --steps 2 --hidden-features 8 "
        "--batch-size 4 --no-progress",
    ),
    Cut("python -m experiments.physics", "--frames 3"),
    Cut(
        "python -m experiments.molecules train",
        "--model schnet --structures 12 --num-layers 1 --features 8 --batch-size 2 --steps 2 "
        "--eval-every 0 --checkpoint-every 0 --dynamics 2 --no-progress",
    ),
    Cut("python -m experiments.mlp validate", "--steps 2"),
    Cut("python -m experiments.mlp fuse"),
    Cut("python -m experiments.sudoku generate", "--train 100 --test 34 --no-progress"),
    # Initial weights set the width, and minutes take the place of steps.
    Cut(
        "python -m experiments.sudoku train --recipe candidate --initial",
        f"{_BOARDS} --steps 2 --puzzles 200",
    ),
    Cut("python -m experiments.sudoku train --recipe harder", f"{_BOARDS} --minutes 0.02"),
    Cut(
        "python -m experiments.sudoku train --recipe candidate --data",
        f"{_BOARDS} --features 8 --minutes 0.02",
    ),
    Cut("python -m experiments.sudoku train", f"{_BOARDS} --features 8 --steps 2 --puzzles 200"),
    Cut("python -m experiments.sudoku evaluate", "--test 4 --steps 8 --no-progress"),
    Cut("python -m experiments.sudoku cost", "--steps 2 --batches 2 --features 8 --repeats 1"),
    Cut("python -m experiments.sudoku export"),
    Cut("python -m experiments.sudoku solve"),
    # Tests of their own run every benchmark, with the smallest of its cases.
    Cut("python -m experiments.benchmarks"),
)


def cut_of(command: str) -> Cut | None:
    """The first entry that the command begins with."""
    return next((cut for cut in CUTS if command.startswith(cut.begins)), None)


def shortening(command: str) -> str:
    """Options that shorten a command: those of its entry, and two seeds where it names more."""
    cut = cut_of(command)
    assert cut is not None, "add it to CUTS in tests/_documented_commands.py"
    has_more = re.search(r"--seeds( \d+){3}", command) and "--seeds" not in cut.options
    return f"{cut.options} --seeds 0 1" if has_more else cut.options


def _write_tu(folder: Path) -> None:
    folder.mkdir(parents=True)
    graphs = 40
    edges = [(3 * g + a, 3 * g + b) for g in range(graphs) for a, b in ((1, 2), (2, 1), (2, 3))]
    parts = {
        "A": [f"{a}, {b}" for a, b in edges],
        "graph_indicator": [str(1 + node // 3) for node in range(3 * graphs)],
        "graph_labels": [str(1 + graph % 2) for graph in range(graphs)],
        "node_labels": [str(node % 4) for node in range(3 * graphs)],
    }
    for part, lines in parts.items():
        (folder / f"{folder.name}_{part}.txt").write_text("\n".join(lines) + "\n")


def _write_splits(folder: Path) -> None:
    write_hypergcn(folder, small_hypergraph())
    shutil.copy(folder / "splits/3.pickle", folder / "splits/1.pickle")


def _train_model(path: Path) -> None:
    """A model of Cora, or of a small graph where the command names another one."""
    graph = "--dataset my_graph/ " if (path.parent / "other_graph").exists() else ""
    train = f"python -m experiments.maxk train {graph}--export model.jaxgnn"
    run(train, path.parent, f"{shortening(train)} --num-layers 1 --hidden-features 8 --k 4")


def _made(write: Callable[[Path], object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)

    return make


def run(command: str, folder: Path, more: str = "") -> None:
    """Runs a command in this process and in the working directory, with files in ``folder``."""
    words = [*arguments(command, folder), *shlex.split(more)]
    is_module = words[0] == "python"
    name, words = (words[2], words[3:]) if is_module else ("jaxgnn._command_line", words[1:])
    with mock.patch("sys.argv", [name, *words]):
        if ".benchmarks" in name:
            _read_benchmark(name, words)
        else:
            importlib.import_module(f"{name}.__main__" if is_module else name).main()


def _read_benchmark(name: str, words: list[str]) -> None:
    """Reads the options of a benchmark, which tests of its own run."""
    package = (ROOT / name.replace(".", "/")).is_dir()
    module = importlib.import_module(f"{name}.__main__" if package else name)
    source = inspect.getsource(module)
    found = re.search(r"^    command\(.*, (\w+), __doc__\)", source, re.M)
    if found is None:  # it has no options
        assert "__main__" in source and not words
    else:
        tyro.cli(getattr(module, found[1]), args=words)


def _by(command: str) -> Callable[[Path], None]:
    """Makes a file by a command, for which no file is written in advance."""
    return lambda path: run(command, Path.cwd(), shortening(command))


def _write_structures(path: Path) -> None:
    with path.open("w") as file:
        for distance in range(12):
            file.write("2\nenergy=-1 Properties=species:S:1:pos:R:3:forces:R:3\n")
            file.write(f"H 0 0 0 0 0 1\nH 0 0 {0.5 + 0.1 * distance} 0 0 -1\n")


# Files that the commands name, relative to where they run, and what writes them.
FILES: dict[str, Callable[[Path], object]] = {
    "my_graph/": lambda path: _write_graph(path, 60),
    "other_graph/": lambda path: _write_graph(path, 40),
    "puzzle.txt": lambda path: path.write_text(PUZZLE),
    "/path/to/planetoid": _made(lambda path: write_planetoid(path, "pubmed")),
    "/path/to/reddit": _made(lambda path: write_reddit(path, small_dataset())),
    "/path/to/ENZYMES": _write_tu,
    "/path/to/molecules": _made(write_zinc),
    "cocitation/cora": _made(_write_splits),
    "walmart-trips": _made(lambda path: write_hyperedge_text(path, small_hypergraph())),
    "runs/maxk/*": lambda path: make_run(path.parent / "one"),
    "runs/maxk/*/": lambda path: make_run(path.parent / "one"),
    "model.jaxgnn": _train_model,
    "before.npz": lambda path: shutil.copy(ROOT / "jaxgnn/pretrained/sudoku.npz", path),
    "runs/sudoku/data": _by("python -m experiments.sudoku generate"),
    "runs/sudoku/tiny": _by("python -m experiments.sudoku train"),
    "runs/sudoku/candidate": _by("python -m experiments.sudoku train --recipe candidate"),
    "runs/sudoku/check/minimal.csv": _by(
        "python -m experiments.sudoku generate --out runs/sudoku/check"
    ),
    "runs/physics/springs-seed0": _by("python -m experiments.physics train"),
    "runs/physics/charges-seed0": _by("python -m experiments.physics train --system charges"),
    "structures.extxyz": _write_structures,
    "runs/demo": make_run,
    "runs/mhc/plain": make_run,
}


def arguments(command: str, folder: Path) -> list[str]:
    """The words of a command, with its files written to ``folder`` and patterns expanded."""
    words = shlex.split(command)
    written = {word for option, word in pairwise(words) if option in ("--export", "--out")}
    needed = {word: folder / word.lstrip("/") for word in words if word in FILES.keys() - written}
    # A model last, since its graph is one of the other files.
    for word in sorted(needed, key=lambda word: word == "model.jaxgnn"):
        needed[word].parent.mkdir(parents=True, exist_ok=True)
        FILES[word](needed[word])
    expanded: list[str] = []
    for word in words:
        path = needed.get(word)
        if word.startswith(("experiments/", "jaxgnn/")):
            expanded.append(str(ROOT / word))
        elif path is not None and "*" in word:
            expanded += map(str, sorted(path.parent.glob(path.name)))
        else:
            expanded.append(word if path is None else str(path))
    return expanded
