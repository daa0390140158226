"""Graphs of samples, with the weights and the normalisation of the graph that was drawn from."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host
from jaxgnn.sampling._mapped import check_files
from jaxgnn.sampling._source import RawSample
from jaxgnn.sampling.features._device import rows_or_zeros


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeValues:
    """Weights and normalisation of a graph, for the blocks of its samples, in NumPy or in JAX.

    A row of a normalised graph sums over all of its edges, so a sum over a sample is multiplied by
    the number of all edges over that of the sampled ones: its expectation is the sum over all.

    Attributes:
      weights: of the edges of the user's graph, or None.
      row_scale: of the nodes, or None.
      col_scale: of the nodes, or None.
      degrees: number of edges of each row, for a normalised graph; else None.
      normalization: kind of the normalisation, or None.
    """

    weights: Any
    row_scale: Any
    col_scale: Any
    degrees: Any
    normalization: Any = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, graph: CSRGraph, degrees: Any, direction: str) -> EdgeValues:
        """Reads a concrete graph, with rows that draw ``degrees`` edges in a direction."""
        scales = (graph.row_scale, graph.col_scale)
        row_scale, col_scale = scales if direction == "in" else scales[::-1]
        needed = degrees if graph.is_normalized else None
        return cls(graph.weights, row_scale, col_scale, needed, graph.normalization)

    def check_files(self, where: str) -> None:
        """Raises ValueError if a file that an array is mapped from has become shorter."""
        names = "weights", "row_scale", "col_scale"
        check_files(where, **{f"graph.{name}": getattr(self, name) for name in names})

    def fields(self, raw: RawSample, hop: int) -> dict[str, Any]:
        """The fields of the block of a hop, from the seeds outwards."""
        indptr, n_id = raw.indptr[hop], raw.n_id
        num_rows, num_cols = indptr.shape[0] - 1, raw.num_cols(hop)
        weights = None if self.weights is None else _taken(self.weights, raw.e_id[hop])
        made: dict[str, Any] = {"weights": weights, "normalization": self.normalization}
        if self.col_scale is not None:
            made["col_scale"] = _taken(self.col_scale, n_id[:num_cols])
        if self.degrees is None:
            return made
        xp: Any = np if isinstance(indptr, np.ndarray) else jnp
        # Quotients of float32, which are the same on a device.
        drawn = xp.maximum(xp.diff(indptr), 1).astype(np.float32)
        missing = _taken(self.degrees, n_id[:num_rows]).astype(np.float32) / drawn
        if weights is not None and self.row_scale is None:
            find = row_ids_on_host if xp is np else row_ids
            of_edges = xp.append(missing, xp.zeros(1, missing.dtype))[find(indptr, len(weights))]
            made["weights"] = weights * of_edges.astype(weights.dtype)
            return made
        if self.row_scale is not None:
            scales = _taken(self.row_scale, n_id[:num_rows])
            missing = scales * missing.astype(scales.dtype)
        return made | {"row_scale": missing}


def blocks_of(raw: RawSample, values: EdgeValues, *, with_plans: bool) -> tuple[CSRGraph, ...]:
    """The graphs of a sample, in the order in which layers are applied.

    Args:
      raw: the sample, in NumPy or in JAX.
      values: weights and scales of the graph that it was drawn from, of the same kind.
      with_plans: whether to sort the edges by sender here, for gradients, and not in each step.
    """
    blocks = []
    for hop, (indptr, indices) in enumerate(zip(raw.indptr, raw.indices, strict=True)):
        num_cols = raw.num_cols(hop)
        own(indptr), own(indices)
        plan = make_plan(indptr, indices, num_cols) if with_plans else None
        fields = {"num_cols": num_cols, "plan": plan, "in_range": True, **values.fields(raw, hop)}
        blocks.append(CSRGraph(indptr, indices, **{name: own(v) for name, v in fields.items()}))
    return tuple(blocks[::-1])


def parts_of(raw: RawSample, values: EdgeValues, *, with_plans: bool) -> dict[str, Any]:
    """The fields of a ``SampledBatch`` that describe the sample, in the order of layers."""
    return {
        "blocks": blocks_of(raw, values, with_plans=with_plans),
        "n_id": raw.n_id,
        "e_id": raw.e_id[::-1],
        "seed_ids": raw.seed_ids,
        "num_nodes": raw.num_nodes[::-1],
        "num_edges": raw.num_edges[::-1],
        "batch": raw.owners,
    }


# One program on the device, where each of the many steps would be compiled by itself.
parts_on_device = jax.jit(functools.partial(parts_of, with_plans=False))


def _taken(values: Any, ids: Any) -> Any:
    """Rows of an array; zeros where the id is -1."""
    if not isinstance(values, np.ndarray):
        return rows_or_zeros(values, ids)
    made = np.take(values, ids, axis=0, mode="clip")
    made[ids < 0] = 0
    return made
