"""Files that somebody has changed: each is refused with a ValueError, or runs as it was."""

import copy
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import CBSR, CSRGraph, Incidence, ops
from jaxgnn.graph import GraphBatch

from .test_export import _changed, _described, _written

GRAPH = CSRGraph(np.arange(4, dtype=np.int32), np.array([2, 0, 1], np.int32))
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def _run(graph, x):
    return {"a": [x * 2, None], "b": (x.sum(),), "graph": graph}


@pytest.fixture(scope="module")
def file():
    """A program without kernels, whose structures have containers of each kind."""
    return jaxgnn.export(_run, GRAPH, X)


@pytest.fixture(scope="module")
def exported_any_size():
    return jaxgnn.export(_run, GRAPH, X, shapes=("n, e", "n, _"), platforms=("cpu", "cuda"))


def _check(forged: bytes) -> bool:
    """Returns whether a file is refused; otherwise checks that it runs, and its results."""
    try:
        loaded = jaxgnn.load_exported(forged)
        actual = jax.tree.leaves(loaded(GRAPH, X))
    except ValueError as error:
        assert "load_exported" in str(error)
        return True
    for one, other in zip(actual, jax.tree.leaves(_run(GRAPH, X)), strict=True):
        np.testing.assert_array_equal(one, other)
    return False


def _places(tree, path=()):
    """The paths to all parts of a tree of JSON."""
    yield path
    if not isinstance(tree, dict | list):
        return
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from _places(part, (*path, key))


VALUES = (
    None,
    True,
    -1,
    0,
    1,
    7,
    2**70,
    0.5,
    "",
    "*",
    "4",
    "n",
    "n + 1",
    "float32",
    "cpu",
    "x" * 99,
)
VALUES += ([], {}, [[]], ["*"], {"tuple": []}, {"list": ["*"]}, {"dict": [["a", "*"]]}, [1, "*"])
VALUES += ("2**9", "n^99999", "max(n, 2)", {"CSRGraph": {}, "options": {}}, {"dict": "*"}, "int4")


def _mutated(description: dict, draw: random.Random) -> dict:
    """The description with a part replaced, removed, repeated or exchanged."""
    forged = copy.deepcopy(description)
    *path, last = draw.choice([place for place in _places(forged) if place])
    around = forged
    for key in path:
        around = around[key]
    way = draw.randrange(4)
    if way == 0 or (isinstance(around, dict) and way == 1):
        around[last] = copy.deepcopy(draw.choice(VALUES))
    elif way == 1:
        around.insert(last, copy.deepcopy(around[last]))
    elif way == 2:
        del around[last]
    else:
        other = draw.choice(list(around) if isinstance(around, dict) else range(len(around)))
        around[last], around[other] = around[other], around[last]
    return forged


@pytest.mark.parametrize("name", ["file", "exported_any_size"])
def test_no_forged_description_with_its_hash_renewed_does_harm(name, request):
    file, draw = request.getfixturevalue(name), random.Random(5)
    description = _described(file)
    refused = [
        _check(_written(file, description=json.dumps(_mutated(description, draw)).encode()))
        for _ in range(80)
    ]
    assert sum(refused) > 50


def test_damaged_bytes_are_refused_before_the_program_is_read(file, monkeypatch):
    def read(*_):
        raise AssertionError("a damaged program was read")

    draw, sizes = random.Random(6), len(file)
    for at in range(400):
        damaged = bytearray(file)
        for _ in range(draw.choice((1, 1, 8))):
            damaged[draw.randrange(sizes)] ^= 1 << draw.randrange(8)
        if at % 8 == 0:
            del damaged[draw.randrange(sizes) :]
        with monkeypatch.context() as patched:
            patched.setattr("jaxgnn._exporting.load.read_program", read)
            try:
                jaxgnn.load_exported(bytes(damaged))
            except ValueError:
                continue
            except AssertionError:  # bits of the archive that say nothing, such as a date
                pass
        assert not _check(bytes(damaged))


def _replaced(path, value):
    def change(description):
        *before, last = path
        for key in before:
            description = description[key]
        description[last] = value

    return change


FORGED = {
    "fewer results": (_replaced(("result",), "*"), "expected 1 outputs, .* got 4"),
    "no results": (_replaced(("result",), None), "expected 0 outputs"),
    "other results": (_replaced(("outputs", 0), ["3", "float32"]), "expected outputs as the progr"),
    "a wider input": (_replaced(("inputs", 2), ["3, 2", "int32"]), "expected inputs as the progra"),
    "an input of names": (_replaced(("inputs", 2), ["n, 2", "float32"]), "expected inputs as the "),
    "too many kept": (_replaced(("kept",), [0, 1, 2, 3]), "rising numbers of 3 inputs"),
    "flags for numbers": (_replaced(("kept",), [False, True, 2]), "rising numbers of 3 inputs"),
    "fewer kept": (_replaced(("kept",), [2]), "inputs as the program has them"),
    "kernels": (_replaced(("kernels",), ["jaxgnn_spmm"]), "kernels as the program has them"),
    "symbols": (_replaced(("has_symbols",), True), "has_symbols as the program has them"),
    "both platforms": (_replaced(("platforms",), ["cpu", "cuda"]), "platforms as the program"),
    "a platform twice": (_replaced(("platforms",), ["cpu", "cpu"]), "platforms among cpu, cuda"),
    "a power": (_replaced(("inputs", 2, 0), "3^9, 2"), "a shape, such as"),
    "arguments in a list": (_replaced(("arguments",), {"list": ["*"] * 3}), "a tuple of argumen"),
    "deep": (
        _replaced(("result",), json.loads('{"list":[' * 300 + "]}" * 300)),
        "damaged desc|whole",
    ),
    "a key twice": (
        _replaced(("result",), {"dict": [["a", "*"], ["a", "*"]]}),
        "each key once and in order",
    ),
    "half a graph": (
        _replaced(("result", "dict"), [["a", {"CSRGraph": {"indptr": "*"}, "options": {}}]]),
        "a CSRGraph with all its parts",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_description_that_is_not_true_is_named(name, file):
    change, message = FORGED[name]
    description = _described(file)
    change(description)
    with pytest.raises(ValueError, match=f"load_exported: .*{message}"):
        jaxgnn.load_exported(_changed(file, **description))


def test_pytrees_of_a_forged_structure_have_all_their_parts():
    batch = GraphBatch.from_graphs([GRAPH, GRAPH])
    arguments = (
        batch,
        Incidence(np.arange(2), np.arange(2), 3, 2),
        CBSR(X, jnp.zeros((3, 2), np.uint8), 4),
    )
    file = jaxgnn.export(lambda *arguments: arguments, *arguments)
    description = _described(file)
    for kind, key, value in (
        (0, ("GraphBatch", "graph"), "*"),
        (0, ("GraphBatch", "graph_ids"), None),
        (0, ("GraphBatch", "graph", "options", "normalization"), "other"),
        (1, ("options", "num_nodes"), -1),
        (1, ("options", "num_hyperedges"), "2"),
        (2, ("options", "dim"), True),
        (2, ("CBSR", "values"), {"list": []}),
    ):
        forged = copy.deepcopy(description)
        _replaced(("result", "tuple", kind, *key), value)(forged)
        with pytest.raises(ValueError, match="has a damaged description: expected"):
            jaxgnn.load_exported(_changed(file, **forged))
    assert len(jax.tree.leaves(jaxgnn.load_exported(file)(*arguments))) == len(
        description["outputs"]
    )


def test_the_program_and_the_description_of_a_file_with_kernels_agree():
    file = jaxgnn.export(ops.spmm, GRAPH, X, platforms=("cpu", "cuda"))
    assert "jaxgnn_spmm" in jaxgnn.load_exported(file).kernels
    with pytest.raises(ValueError, match="kernels as the program has them"):
        jaxgnn.load_exported(_changed(file, kernels=[]))
