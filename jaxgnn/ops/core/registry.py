"""The ops of the library, in the order in which tables show them.

All code that needs a list of the ops reads this one: ``jaxgnn info``, the benchmarks and their
report, and the tests that every op has a page, a benchmark and a name in each layer. The kernels of
an op are not listed here: they are entries of the tables in its module.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import get_args

from jaxgnn.ops.core.dispatch import Kernel, Name, Platform


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
      native_of: the op whose compiled kernels it runs, if it has none of its own.
      generated: whether its CUDA source is generated, and compiled when it is first used.
      benchmarks: the benchmarks that time it.
    """

    name: str
    family: str
    companions: tuple[str, ...] = ()
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
    def tables(self) -> tuple[Kernel, ...]:
        """The tables of implementations in its module: of the value, gradients and companions."""
        return _tables(self)

    @property
    def pallas(self) -> bool:
        """Whether it has Mosaic GPU kernels."""
        return bool(self.platforms("pallas"))

    @property
    def native(self) -> tuple[Platform, ...]:
        """The platforms for which there are compiled kernels."""
        return self.platforms("ffi")

    def platforms(self, name: Name) -> tuple[Platform, ...]:
        """The platforms that an implementation runs on, in any of its tables."""
        entries = [table.implementations.get(name) for table in self.tables]
        there = {platform for entry in entries if entry for platform in entry.platforms}
        return tuple(platform for platform in get_args(Platform) if platform in there)

    @property
    def page(self) -> str:
        """Its page, relative to the root of the project."""
        return f"docs/ops/{self.name}.md"


@functools.cache
def _tables(op: Op) -> tuple[Kernel, ...]:
    values = vars(importlib.import_module(op.module)).values()
    tables = dict.fromkeys(value for value in values if isinstance(value, Kernel))
    return tuple(table for table in tables if table.name.partition(".")[0] in op.functions)


_LINEAR = (Benchmark("fused_linear"), Benchmark("fused_linear_maxk"))
_HYPERGRAPHS = Benchmark("hypergraph_conv", ("hypergraph_conv", "expert_coupling", "expert_lm"))
_FILTERS = Benchmark("filtered_sum", ("filtered_sum", "filtered_sum_made"))
_PRODUCTS = Benchmark("tensor_product_sum", ("tensor_product_sum", "tensor_product_sum_forces"))
_REDUCTIONS = Benchmark("aggregate", ("neighbour_max", "neighbour_pna", "message_max"))


def _timed(name: str, family: str, companions: tuple[str, ...] = ()) -> Op:
    """An op that has kernels and a benchmark module of the same name."""
    return Op(name, family, companions, benchmarks=(Benchmark(name),))


OPS = (
    _timed("maxk", "maxk", ("todense",)),
    _timed("spmm", "graph", ("sddmm",)),
    _timed("maxk_spmm", "maxk_spmm"),
    Op("filtered_sum", "filters", benchmarks=(_FILTERS,)),
    Op(
        "tensor_product_sum",
        "equivariant",
        generated=True,
        benchmarks=(_PRODUCTS,),
    ),
    _timed("segment_softmax", "graph"),
    Op("aggregate", "aggregate", ("neighbour_reduce",), benchmarks=(_REDUCTIONS,)),
    _timed("dot_attention", "attention"),
    _timed("gat_attention", "attention"),
    _timed("gatv2_attention", "attention"),
    _timed("mhc_pre", "mhc"),
    _timed("mhc_post", "mhc"),
    _timed("sinkhorn", "mhc", ("permutation_mixture",)),
    _timed("mhc_post_pre", "mhc"),
    _timed("mhc_layer", "mhc"),
    Op("mhc_head", "mhc", ("mhc_expand",)),
    Op("fused_linear", "dense", benchmarks=_LINEAR),
    _timed("fused_mlp", "dense"),
    _timed("edge_mlp_aggregate", "edge_mlp"),
    _timed("interaction", "edge_mlp"),
    Op("hypergraph_conv", "hypergraph", native_of="spmm", benchmarks=(_HYPERGRAPHS,)),
)
"""Every op, in the order in which tables show them."""

BY_NAME = {op.name: op for op in OPS}
"""Every op, by its name."""
