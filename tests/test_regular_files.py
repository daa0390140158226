"""Pipes, devices and sockets are refused by whatever reads a file of the user, without waiting."""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxgnn
from experiments.benchmarks import _report
from experiments.sudoku import evaluate
from jaxgnn import datasets, interop, pretrained, training
from jaxgnn._errors import BadFileError, require_regular_file
from jaxgnn.datasets.formats import files
from jaxgnn.sampling.features import FileFeatures
from jaxgnn.training import files as run_files

from .datasets import formats


def _own_graph(folder, **changed):
    np.save(folder / "edges.npy", [[0, 1], [1, 2]])
    (folder / "labels.csv").write_text("0\n1\n0\n")
    return {"path": folder / "edges.npy"} | changed


def _one_of(write, read, name):
    """Reads a folder in which one file is ``path``, under the name of a published one."""

    def call(path):
        folder = path.parent / "folder"
        folder.mkdir()
        write(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(path)
        read(folder)

    return call


SMALL = formats.small_dataset()
READERS = {
    "csv": lambda path: files.read_csv(path, np.int32, "numbers"),
    "text": lambda path: files.read_text(path, "lines"),
    "JSON": lambda path: files.read_json(path, "an object"),
    "graph": lambda path: datasets.read_graph(
        **_own_graph(path.parent, labels=path, labelled=False)
    ),
    "edges": datasets.read_graph,
    "npz graph": datasets.read_npz_graph,
    "structures": datasets.read_extxyz,
    "database": datasets.read_ase,
    "puzzles": datasets.sudoku.read_lines,
    "pairs": datasets.sudoku.read_palm,
    "any puzzles": evaluate.read_puzzles,
    "rows": run_files.read_rows,
    "steps": run_files.read_steps,
    "configuration": lambda path: run_files.read_json(path, dict, "an object"),
    "measurements": _report.read_rows,
    "model": jaxgnn.load_model,
    "weights": pretrained.load_weights,
    "nequix": interop.from_nequix,
    "exported": jaxgnn.load_exported,
    "reddit": _one_of(
        lambda folder: formats.write_reddit(folder, SMALL), datasets.read_reddit, "reddit_graph.npz"
    ),
    "saint": _one_of(
        lambda folder: formats.write_graphsaint(folder, SMALL),
        lambda folder: datasets.read_graphsaint(folder, "flickr"),
        "feats.npy",
    ),
    "ogb": _one_of(
        lambda folder: formats.write_ogb(folder, SMALL, "ogbn-arxiv"),
        lambda folder: datasets.read_ogb(folder, "ogbn-arxiv"),
        "raw/edge.csv.gz",
    ),
    "hypergraph": _one_of(
        lambda folder: formats.write_hypergcn(folder, formats.small_hypergraph()),
        datasets.read_hypergcn,
        "features.pickle",
    ),
    "optional features": _one_of(
        _own_graph, lambda folder: datasets.read_graph(folder, labelled=False), "features.npy"
    ),
    "mapped features": _one_of(
        lambda folder: np.save(folder / "0.npy", np.zeros((3, 2), np.float32)),
        FileFeatures,
        "1.npy",
    ),
}


def _pipe(path):
    """Makes a pipe; whoever reads it all the same gets an empty file instead of waiting forever."""
    os.mkfifo(path)
    threading.Thread(target=_write_nothing, args=(path, 10), daemon=True).start()


def _write_nothing(path, seconds):
    """Opens and closes a pipe again and again, which ends the wait of its readers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):  # nobody reads, or the file is gone
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.02)


def _link_to_a_device(path):
    path.symlink_to("/dev/zero")


def _socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # its path may have a hundred characters


KINDS = {"a pipe": _pipe, "a device": _link_to_a_device, "a socket": _socket}


@pytest.mark.parametrize("got", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(name, got, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    KINDS[got](path)
    with pytest.raises(ValueError, match=f"expected a regular file .*, got {got}$") as error:
        READERS[name](path)
    named = path if READERS[name].__name__ != "call" else tmp_path / "folder"
    assert str(named) in str(error.value)


def test_a_checkpoint_with_a_pipe_is_named_without_waiting(tmp_path):
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def loss(model, batch, rngs):
        return jnp.mean(model(batch) ** 2), {}

    config = training.LoopConfig(steps=2)
    run = training.RunFolder(tmp_path / "run", config)
    options = {"config": config, "run": run, "progress": False}
    training.fit(model, optax.sgd(0.1), loss, lambda step: jnp.ones((1, 2)), **options)
    training.load_model(tmp_path / "run", model)
    data = sorted((tmp_path / "run/checkpoints").glob("2/model/**/d/*"))
    assert data
    data[0].unlink()
    _pipe(data[0])
    with pytest.raises(ValueError, match=r"expected a regular file .*, got a pipe$") as error:
        training.load_model(tmp_path / "run", model)
    assert str(data[0]) in str(error.value)


def test_what_is_missing_is_no_file_of_another_kind(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path / "file", str(tmp_path / "link")):
        require_regular_file(path, "text")
    for name in ("none", "loop", "broken", "file/inside", "nul\0", "."):
        with pytest.raises(FileNotFoundError, match=r"^no file .*: expected text$"):
            require_regular_file(tmp_path / name, "text")
    assert issubclass(BadFileError, ValueError) and Path("/dev/null").exists()
    with pytest.raises(BadFileError, match=r"^/dev/null: expected a regular file \(text\), got"):
        require_regular_file("/dev/null", "text")
