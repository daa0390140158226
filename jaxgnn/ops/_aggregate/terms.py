"""The gradient of a result, as arrays of each row that determine the gradient of an edge."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.ops._core.dtypes import accumulation_dtype
from pallas_kernels.aggregate.arguments import Form, Statistics, Terms, count_of


def terms_of(
    form: Form,
    graph: CSRGraph,
    y: Float[Array, "rows columns"],
    statistics: Statistics,
    dy: Float[Array, "rows columns"],
) -> Terms:
    """The terms of the gradient to the number of an edge.

    Args:
      form: the static description.
      graph: the graph, for the number of edges of each row.
      y: the result, the reductions side by side.
      statistics: statistics of the forward pass.
      dy: gradient of the result.
    """
    wide = accumulation_dtype(y.dtype)
    count = jnp.maximum(jnp.diff(graph.indptr), 1)[:, None].astype(wide)
    parts = zip(*(jnp.split(a, len(form.reductions), axis=-1) for a in (y, dy)), strict=True)
    of = {name: (y, dy.astype(wide)) for name, (y, dy) in zip(form.reductions, parts, strict=True)}
    constant, linear = [], []
    if "sum" in of:
        constant.append(of["sum"][1])
    if "mean" in of:
        constant.append(of["mean"][1] / count)
    # The gradient of a variance by x is 2 (x - mean) / n, that of its root (x - mean) / (n root).
    if "var" in of:
        linear.append(2 * of["var"][1] / count)
    if "std" in of:
        is_some = statistics.variance > 0
        root = jnp.sqrt(jnp.where(is_some, statistics.variance, 1))
        linear.append(jnp.where(is_some, of["std"][1] / (count * root), 0))
    if linear:
        constant.append(-statistics.mean * sum(linear))
    return Terms(
        constant=sum(constant) if constant else None,
        linear=sum(linear) if linear else None,
        **_extremes(form, graph, of, statistics),
        **_exponentials(of, statistics, wide),
    )


def _extremes(form, graph, of, statistics):
    made = {}
    for name, kept, field in (("max", "highest", "top"), ("min", "lowest", "bottom")):
        if name in of:
            y, dy = of[name]
            found = getattr(statistics, kept)
            made[field] = found if form.keeps == "slot" else y
            made[f"{field}_gradient"] = _share(form, found, dy)
            if not form.by_edge:
                made[f"{field}_holder"] = _holder(form, graph, found)
    return made


def _share(form, found, dy):
    """The gradient that each edge with an extreme gets."""
    if form.keeps == "slot":
        return dy
    count = count_of(found).astype(dy.dtype) if form.keeps == "holder" else found
    return dy / jnp.maximum(count, 1)


def _holder(form, graph, found):
    """The sender that has the extreme alone, negative where there is none."""
    if form.keeps == "holder":
        return found
    senders = jnp.asarray(graph.indices).at[found].get(mode="fill", fill_value=-1)
    return jnp.where(jnp.diff(graph.indptr)[:, None] > 0, senders, -1)


def _exponentials(of, statistics, wide):
    if "softmax" not in of and "logsumexp" not in of:
        return {}
    made = {"log_total": statistics.log_total}
    zero = jnp.zeros((), wide)
    constant = of["logsumexp"][1] if "logsumexp" in of else zero
    if "softmax" in of:
        # With y = Σ p x, dy/dx = p (1 + x - y).
        dy = of["softmax"][1]
        constant = constant + dy * (1 - statistics.soft)
        made["exp_linear"] = dy
    return made | {"exp_constant": constant}
