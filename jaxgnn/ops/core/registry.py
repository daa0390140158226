"""The ops of the library, in the order in which tables show them.

All code that needs a list of the ops reads this one: ``jaxgnn info``, the benchmarks and their
report, and the tests that every op has a page, a benchmark and a name in each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxgnn.ops.core.dispatch import Platform


@dataclass(frozen=True)
class Benchmark:
    """A module of ``experiments/benchmarks``.

    Attributes:
      module: name of the module.
      rows: the names in the column ``op`` of its results; the name of the module if empty.
    """

    module: str
    rows: tuple[str, ...] = ()

    @property
    def row_names(self) -> tuple[str, ...]:
        """The names in the column ``op`` of its results."""
        return self.rows or (self.module,)


@dataclass(frozen=True)
class Op:
    """An op, with its implementations, benchmarks and related functions.

    The name is shared by the public function in ``jaxgnn.ops``, its module and its reference in
    ``jaxgnn/ops/_<family>/``, its page in ``docs/ops/``, its test in ``tests/ops/``, and, if there
    are any, its GPU kernel in ``pallas_kernels/<family>/`` and its native sources.

    Attributes:
      name: the name of this op in every layer.
      family: name of the folder of its kernels; the folder of the op starts with an underscore.
      companions: further public functions of its module that compute something.
      pallas: whether it has Mosaic GPU kernels.
      native: the platforms for which there are compiled kernels.
      native_of: the op whose compiled kernels it runs, if it has none of its own.
      generated: whether its CUDA source is generated, and compiled when it is first used.
      benchmarks: the benchmarks that time it.
    """

    name: str
    family: str
    companions: tuple[str, ...] = ()
    pallas: bool = True
    native: tuple[Platform, ...] = ()
    native_of: str | None = None
    generated: bool = False
    benchmarks: tuple[Benchmark, ...] = ()

    @property
    def functions(self) -> tuple[str, ...]:
        """Its public functions in ``jaxgnn.ops``."""
        return self.name, *self.companions

    @property
    def module(self) -> str:
        """The full name of the module that defines it."""
        return f"jaxgnn.ops._{self.family}.{self.name}"

    @property
    def page(self) -> str:
        """Its page, relative to the root of the project."""
        return f"docs/ops/{self.name}.md"


_EVERYWHERE: tuple[Platform, ...] = ("cpu", "cuda")
_LINEAR = (Benchmark("fused_linear"), Benchmark("fused_linear_maxk"))
_HYPERGRAPHS = Benchmark("hypergraph_conv", ("hypergraph_conv", "expert_coupling", "expert_lm"))
_FILTERS = Benchmark("filtered_sum", ("filtered_sum", "filtered_sum_made"))
_PRODUCTS = Benchmark("tensor_product_sum", ("tensor_product_sum", "tensor_product_sum_forces"))
_REDUCTIONS = Benchmark("aggregate", ("neighbour_max", "neighbour_pna", "message_max"))


def _timed(
    name: str,
    family: str,
    companions: tuple[str, ...] = (),
    *,
    pallas: bool = True,
    native: tuple[Platform, ...] = (),
) -> Op:
    """An op that has kernels and a benchmark module of the same name."""
    return Op(name, family, companions, pallas, native, benchmarks=(Benchmark(name),))


OPS = (
    _timed("maxk", "maxk", ("todense",), native=_EVERYWHERE),
    _timed("spmm", "graph", ("sddmm",), native=_EVERYWHERE),
    _timed("maxk_spmm", "maxk_spmm", native=_EVERYWHERE),
    Op("filtered_sum", "filters", native=("cpu",), benchmarks=(_FILTERS,)),
    Op(
        "tensor_product_sum",
        "equivariant",
        pallas=False,
        native=_EVERYWHERE,
        generated=True,
        benchmarks=(_PRODUCTS,),
    ),
    _timed("segment_softmax", "graph", native=("cpu",)),
    Op("aggregate", "aggregate", ("neighbour_reduce",), native=("cpu",), benchmarks=(_REDUCTIONS,)),
    _timed("dot_attention", "attention", native=("cpu",)),
    _timed("gat_attention", "attention", native=("cpu",)),
    _timed("gatv2_attention", "attention", native=("cpu",)),
    _timed("mhc_pre", "mhc"),
    _timed("mhc_post", "mhc"),
    _timed("sinkhorn", "mhc", ("permutation_mixture",)),
    _timed("mhc_post_pre", "mhc"),
    _timed("mhc_layer", "mhc"),
    Op("mhc_head", "mhc", ("mhc_expand",), pallas=False),
    Op("fused_linear", "dense", benchmarks=_LINEAR),
    _timed("fused_mlp", "dense"),
    _timed("edge_mlp_aggregate", "edge_mlp"),
    _timed("interaction", "edge_mlp"),
    Op("hypergraph_conv", "hypergraph", native_of="spmm", benchmarks=(_HYPERGRAPHS,)),
)
"""Every op, in the order in which tables show them."""

BY_NAME = {op.name: op for op in OPS}
"""Every op, by its name."""
