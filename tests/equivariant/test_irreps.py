"""Irreps are read, written and sliced as in e3nn; invalid ones are named."""

import re

import e3nn_jax as e3nn
import pytest

from jaxgnn.equivariant import Irrep, Irreps, MulIrrep


@pytest.mark.parametrize("text", ["128x0e+64x1o", " 2x0o + 1e+3x2e ", "0e", "1x10o+1x10o"])
def test_irreps_are_those_of_e3nn(text):
    ours, theirs = Irreps.parse(text), e3nn.Irreps(text)
    assert str(ours) == str(theirs).replace(" ", "")
    assert ours.dim == theirs.dim and list(ours.slices) == theirs.slices()
    assert ours.max_degree == theirs.lmax and len(ours) == len(theirs)
    assert [entry.dim for entry in ours] == [entry.dim for entry in theirs]


def test_products_of_irreps_are_those_of_e3nn():
    for first, second in [("0o", "2e"), ("2o", "3o"), ("1e", "1o")]:
        ours = Irreps.parse(first)[0].irrep.products(Irreps.parse(second)[0].irrep)
        assert [str(irrep) for irrep in ours] == [
            str(irrep) for irrep in e3nn.Irrep(first) * e3nn.Irrep(second)
        ]


def test_irreps_are_equal_by_value_and_have_a_hash():
    first, second = (
        Irreps.parse("2x0e+1o"),
        Irreps((MulIrrep(2, Irrep(0, 1)), MulIrrep(1, Irrep(1, -1)))),
    )
    assert first == second and hash(first) == hash(second) and first != Irreps.parse("3x0e")


@pytest.mark.parametrize(
    "text, named",
    [
        ("8x0f", "'8x0f' as multiplicity"),
        ("8x0e+", "'' as multiplicity"),
        ("", "'' as multiplicity"),
        ("8x0e,4x1o", "'8x0e,4x1o' as multiplicity"),
        ("-1x0e", "'-1x0e' as multiplicity"),
        ("8x0e+0x1o", "remove '0x1o'"),
        ([(8, "0e")], "got list"),
    ],
)
def test_text_that_is_not_irreps_is_named(text, named):
    with pytest.raises(ValueError, match=re.escape(named)) as error:
        Irreps.parse(text)
    assert str(error.value).startswith("Irreps.parse: text must be irreps such as '8x0e+4x1o'")


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: Irrep(-1, 1), "Irrep: degree"),
        (lambda: Irrep(True, 1), "Irrep: degree"),
        (lambda: Irrep(1, 0), "Irrep: parity"),
        (lambda: Irreps(()), "Irreps: entries must be a tuple of at least one"),
        (lambda: Irreps(((1, "0e"),)), "Irreps: entries must be of type MulIrrep"),
        (lambda: Irreps((MulIrrep(0, Irrep(0, 1)),)), "of multiplicity at least 1, got 0x0e"),
        (lambda: Irreps.harmonics(-1), "Irreps.harmonics: max_degree"),
    ],
)
def test_parts_that_are_not_irreps_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()
