"""Paths of tensor products: those of e3nn, their weights, and errors."""

import re

import e3nn_jax as e3nn
import numpy as np
import pytest

from jaxgnn.equivariant import TensorProduct, separate_paths

IN, SH = "8x0e+4x1o+8x1e", "0e+1o+2e"


@pytest.mark.parametrize("keep", [None, "0e+2x1o+1e", "0o+2e"])
def test_separate_paths_have_the_irreps_of_e3nns_product(keep):
    product = separate_paths(IN, SH, keep)
    theirs = e3nn.tensor_product(e3nn.Irreps(IN), e3nn.Irreps(SH), filter_ir_out=keep)
    assert e3nn.Irreps(str(product.irreps_out)).simplify() == theirs
    assert product.num_weights == theirs.num_irreps
    assert [path.i_out for path in product.paths] == list(range(len(product.irreps_out)))


def test_a_layer_of_nequix_has_the_published_number_of_weights():
    irreps = "128x0e+64x1o+32x2e+32x3o"
    product = separate_paths(irreps, "0e+1o+2e+3o", keep=irreps)
    assert (len(product.paths), product.num_weights) == (23, 1312)


def test_slices_of_weights_follow_the_paths():
    product = TensorProduct.of(IN, SH, "8x0e+4x0e", [(1, 1, 1), (0, 0, 0)])
    assert product.weight_slices == (slice(0, 4), slice(4, 12)) and product.num_weights == 12


def test_a_product_has_a_hash_and_is_made_again_of_its_arguments():
    product = separate_paths(IN, SH)
    assert TensorProduct.of(**product.arguments) == product
    assert hash(TensorProduct.of(**product.arguments)) == hash(product)


def test_paths_to_one_entry_share_its_variance():
    product = TensorProduct.of("2x0e+2x1o", "0e+1o", "2x0e")
    squares = [np.sum(product.table(path) ** 2) for path in product.paths]
    np.testing.assert_allclose(squares, 1 / 2)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"irreps_in": "8x0q"}, "irreps_in must be irreps such as"),
        ({"irreps_in": "7o"}, "irreps_in must be of degree at most 6, got 1x7o"),
        ({"irreps_sh": "2x0e"}, "irreps_sh must be of one channel each, got 2x0e"),
        ({"instructions": [(0, 0)]}, "instructions must be triples of indices below (3, 3, 1)"),
        ({"instructions": [(0, 0, 1)]}, "entries of the irreps, got (0, 0, 1)"),
        ({"instructions": [(-1, 0, 0)]}, "entries of the irreps, got (-1, 0, 0)"),
        ({"instructions": [3]}, "entries of the irreps, got 3"),
        ({"instructions": [(0, 1, 0)]}, "can be coupled, got (0, 1, 0): 0e x 1o has no 0e"),
        ({"instructions": [(1, 1, 0)]}, "of equal multiplicity, got (1, 1, 0): 4x1o to 8x0e"),
        (
            {"instructions": []},
            "irreps_out must be of entries that a path reaches, got 8x0e; remove",
        ),
        ({"irreps_out": "8x0e+8x3o"}, "a path reaches, got 8x0e+8x3o; remove entry 1, 8x3o"),
    ],
)
def test_bad_input_is_named(changes, named):
    arguments = {"irreps_in": IN, "irreps_sh": SH, "irreps_out": "8x0e"} | changes
    with pytest.raises(ValueError, match=re.escape(named)) as error:
        TensorProduct.of(**arguments)
    assert str(error.value).startswith("TensorProduct.of: ")


def test_products_without_a_path_are_named():
    with pytest.raises(ValueError, match="separate_paths: keep must be irreps of the product of"):
        separate_paths("8x0e", "0e", keep="1o")
