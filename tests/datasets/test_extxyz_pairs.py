"""Lines of pairs are split as ASE writes and reads them, except for what ASE itself loses."""

import itertools
import json

import numpy as np
import pytest

from jaxgnn.datasets.readers.extxyz_pairs import Pairs, similar_names, words_of

LINES = {
    "energy=-1 step=3": {"energy": "-1", "step": "3"},
    "energy = -1 step= 3 done": {"energy": "-1", "step": "3", "done": "T"},
    'a="b c" d=\'e "f" g\' h={i j} k=[l m]': {"a": "b c", "d": 'e "f" g', "h": "i j", "k": "l m"},
    'a="b \\"c\\" = \\\\d" e=f\\ g': {"a": 'b "c" = \\d', "e": "f g"},
    '"my key"=3 a=b=c': {"my key": "3", "a": "b=c"},
    'a="b"c d=""': {"a": "bc", "d": ""},
    "converged\ta=b ": {"converged": "T", "a": "b"},
}
# ASE reads these otherwise: it lets an empty value have the pair behind it, ends an array at its
# first bracket, and takes an apostrophe for a quote.
UNLIKE_ASE = {
    "config_type= energy=-3.25": {"config_type": "", "energy": "-3.25"},
    'a= b = c= pbc="T T F" d=': {"a": "", "b": "", "c": "", "pbc": "T T F", "d": ""},
    "a=[[1, 2], [3, 4]] b={{1 2} {3 4}}": {"a": "[1, 2], [3, 4]", "b": "{1 2} {3 4}"},
    "name=O'Brien energy=-1": {"name": "O'Brien", "energy": "-1"},
}


@pytest.mark.parametrize("line", LINES | UNLIKE_ASE)
def test_a_line_is_split_into_its_pairs(line):
    assert dict(Pairs.parse(line).pairs) == (LINES | UNLIKE_ASE)[line]


def _same(text, value):
    """Whether a text is a value as ASE converts it."""
    if isinstance(value, str):
        return text == value
    if isinstance(value, list | dict):
        return (
            json.loads(text.removeprefix("_JSON ")) == value
            if "_JSON" in text
            else _same(text, np.array(value))
        )
    words = ["0" if word in ("F", "false") else word for word in words_of(text)]
    words = ["1" if word in ("T", "true") else word for word in words]
    return np.array_equal(np.array(words, float), np.ravel(np.asarray(value, order="C")))


VALUES = {
    "text": "config",
    "blanks": " two  words ",
    "quotes": "a 'b' \"c\"",
    "braces": "{a} [b] (c)",
    "unequal": "a = b",
    "nested": [[1, 2], [3, 4]],
    "object": {"a": [1, "b c"], "d": None},
    "flag": True,
    "number": -3.25e-7,
    "whole": 12,
    "vector": np.arange(3),
    "matrix": np.arange(9.0).reshape(3, 3),
    "bits": np.array([True, False]),
    "nothing": None,
    "json flags": np.array([[True], [False]]),
}


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")
def test_lines_that_ase_writes_are_split_as_ase_reads_them():
    extxyz = pytest.importorskip("ase.io.extxyz", reason="the package ase is not installed")
    for line in LINES:
        expected = extxyz.key_val_str_to_dict(line)
        for key, text in Pairs.parse(line).pairs:
            assert _same(text, expected.pop(key)) or not text, line
        assert not expected
    for one, other, last in itertools.permutations(VALUES, 3):
        info = {one: VALUES[one], other: VALUES[other], last: VALUES[last]}
        line = extxyz.key_val_dict_to_str(info)
        expected = extxyz.key_val_str_to_dict(line)
        pairs = dict(Pairs.parse(line).pairs) if "=" in line else {"nothing": "T"}
        assert pairs.keys() == expected.keys(), line
        for key, text in pairs.items():
            assert _same(text, expected[key]), (line, key)


def test_an_empty_text_that_ase_writes_is_empty():
    extxyz = pytest.importorskip("ase.io.extxyz", reason="the package ase is not installed")
    line = extxyz.key_val_dict_to_str({"config_type": "", "energy": -3.25, "note": ""})
    assert line == "config_type= energy=-3.25 note="
    assert dict(Pairs.parse(line).pairs) == {"config_type": "", "energy": "-3.25", "note": ""}


def test_names_are_near_in_any_case_and_with_words_around_them():
    names = ["Energy", "REF_energy", "energies", "forces_dft", "my-force", "e", "pos", "", "_1"]
    assert similar_names(names, "energy") == ["Energy", "REF_energy", "energies"]
    assert similar_names(names, "forces") == ["forces_dft", "my-force"]
    assert similar_names(["energy", "Forces"], "REF_energy") == ["energy"]


@pytest.mark.parametrize(
    "line", ['a="' + "b" * 10**5, "a=" + "[" * 10**5, "a=[" + "[]" * 10**5, "a='" + "\\" * 10**5]
)
def test_a_long_open_quote_is_an_error(line):
    with pytest.raises(ValueError, match=r"^a: expected a quote or bracket that is closed after"):
        Pairs.parse(line)  # a search that went back would take hours
