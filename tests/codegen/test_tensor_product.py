"""Generated sources of tensor products: their limits, and their descriptions."""

import pytest

from jaxgnn._codegen.descriptions import describe, described_source
from jaxgnn._codegen.radial_weights import RadialWeights
from jaxgnn._codegen.tensor_product import source
from tests.codegen._products import PRODUCTS

KINDS = "rows", "columns", "weights", "harmonics"
TANGENTS = "rows_tangent", "columns_tangent", "weights_tangent"


@pytest.mark.parametrize("kind", [*KINDS, *TANGENTS])
@pytest.mark.parametrize("name", PRODUCTS)
def test_tables_fit_the_shared_memory_of_gpus_since_capability_8(name, kind):
    assert max(one.shared_bytes for one in source(PRODUCTS[name], kind).launches) <= 99 * 1024


def test_descriptions_say_how_to_write_a_source():
    for product in PRODUCTS.values():
        for options in (
            (None, None),
            (RadialWeights(20, 3, 8), None),
            (None, (0, len(product.paths) - 1)),
        ):
            written = described_source(describe(product, "weights", *options))
            assert written is source(product, "weights", *options)
