"""Descriptions of generated sources: texts that are names of programs, and say how to write them.

An exported program of XLA has the description alone. Another process writes the source from it.
"""

from __future__ import annotations

from typing import cast

from jaxgnn._codegen.frame import Kind, Source
from jaxgnn._codegen.radial_weights import RadialWeights
from jaxgnn._codegen.tensor_product import source
from jaxgnn.equivariant import TensorProduct


def describe(
    product: TensorProduct,
    kind: Kind,
    radial: RadialWeights | None = None,
    paths: tuple[int, ...] | None = None,
) -> str:
    """Returns the description of the source that ``source`` writes for these arguments."""
    irreps = product.irreps_in, product.irreps_sh, product.irreps_out
    instructions = ",".join("-".join(map(str, path)) for path in product.paths)
    layer = "" if radial is None else "-".join(map(str, radial))
    numbers = "" if paths is None else ",".join(map(str, paths))
    return ";".join([kind, *map(str, irreps), instructions, layer, numbers])


def described_source(description: str) -> Source:
    """Returns the source that has this description."""
    kind, of_in, of_sh, of_out, paths, layer, numbers = description.split(";")
    instructions = [tuple(map(int, path.split("-"))) for path in paths.split(",")]
    product = TensorProduct.of(of_in, of_sh, of_out, instructions)
    radial = RadialWeights(*map(int, layer.split("-"))) if layer else None
    chosen = tuple(map(int, numbers.split(","))) if numbers else None
    return source(product, cast(Kind, kind), radial, chosen)
