"""Sparse times k-sparse: aggregation of MaxK-compressed features."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import _ffi
from jaxgnn._arrays.arrays import require_no_heads
from jaxgnn._errors import bad_input
from jaxgnn._ffi import maxk_spmm as ffi
from jaxgnn._ffi.spmm import spmm_cuda
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.graph.csr.operands import edge_blocks
from jaxgnn.graph.local.local_graph import sum_of_parts
from jaxgnn.ops._graph import pallas as graph_pallas
from jaxgnn.ops._graph.spmm import sddmm_of_request, spmm_of_request, sums_by_rows
from jaxgnn.ops._maxk import pallas as maxk_pallas
from jaxgnn.ops._maxk.maxk import todense
from jaxgnn.ops._maxk.reference import maxk as maxk_reference
from jaxgnn.ops._maxk_spmm import pallas
from jaxgnn.ops._maxk_spmm.reference import maxk_spmm as reference
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import open_graph
from jaxgnn.ops.core.checks import check_cbsr
from jaxgnn.ops.core.custom_gradient import custom_vjp, differentiable_again, set_gradient
from pallas_kernels.chip import Chip

_DTYPES = ("float32", "bfloat16")


def _kernel(name: str, cuda, mosaic, **of_mosaic) -> dispatch.Kernel:
    return dispatch.Kernel(
        name if name == "maxk_spmm" else f"maxk_spmm.{name}",
        {
            "xla": dispatch.xla(getattr(reference, name)),
            "pallas": dispatch.pallas(mosaic, dtypes=_DTYPES, limits=ffi.cuda_limits, **of_mosaic),
            "ffi": dispatch.ffi(
                dtypes=_DTYPES, cpu=getattr(ffi, name), cuda=cuda, cuda_limits=ffi.cuda_limits
            ),
        },
    )


def _grad_values_cuda(graph, cbsr, dy):
    """Atomic additions; if results must be reproducible, the dense product at the columns."""
    if dispatch.is_deterministic():
        return maxk_reference.gather_columns(spmm_cuda(graph.transpose(), dy), cbsr.indices)
    return ffi.grad_values_cuda(graph, cbsr, dy)


def _grad_values_pallas(graph, cbsr, dy):
    """Atomic additions; if results must be reproducible, the dense product at the columns."""
    if dispatch.is_deterministic():
        return maxk_pallas.gather_columns(graph_pallas.spmm(graph.transpose(), dy), cbsr.indices)
    return pallas.grad_values(graph, cbsr, dy)


def _cuda_is_faster(graph, cbsr, dy):
    if dy.dtype != jnp.float32 or dispatch.is_deterministic():
        return None
    if _ffi.why_missing("cuda") is not None:
        return None
    # On an H200 Pallas takes 1.00 to 1.09 of the time of CUDA in a graph of 50 edges a row in
    # float32, 0.97 to 0.99 with 10 edges, and 0.86 to 0.98 with 480 edges or more, whose blocks are
    # by degree; in bfloat16 at most 1.01.
    blocks = edge_blocks(graph, Chip.current(), cbsr.dim * dy.dtype.itemsize)
    if blocks is None or blocks.shape.order != "degree":
        return "the CUDA kernel is faster in float32 unless there are blocks by degree"
    return None


FORWARD = _kernel(
    # On an H200 Pallas takes 0.62 to 0.96 of the time of CUDA.
    "maxk_spmm",
    ffi.maxk_spmm_cuda,
    pallas.maxk_spmm,
)
GRAD_VALUES = _kernel(
    "grad_values", _grad_values_cuda, _grad_values_pallas, not_worth=_cuda_is_faster
)
GRAD_WEIGHTS = _kernel("grad_weights", ffi.grad_weights_cuda, pallas.grad_weights)


class BreakEven(NamedTuple):
    """Largest k / dim at which k-sparse kernels beat todense + spmm, forward plus backward.

    Attributes:
      dtype: dtype of the features.
      dim: least width of the dense features.
      mib: least size of the dense features, in MiB.
      degree: least number of edges a row, on average, where the gradient walks edges by block.
      ratio: the largest k / dim.
    """

    dtype: str
    dim: int
    mib: int
    degree: int
    ratio: float


# The first entry that fits is used; the ratios were measured by
# ``python -m experiments.benchmarks.maxk_spmm --break-even``. On a CPU the features of one graph
# fitted the last cache of 32 MiB and those of the other did not. On a GPU the widths were 64 and
# 256, the graphs one of 10 edges a row and three of 50 to 600. Widths and degrees in between get
# the lower ratio, narrower rows the ratio of 64. Wider rows and edges without blocks, which were
# not measured, get the lowest ratio.
BREAK_EVEN: dict[dispatch.Platform, tuple[BreakEven, ...]] = {
    "cpu": (
        BreakEven("float32", dim=1, mib=32, degree=0, ratio=0.25),
        BreakEven("bfloat16", dim=1, mib=32, degree=0, ratio=0.125),
        BreakEven("float32", dim=128, mib=0, degree=0, ratio=0.125),
        BreakEven("float32", dim=1, mib=0, degree=0, ratio=0.03125),
    ),
    "cuda": (
        BreakEven("float32", dim=257, mib=0, degree=0, ratio=0.25),
        BreakEven("float32", dim=1, mib=0, degree=50, ratio=0.5),
        BreakEven("float32", dim=65, mib=0, degree=10, ratio=0.375),
        BreakEven("float32", dim=1, mib=0, degree=10, ratio=0.5),
        BreakEven("float32", dim=1, mib=0, degree=0, ratio=0.25),
        BreakEven("bfloat16", dim=257, mib=0, degree=0, ratio=0.125),
        BreakEven("bfloat16", dim=1, mib=0, degree=50, ratio=0.25),
        BreakEven("bfloat16", dim=65, mib=0, degree=0, ratio=0.125),
        BreakEven("bfloat16", dim=1, mib=0, degree=10, ratio=0.25),
        BreakEven("bfloat16", dim=1, mib=0, degree=0, ratio=0.125),
    ),
}


def break_even(
    platform: dispatch.Platform, dtype: Any, nodes: int, dim: int, degree: float
) -> float:
    """Largest ``k / dim`` for which ``maxk_spmm`` chooses k-sparse kernels by default.

    Args:
      platform: platform that the arrays are on.
      dtype: dtype of the features.
      nodes: number of rows of the features.
      dim: width of the expanded features.
      degree: edges a row, on average, or 0 if the gradient does not walk the edges by block.
    """
    name, mib = jnp.dtype(dtype).name, nodes * dim * jnp.dtype(dtype).itemsize / 2**20
    for row in BREAK_EVEN[platform]:
        if name == row.dtype and dim >= row.dim and mib >= row.mib and degree >= row.degree:
            return row.ratio
    return 0.0


def maxk_spmm(
    graph: CSRGraph, cbsr: CBSR, *, implementation: dispatch.Name | None = None
) -> Float[Array, "*batch rows dim"]:
    """Aggregates compressed neighbours: ``y_i = r_i Σ_j w_ij c_j x_j``, ``x_j`` with k entries.

    The SpGEMM forward and SSpMM backward of MaxK-GNN (https://arxiv.org/abs/2312.08656), for any
    ``k`` and any number of columns. Accumulates in float32 and rounds once; rows without edges are
    zero. Differentiable in ``cbsr.values`` and in ``graph.weights``, also twice; the gradients of
    the values are computed at the kept columns only.

    Args:
      graph: rows are receivers, columns are senders.
      cbsr: compressed features of the senders; all leading axes share the graph.
      implementation: ``"xla"`` (expands and multiplies), ``"ffi"``, ``"pallas"``, or None, which
        chooses the k-sparse kernels up to the measured break-even of ``k / dim`` and dense ``spmm``
        beyond.

    Returns:
      Dense features of the receivers, of the dtype of the values.

    Raises:
      ValueError: if ``cbsr`` does not have one row for each column of the graph, or the graph has
        weights for several heads.
      NotImplementedError: if the named implementation can not run these arguments here.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import ops
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 1], num_nodes=2)
      >>> ops.maxk_spmm(graph, ops.maxk(jnp.array([[1.0, 2.0], [4.0, 3.0]]), k=1)).tolist()
      [[0.0, 0.0], [4.0, 2.0]]
    """
    summed = sum_of_parts(graph, cbsr, -2, partial(maxk_spmm, implementation=implementation))
    if summed is not None:
        return summed
    opened = open_graph("maxk_spmm", graph)
    graph, (cbsr,) = opened.graph, opened.senders(cbsr)
    require_no_heads("maxk_spmm", "graph", graph.weights)
    cbsr = check_cbsr("maxk_spmm", cbsr)
    if cbsr.values.shape[-2] != graph.num_cols:
        expected = f"of {graph.num_cols} rows, one for each column of the graph"
        raise bad_input("maxk_spmm", "cbsr", expected, f"{cbsr.values.shape[-2]} rows")
    plan = plan_kernels(dispatch.resolve("maxk_spmm", implementation), graph, cbsr)
    if plan.request.name is None and not is_worth_it(plan, graph, cbsr):
        return sums_by_rows(plan.request, graph, todense(cbsr))
    return sum_kept(plan, graph, cbsr)


def plan_kernels(request: dispatch.Request, graph: CSRGraph, cbsr: CBSR) -> dispatch.Plan:
    """The plan of the k-sparse kernels for one member of the leading axes, as it is run."""
    member = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[-2:], a.dtype), cbsr)
    return FORWARD.plan(request, graph, member)


def sum_kept(plan: dispatch.Plan, graph: CSRGraph, cbsr: CBSR) -> Float[Array, "*batch rows dim"]:
    """The sums of checked rows by a plan of ``plan_kernels``, whatever the break-even."""

    def run(graph, cbsr):
        if plan.request.name == "xla":
            return plan(graph, cbsr)
        return _maxk_spmm(plan, graph.with_weights(None), graph.weights, cbsr)

    return dispatch.over_leading_axes(run, cbsr.values.ndim - 2, graph, cbsr)


def is_worth_it(plan: dispatch.Plan, graph: CSRGraph, cbsr: CBSR) -> bool:
    """Whether a plan has a k-sparse kernel here, and that is faster than the dense product."""
    if plan.here == "xla":
        return False
    platform = dispatch.current_platform()
    # The degree needs a plan; a CPU's choice does not depend on it, so none is built there.
    degree = _degree_in_blocks(graph, cbsr) if platform == "cuda" else 0.0
    ratio = break_even(platform, cbsr.dtype, graph.num_cols, cbsr.dim, degree)
    return cbsr.k <= ratio * cbsr.dim


def _degree_in_blocks(graph: CSRGraph, cbsr: CBSR) -> float:
    """Edges a row, or 0 if the gradient does not walk them by block."""
    if dispatch.is_deterministic():
        return 0.0
    blocks = edge_blocks(graph, Chip.current(), cbsr.dim * cbsr.dtype.itemsize)
    return 0.0 if blocks is None else graph.num_edges / max(graph.num_rows, 1)


def sparse_implementation(graph: CSRGraph, cbsr: CBSR) -> dispatch.Name:
    """The k-sparse implementation that runs here, independently of the break-even.

    Raises:
      NotImplementedError: if there is none, with the reason of each.
    """
    platform, reasons = dispatch.current_platform(), []
    for name in FORWARD.preference[platform]:
        reason = name != "xla" and FORWARD.why_not(name, platform, graph, cbsr)
        if reason is None:
            return name
        reasons += [f"{name}: {reason}"] if reason else []
    raise NotImplementedError(f"maxk_spmm: no k-sparse kernel runs here: {'; '.join(reasons)}")


@partial(custom_vjp, nondiff_argnums=(0,))
def _maxk_spmm(plan, structure, weights, cbsr):
    return plan(structure.with_weights(weights), cbsr)


def _gradients_of_maxk_spmm(plan, structure, weights, cbsr, dy):
    dweights, dvalues = _gradients(plan.request, structure, weights, cbsr, dy)
    # None: integers have no gradient.
    return None, dweights, dataclasses.replace(cbsr, values=dvalues, indices=None)


def _by_kernels(request, structure, weights, cbsr, dy):
    dvalues = GRAD_VALUES(request, structure.with_weights(weights), cbsr, dy)
    if weights is None:
        return None, dvalues
    return GRAD_WEIGHTS(request, structure, cbsr, dy).astype(weights.dtype), dvalues


def _by_dense_products(request, structure, weights, cbsr, dy):
    """The same by ``spmm`` and ``sddmm``, whose gradients are each other, on expanded features."""
    transposed = structure.with_weights(weights).transpose()
    dense = spmm_of_request(request, transposed.with_weights(None), transposed.weights, dy)
    dvalues = maxk_reference.gather_columns(dense, cbsr.indices)
    if weights is None:
        return None, dvalues
    expanded = maxk_reference.todense(cbsr)
    return sddmm_of_request(request, structure, dy, expanded).astype(weights.dtype), dvalues


_gradients = differentiable_again(_by_kernels, _by_dense_products)


set_gradient(_maxk_spmm, _gradients_of_maxk_spmm, 1)
