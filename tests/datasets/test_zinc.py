"""ZINC is read from the pickles of its benchmark, whose tensors need no torch and run no code."""

import pickle
import re

import numpy as np
import pytest

from experiments.graphs.config import GraphsConfig
from experiments.graphs.data import load
from experiments.graphs.task import task_of
from jaxgnn.datasets import read_zinc
from jaxgnn.datasets.formats.safe_pickle import read_number_bytes
from jaxgnn.datasets.formats.torch_file import tensor_parts

from . import torch_pickles as torch

ATOMS = {"train": [[0, 27], [3, 0, 1]], "val": [[4, 5]], "test": [[6], [0]]}
BONDS = {
    "train": [[[0, 1], [1, 0]], [[0, 0, 2], [0, 0, 0], [2, 0, 0]]],
    "val": [[[0, 3], [3, 0]]],
    "test": [[[1]], [[0]]],
}
NUMBERS = {"train": [0.5, -2.0], "val": [1.5], "test": [2.5, 3.0]}


def _molecule(atoms, bonds, number, dtype="i8", *, listed=False, **others) -> bytes:
    entries = {
        "num_atom": torch.number(len(atoms)),
        "atom_type": torch.tensor(np.array(atoms, dtype), listed=listed),
        "bond_type": torch.tensor(np.array(bonds, dtype), listed=listed),
        "logP_SA_cycle_normalized": torch.tensor(np.array([number], "f4"), listed=listed),
    }
    return torch.mapping(**entries | others)


def _write(folder, **options):
    for part, atoms in ATOMS.items():
        molecules = (
            _molecule(*of, **options) for of in zip(atoms, BONDS[part], NUMBERS[part], strict=True)
        )
        (folder / f"{part}.pickle").write_bytes(torch.whole(torch.sequence(*molecules)))
    for part, text in {"train": "1", "val": "0", "test": "1,0"}.items():
        (folder / f"{part}.index").write_text(text + "\n")
    return folder


@pytest.mark.parametrize("options", [{}, {"dtype": "u1"}, {"listed": True}])
def test_molecules_are_read_as_torch_pickled_them(options, tmp_path):
    data = read_zinc(_write(tmp_path, **options))
    assert data.labels.ravel().tolist() == [0.5, -2, 1.5, 2.5, 3]
    assert [data.train.tolist(), data.validation.tolist(), data.test.tolist()] == [
        [0, 1],
        [2],
        [3, 4],
    ]
    assert data.node_categories == (28,) and data.edge_categories == (4,)
    assert data[1]["nodes"].ravel().tolist() == [3, 0, 1]
    assert data[1]["senders"].tolist() == [0, 2] and data[1]["receivers"].tolist() == [2, 0]
    assert data[1]["edges"].tolist() == [[2], [2]]
    assert data[3]["senders"].tolist() == [0] and data[4]["edges"].shape == (0, 1)


def test_the_command_reads_all_molecules_or_those_of_the_benchmark(tmp_path):
    folder = _write(tmp_path)
    assert load(GraphsConfig(dataset="zinc", data=folder)).num_graphs == 5
    data = load(GraphsConfig(dataset="zinc-12k", data=folder))
    assert data.labels.ravel().tolist() == [-2, 1.5, 3, 2.5]
    assert task_of(data, None).metric == "MAE"


def _read(tmp_path, pickled: bytes):
    path = tmp_path / "tensors.pickle"
    return read_number_bytes(path, torch.whole(pickled), parts=tensor_parts())


@pytest.mark.parametrize("kind", torch.KINDS)
def test_tensors_of_every_kind_have_their_numbers(kind, tmp_path):
    values = np.array([[0, 1, 1], [1, 0, 1]], kind)
    for listed in (False, True):
        found = _read(tmp_path, torch.tensor(values, listed=listed)).value
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


def test_a_tensor_may_be_a_view_of_its_storage(tmp_path):
    whole = np.arange(12, dtype="i4")
    stored = torch.storage(whole)
    columns = _read(tmp_path, torch.view(stored, 1, (3, 2), (1, 4))).value
    np.testing.assert_array_equal(columns, whole.reshape(3, 4)[:2, 1:].T)
    assert _read(tmp_path, torch.view(stored, 5, (), ())).value == 5
    assert _read(tmp_path, torch.view(stored, 99, (0, 3), (3, 1))).value.shape == (0, 3)
    # The stride of an axis of one entry says nothing.
    assert _read(tmp_path, torch.view(stored, 2, (1, 2), (2**30, 1))).value.tolist() == [[2, 3]]


FEW = np.arange(4, dtype="f4")
BAD = {
    "past the end": (torch.view(torch.storage(FEW), 2, (3,), (1,)), "within its storage of 4"),
    "a far stride": (torch.view(torch.storage(FEW), 0, (2,), (2**30,)), "within its storage of 4"),
    "repeated": (torch.view(torch.storage(FEW), 0, (2**20,), (0,)), "within its storage of 4"),
    "backwards": (torch.view(torch.storage(FEW), 3, (3,), (-1,)), "an offset, and a stride for"),
    "before": (torch.view(torch.storage(FEW), -1, (1,), (1,)), "an offset, and a stride for"),
    "no shape": (torch.view(torch.storage(FEW), 0, (-2,), (1,)), "expected a shape of at most"),
    "axes": (torch.view(torch.storage(FEW), 0, (2, 2), (1,)), "a stride for each axis"),
    "no storage": (torch.view(torch.number(3), 0, (1,), (1,)), "of a storage, got one of a int"),
    "too long": (torch.storage(FEW, length=9), "a storage of 9 numbers"),
    "wide": (torch.storage(FEW, kind="DoubleStorage"), "expected 32 bytes for float64[4], got 16"),
    "endless": (torch.storage(FEW, length=2**31 - 1), "a storage of 2147483647 numbers"),
    "big-endian": (
        torch.storage(FEW, machine=torch.MACHINE | {"little_endian": False}),
        "whose numbers begin with the low byte",
    ),
    "truth": (torch.storage(np.array([2], "u1"), kind="BoolStorage"), "truth values 0 or 1"),
    "no file": (
        torch.call(torch.name("torch.storage", "_load_from_bytes"), b"C\x03abc"),
        "a storage starts with b'abc', as no file of torch does",
    ),
    "words": (
        torch.call(torch.name("torch", "LongStorage"), torch.sequence(torch.text("a"))),
        "expected a storage of a list of numbers",
    ),
    "fractions": (
        torch.call(torch.name("torch", "LongStorage"), pickle.dumps([0.5], 2)[2:-1]),
        "expected a LongStorage of integers",
    ),
    "a hook": (
        torch.call(torch.name("collections", "OrderedDict"), torch.sequence(torch.number(1))),
        "expected an empty OrderedDict",
    ),
    "another name": (torch.call(torch.name("torch", "load")), "refers to torch.load"),
    "code": (torch.call(torch.name("os", "system"), torch.text("true")), "refers to os.system"),
    "code in a storage": (
        torch.call(
            torch.name("torch.storage", "_load_from_bytes"),
            pickle.dumps(torch.BEGINNING + b"cos\nsystem\n(X\x04\0\0\0truetR.", 3)[2:-1],
        ),
        "refers to os.system",
    ),
    "an id": (b"X\x01\0\0\0aQ", "refers to the persistent object 'a'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_spoiled_tensor_is_refused_and_none_of_its_code_runs(fault, tmp_path):
    pickled, message = BAD[fault]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        _read(tmp_path, pickled)
    assert "tensors.pickle" in str(caught.value)


BAD_MOLECULES = {
    "no bonds": (
        _molecule([1, 2], np.zeros((2, 3), int), 1.0),
        "expected atom_type [atoms] and bond_type [atoms, atoms], got (2,) and (2, 3)",
    ),
    "a kind below zero": (_molecule([-1], [[0]], 1.0), "atom_type in 0..999, got -1"),
    "a kind too far": (_molecule([1], [[1000]], 1.0), "bond_type in 0..999, got 1000"),
    "fractions": (_molecule([0.5], [[0]], 1.0, "f4"), "atom_type as a tensor of integers"),
    "no number": (_molecule([1], [[0]], np.nan), "logP_SA_cycle_normalized as one finite number"),
    "a word": (
        _molecule([1], [[0]], 1.0, logP_SA_cycle_normalized=torch.text("x")),
        "logP_SA_cycle_normalized as one finite number",
    ),
    "no dict": (torch.number(1), "expected a dict of tensors"),
}


@pytest.mark.parametrize("fault", BAD_MOLECULES)
def test_a_bad_molecule_is_named(fault, tmp_path):
    pickled, message = BAD_MOLECULES[fault]
    good = _molecule([1], [[0]], 1.0)
    path = _write(tmp_path) / "val.pickle"
    path.write_bytes(torch.whole(torch.sequence(good, pickled)))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_zinc(tmp_path)
    assert str(path) in str(caught.value) and "molecule 1" in str(caught.value)


def test_missing_and_empty_files_of_molecules_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train\.pickle: expected a list of molecules"):
        read_zinc(tmp_path)
    _write(tmp_path)
    (tmp_path / "test.pickle").write_bytes(torch.whole(b"]"))
    with pytest.raises(ValueError, match=r"test\.pickle: expected at least one molecule"):
        read_zinc(tmp_path)
    (tmp_path / "val.index").write_text("4\n")
    with pytest.raises(ValueError, match=r"val\.index: expected numbers in \[0, 1\), got 4"):
        read_zinc(tmp_path, subset=True)
