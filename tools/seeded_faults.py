"""Seeds faults, one at a time, in copies of the sources, and checks that the tests find them.

The shortened suite, `make test`, runs a few cases of costly tests. This program shows that they are
enough. Each fault of the table below is a plausible mistake (an index off by one, a missing mask, a
sign, a scale, a race, a transpose, a rounding, a forgotten bias), and the tests listed for it must
fail once it is seeded. ::

    .venv/bin/python tools/seeded_faults.py --clean   # do these tests pass without a fault?
    .venv/bin/python tools/seeded_faults.py           # and fail with one?

Native C++ and CUDA sources are not covered, since each fault there would need its own build. The
exit status is 1 if a fault is missed, and 2 if the table is wrong: if a text does not occur exactly
once, or tests can not be collected.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("jaxgnn", "pallas_kernels", "tests", "experiments", "docs", "pyproject.toml")
PASSED, FAILED = 0, 1  # exit status of pytest
LONGEST_SECONDS = 900


@dataclass(frozen=True)
class Fault:
    """One fault, and the tests that should find it.

    Attributes:
      name: what is wrong.
      file: its file, relative to the root of the sources.
      old: the text that is replaced; it occurs once in the file.
      new: the text that replaces it.
      tests: arguments for pytest.
      hole: why no test without a GPU finds it, where that is known; it does not count as missed.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    hole: str = ""


@dataclass(frozen=True)
class Outcome:
    """Result of a run of pytest.

    Attributes:
      status: its exit status; None if it did not end in time.
      seconds: how long it took.
      failure: the first failing test and why.
      output: all of its output.
    """

    status: int | None
    seconds: float
    failure: str
    output: str


def _tests(module: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"tests/{module}.py::{test}" for test in tests)


def _kernels(module: str, *tests: str) -> tuple[str, ...]:
    return _tests(f"pallas_kernels/{module}", *tests)


_PRODUCTS = _kernels("test_numerics", "test_spmm_and_sddmm")
_SOFTMAX = _kernels("test_numerics", "test_segment_softmax_and_its_gradient")
_AGGREGATE = _kernels(
    "aggregate/test_numerics",
    "test_values_and_gradients_agree_with_float64",
    "test_padding_slots_may_hold_anything",
)
_MAXK = _kernels("test_numerics", "test_maxk_has_the_bits_of_the_reference")
_MAXK_SPMM = _kernels("test_numerics", "test_maxk_spmm_and_its_gradients")
_BLOCKS = _kernels("maxk_spmm/test_edge_blocks", "test_blocks_agree_with_the_reference")
_LINEAR = _kernels("dense/test_fused", "test_linear_and_its_gradients")
_PARTS = _kernels("dense/test_fused_float32", "test_three_products_of_parts_have_their_precision")
_PARTS_GRADIENTS = _kernels(
    "dense/test_fused_float32", "test_gradients_have_the_precision_of_three_products_of_parts"
)
_EDGE_SUMS = _kernels("edge_mlp/test_edge_mlp", "test_sums_of_layers")
_POST = _kernels("mhc/test_mhc", "test_post_and_its_gradients")
_SINKHORN = _kernels("mhc/test_mhc", "test_sinkhorn_and_its_gradient")
_PRE = _kernels("mhc/test_mhc", "test_pre")
_MIX = _kernels("hypergraph/test_hypergraph_conv", "test_value_and_gradients")

GRAPH_KERNELS = (
    Fault(
        "spmm kernel: edges past the end of a row are added, since the mask is missing",
        "pallas_kernels/graph/spmm.py",
        "values = [warp.select(edge < end, value, 0.0) for value in values]",
        "values = [*values]",
        _PRODUCTS,
    ),
    Fault(
        "spmm kernel: the last full step of a row is left out, off by one",
        "pallas_kernels/graph/spmm.py",
        "full_end = piece.end - (step - 1)",
        "full_end = piece.end - step",
        _PRODUCTS,
    ),
    Fault(
        "sddmm kernel: the scale of the columns is dropped",
        "pallas_kernels/graph/spmm.py",
        "value = product if scale is None else scale * product",
        "value = product",
        _PRODUCTS,
    ),
    Fault(
        "sddmm kernel: a row is read from shared memory before all lanes have written it, a race",
        "pallas_kernels/graph/rows.py",
        "    warp.strided(rows.shape[-1], copy)\n    warp.sync()\n",
        "    warp.strided(rows.shape[-1], copy)\n",
        _PRODUCTS,
    ),
    Fault(
        "softmax kernel: sums of lanes are added without a common peak",
        "pallas_kernels/graph/softmax_rules.py",
        "        total = _shifted(warp, peak, total, _shift(warp, highest))\n",
        "",
        _SOFTMAX,
    ),
    Fault(
        "softmax kernel: the gradient has a wrong sign",
        "pallas_kernels/graph/softmax_rules.py",
        "return probability * (slope - finished[0])",
        "return probability * (slope + finished[0])",
        _SOFTMAX,
    ),
)

_ATTENTION = _kernels("attention/test_numerics", "test_values_and_gradients_agree_with_float64")


def _attention(op: str, *tests: str) -> tuple[str, ...]:
    return _tests(f"ops/attention/test_{op}", *tests)


ATTENTION_KERNELS = (
    Fault(
        "attention kernel: the leaky ReLU of zero has the slope of negative numbers",
        "pallas_kernels/attention/scores.py",
        "warp.select(total >= 0.0, dscore, dscore * self.negative_slope)",
        "warp.select(total > 0.0, dscore, dscore * self.negative_slope)",
        _kernels("attention/test_numerics", "test_the_leaky_relu_of_zero_has_slope_one"),
    ),
    Fault(
        "attention kernel: the gradient to a score has a wrong sign under dropout",
        "pallas_kernels/attention/neighbours.py",
        "dscore = weight * slope - probability * stats.delta",
        "dscore = weight * slope + probability * stats.delta",
        _ATTENTION,
    ),
    Fault(
        "attention kernel: delta is left out of the gradient to a score",
        "pallas_kernels/attention/neighbours.py",
        "probability, probability * (slope - stats.delta)",
        "probability, probability * slope",
        _ATTENTION,
    ),
    Fault(
        "attention kernel: edges past the end of a piece count, since the mask is missing",
        "pallas_kernels/attention/neighbours.py",
        'return neighbour.if_real(self.plan.rule.score(self.warp, total), float("-inf"))',
        "return self.plan.rule.score(self.warp, total)",
        _ATTENTION,
    ),
    Fault(
        "attention kernel: along the columns edges are found by another slot",
        "pallas_kernels/attention/neighbours.py",
        "slots = edges if arrays.slots is None else [arrays.slots.load(edge) for edge in edges]",
        "slots = edges",
        _ATTENTION,
    ),
    Fault(
        "attention kernel: dropout of the next head, off by one",
        "pallas_kernels/attention/dropout.py",
        'seed.load(1) + lanes.head.bits("u32") * _HEADS',
        'seed.load(1) + (lanes.head + 1).bits("u32") * _HEADS',
        _ATTENTION,
    ),
    Fault(
        "attention kernel: the scale is dropped from the gradients to queries and keys",
        "pallas_kernels/attention/scores.py",
        "return [s * self.scale for s in sums]",
        "return [*sums]",
        _ATTENTION,
    ),
)

ATTENTION = (
    Fault(
        "attention: delta is left out of the gradients",
        "jaxgnn/ops/_attention/differentiable.py",
        "delta = jnp.sum(y * dy, axis=-1) - dlse",
        "delta = -dlse",
        _attention(
            "gat_attention",
            "test_value_weights_and_every_gradient_equal_float64_on_every_graph",
        ),
    ),
    Fault(
        "attention: the gradient of the returned weights is left out of delta",
        "jaxgnn/ops/_attention/differentiable.py",
        "delta = delta + _sums_of_rows(call.request, graph, weights * dweights)",
        "pass",
        _attention(
            "gatv2_attention",
            "test_value_weights_and_every_gradient_equal_float64_on_every_graph",
        ),
    ),
    Fault(
        "second derivatives of attention: the gradient to the logarithms of sums is left out",
        "jaxgnn/ops/_attention/differentiable.py",
        "return pull_back((dy.astype(made[0].dtype), dlse, dweights))[0]",
        "return pull_back((dy.astype(made[0].dtype), 0 * dlse, dweights))[0]",
        _attention(
            "attention_second_order",
            "test_dropout_by_numbers_of_edges_has_the_second_derivatives_of_the_plain_formula",
        ),
    ),
    Fault(
        "second derivatives of attention: of the pieces of the edges the last one alone counts",
        "jaxgnn/ops/_graph/pieces.py",
        "return jax.tree.map(jnp.add, sums, summed), jax.tree",
        "return summed, jax.tree",
        _attention("attention_second_order", "test_first_and_second_derivatives_equal_float64"),
    ),
    Fault(
        "second derivatives of attention in pieces: products read the other end",
        "jaxgnn/ops/_graph/pieces.py",
        "to_weights = products(targets, sources, dy, values)",
        "to_weights = products(sources, targets, dy, values)",
        _attention(
            "attention_in_pieces",
            "test_a_program_for_any_size_has_no_array_of_edges_heads_and_columns",
        ),
    ),
    Fault(
        "second derivatives of attention: the products are not scaled",
        "jaxgnn/ops/_attention/composed.py",
        "queries = form.scale * _wide(operands.rows)",
        "queries = _wide(operands.rows)",
        _attention("attention_second_order", "test_first_and_second_derivatives_equal_float64"),
    ),
    Fault(
        "attention: the scale of the products is dropped",
        "jaxgnn/ops/_attention/reference/dot_attention.py",
        "products = form.scale * jnp.sum(queries * keys, axis=-1)",
        "products = jnp.sum(queries * keys, axis=-1)",
        _attention("dot_attention", "test_it_is_the_formula_written_with_loops"),
    ),
    Fault(
        "attention: heads take the keys and values of another head",
        "jaxgnn/ops/_attention/reference/ends.py",
        "return jnp.repeat(values, heads // values.shape[1], axis=1)",
        "return jnp.concatenate([values] * (heads // values.shape[1]), axis=1)",
        _attention("dot_attention", "test_it_is_the_formula_written_with_loops"),
    ),
    Fault(
        "attention: padding slots have weights, since the mask is missing",
        "jaxgnn/ops/_attention/reference/softmax_sum.py",
        "return jnp.exp(jnp.where(real, values, -jnp.inf) - shifts)",
        "return jnp.exp(values - shifts)",
        _attention("gat_attention", "test_it_is_the_formula_written_with_loops"),
    ),
    Fault(
        "attention: dropout by the hash of another slot",
        "jaxgnn/ops/_attention/reference/dropout.py",
        "_mix(seed[0] ^ slots.astype(jnp.uint32))",
        "_mix(seed[0] ^ (slots + 1).astype(jnp.uint32))",
        _attention("attention", "test_dropout_leaves_out_the_same_edges_in_every_implementation"),
    ),
    Fault(
        "attention: an edge that -inf masks counts where the slope is zero or negative",
        "jaxgnn/ops/_attention/reference/ends.py",
        "return jnp.where((x >= 0) | (x == -jnp.inf), x, slope * x)",
        "return jnp.where(x >= 0, x, slope * x)",
        _attention("gat_attention", "test_minus_infinity_masks_an_edge_whatever_the_slope"),
    ),
    Fault(
        "attention: the leaky ReLU of zero has the slope of negative numbers",
        "jaxgnn/ops/_attention/reference/ends.py",
        "return jnp.where((x >= 0) | (x == -jnp.inf), x, slope * x)",
        "return jnp.where((x > 0) | (x == -jnp.inf), x, slope * x)",
        _attention(
            "attention_at_zero", "test_gradients_at_zero_are_those_of_the_leaky_relu_of_jax"
        ),
    ),
)

HEADS = (
    Fault(
        "spmm of heads: the kernel reads the weight of another head",
        "pallas_kernels/graph/spmm.py",
        "head = None if heads is None else read_column // (dim // heads)",
        "head = None if heads is None else read_column % heads",
        _kernels("test_numerics", "test_products_of_heads"),
    ),
    Fault(
        "sddmm of heads: the kernel adds up the columns of the first head",
        "pallas_kernels/graph/spmm.py",
        "(first + start, first + dim)",
        "(start, dim)",
        _kernels("test_numerics", "test_products_of_heads"),
    ),
    Fault(
        "spmm of heads: weights of padding slots count, since the mask is missing",
        "jaxgnn/ops/_graph/reference/spmm.py",
        "weights = jnp.where(_of_real_edges(graph, graph.weights), graph.weights, 0)",
        "weights = graph.weights",
        _tests("ops/graph/test_spmm_heads", "test_weights_of_padding_slots_may_be_anything"),
    ),
)

AGGREGATE_KERNELS = (
    Fault(
        "aggregate kernel: ties of two groups of lanes are counted once",
        "pallas_kernels/aggregate/parts.py",
        "shared = (counts[0] + counts[1]) * -1 - 1",
        "shared = counts[0] * -1 - 1",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: moments of pieces are added without moving them to one shift",
        "pallas_kernels/aggregate/parts.py",
        "d = other[0] - state[0]",
        "d = warp.f32(0.0)",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: the exponentials of a piece are not rescaled",
        "pallas_kernels/aggregate/parts.py",
        "ours, theirs = (rescaling(warp, own[0], shift) for own in (state, other))",
        "ours = theirs = warp.f32(1.0)",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: a lane past the end counts the last edge again",
        "pallas_kernels/aggregate/aggregate.py",
        "real = [None if end is None else e < end for e in edges]",
        "real = [None for _ in edges]",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: padding past the end of an edge list is read as a node",
        "pallas_kernels/aggregate/aggregate.py",
        "read = words_of(warp.select(exists, node, warp.constant(node.kind, 0)))",
        "read = words_of(node)",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: gradients past the end of a row are added",
        "pallas_kernels/aggregate/gradient.py",
        "more = warp.select(edge < end, more, 0.0)",
        "more = more + 0.0",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: each piece of a row adds the gradient to the holder",
        "pallas_kernels/aggregate/extremes.py",
        "alone = inside & is_first & (holder >= 0)",
        "alone = inside & (holder >= 0)",
        _AGGREGATE,
    ),
    Fault(
        "aggregate kernel: the last edge of a row shares an extreme several times",
        "pallas_kernels/aggregate/extremes.py",
        "has_it = is_shared & (edge < piece.end) & (number == best)",
        "has_it = is_shared & (number == best)",
        _AGGREGATE,
    ),
)

MAXK_KERNELS = (
    Fault(
        "maxk kernel: one entry too many of those that tie, off by one",
        "pallas_kernels/maxk/one_row.py",
        "(is_equal & (rank < wanted))",
        "(is_equal & (rank <= wanted))",
        _MAXK,
    ),
    Fault(
        "maxk kernel: minus zero ranks below zero",
        "pallas_kernels/maxk/one_row.py",
        "else warp.select(magnitude == 0, magnitude, bits)",
        "else bits",
        _MAXK,
    ),
    Fault(
        "maxk kernel: kept columns are read before all lanes have written them, a race",
        "pallas_kernels/maxk/one_row.py",
        "            warp.sync()\n            to_values, to_columns",
        "            to_values, to_columns",
        _MAXK,
    ),
    Fault(
        "maxk kernel of eight rows: entries that look alike to 16 bits are taken for equal ones",
        "pallas_kernels/maxk/eight_rows.py",
        "are_equal = (equal == warp.sum_lanes(popcount_words(warp, alike), QUAD)) & ~odd",
        "are_equal = (equal > 0) & ~odd",
        _kernels("test_numerics", "test_eight_rows_are_exact_whatever_16_bits_can_tell"),
    ),
    Fault(
        "selection of eight rows: kept columns are read before all lanes have listed them, a race",
        "pallas_kernels/maxk/selection.py",
        "first_column, to, kept)\n            warp.sync()\n",
        "first_column, to, kept)\n",
        _kernels("maxk/test_linear_maxk", "test_selection_has_the_bits_of_sorted_rows"),
    ),
)

MAXK_SPMM_KERNELS = (
    Fault(
        "k-sparse kernel: the scale of the rows is dropped",
        "pallas_kernels/maxk_spmm/maxk_spmm.py",
        "self._store_row(y.row(piece.row), scale)",
        "self._store_row(y.row(piece.row), None)",
        _MAXK_SPMM,
    ),
    Fault(
        "k-sparse kernel: sums are added to before all lanes have cleared them, a race",
        "pallas_kernels/maxk_spmm/maxk_spmm.py",
        "lambda i: self.sums.store(i, zero))\n        self.warp.sync()\n",
        "lambda i: self.sums.store(i, zero))\n",
        _MAXK_SPMM,
    ),
    Fault(
        "gradient of the k-sparse kernel: a list is read before all lanes have written it, a race",
        "pallas_kernels/maxk_spmm/backward.py",
        "def add_listed(piece, listed):\n            warp.sync()\n",
        "def add_listed(piece, listed):\n",
        _MAXK_SPMM,
    ),
    Fault(
        "gradient of the k-sparse kernel: weights of the edges of another row",
        "pallas_kernels/maxk_spmm/backward.py",
        "else graph.weights.load(piece.begin + list_edges.load(place))",
        "else graph.weights.load(list_edges.load(place))",
        _MAXK_SPMM,
    ),
    Fault(
        "gradient by blocks: rows are read before all warps have loaded them, a race",
        "pallas_kernels/maxk_spmm/edge_blocks.py",
        "(0 if first is None else first), count)\n            warp.barrier()\n",
        "(0 if first is None else first), count)\n",
        _BLOCKS,
    ),
    Fault(
        "gradient by blocks: rows are overwritten while other warps read them, a race",
        "pallas_kernels/maxk_spmm/edge_blocks.py",
        "            warp.barrier()\n            take(first)\n",
        "            take(first)\n",
        _BLOCKS,
    ),
)

DENSE_KERNELS = (
    Fault(
        "dense kernel: the bias is forgotten",
        "pallas_kernels/dense/forward.py",
        "self._activate(layer, add_bias(z[:, columns], bias, columns), dy)",
        "self._activate(layer, z[:, columns], dy)",
        _LINEAR,
    ),
    Fault(
        "dense kernel: rows of float32 lose their second part, a wrong rounding",
        "pallas_kernels/dense/products.py",
        "for part in (high, wide - high)]",
        "for part in (high, 0 * high)]",
        _PARTS,
    ),
    Fault(
        "gradients of dense layers: a tile is read before all members have written it, a race",
        "pallas_kernels/dense/three_tiles.py",
        '            self._split_input(inputs["x"], self.plan.stack.widths[0], held["zero"])\n'
        "            tc.commit_smem()\n            self._meet()\n",
        '            self._split_input(inputs["x"], self.plan.stack.widths[0], held["zero"])\n',
        _PARTS_GRADIENTS,
    ),
    Fault(
        "activations in kernels: a difference with a product has a wrong sign",
        "pallas_kernels/dense/warp_activations.py",
        "_Product(b.a * -1.0, b.b)",
        "_Product(b.a, b.b)",
        _MIX
        + _kernels(
            "hypergraph/test_hypergraph_conv", "test_activations_of_large_and_small_numbers"
        ),
    ),
    Fault(
        "gradients of dense layers: the next tile overwrites the one that is still read",
        "pallas_kernels/dense/three_tiles.py",
        "load(x_ring, n + 1, 1 - place)",
        "load(x_ring, n + 1, place)",
        _PARTS_GRADIENTS,
    ),
    Fault(
        "pairs of blocks: a tile is sent before its slot is free, a race",
        "pallas_kernels/tensor_cores/stores.py",
        "        free.wait(step)\n",
        "",
        _kernels("dense/test_fused_wide", "test_blocks_pass_tiles_on_that_wait_for_places"),
    ),
    Fault(
        "activations in kernels: the slope of silu has a wrong sign",
        "pallas_kernels/dense/activations.py",
        "return y, s + y * rest",
        "return y, s - y * rest",
        _kernels("dense/test_fused", "test_activations_are_those_of_the_reference"),
    ),
)

EDGE_MLP_KERNELS = (
    Fault(
        "kernel of edges: a tile is used while it is being copied, a race",
        "pallas_kernels/edge_mlp/forward.py",
        "simt.inline(WaitForCopies(slots - 2), [], [])",
        "simt.inline(WaitForCopies(slots - 1), [], [])",
        _EDGE_SUMS,
        hole="plain JAX stands in for SIMT copies, and has copied at once",
    ),
    Fault(
        "kernel of edges: places without an edge count, since the mask is missing",
        "pallas_kernels/edge_mlp/gather_scatter.py",
        "factors.store(warp.thread, warp.select(real, warp.f32(1.0), 0.0))",
        "factors.store(warp.thread, warp.f32(1.0))",
        _kernels(
            "edge_mlp/test_edge_mlp",
            "test_tiles_are_gathered_and_scattered_as_the_tensor_cores_have_them",
        ),
    ),
    Fault(
        "kernel of edges: sums of pieces are rounded to 16 bits",
        "pallas_kernels/edge_mlp/gather_scatter.py",
        "return [tile.unpack(words, i) + left.unpack(low, i) for i in",
        "return [tile.unpack(words, i) + 0.0 * left.unpack(low, i) for i in",
        _kernels(
            "edge_mlp/test_edge_mlp", "test_sums_are_written_by_rows_and_those_of_pieces_exactly"
        ),
    ),
    Fault(
        "wide kernel of edges: each member adds the bias of the first one",
        "pallas_kernels/edge_mlp/wide.py",
        "z = add_bias(z, bias, _columns(member, stack.widths[layer + 1]))",
        "z = add_bias(z, bias, _columns(0 * member, stack.widths[layer + 1]))",
        _kernels("edge_mlp/test_edge_mlp_wide", "test_sums_of_layers"),
    ),
    Fault(
        "gradients of layers of edges: walkers without a tile hand over the one before",
        "pallas_kernels/edge_mlp/backward.py",
        "self._dz(layer)[...] = self._full(self.needs.plan.stack.widths[layer + 1], 0.0)",
        "pass",
        _kernels("edge_mlp/test_edge_mlp", "test_gradients_of_sums_of_layers"),
    ),
)

MHC_KERNELS = (
    Fault(
        "mhc_post kernel: the matrix of the streams is transposed",
        "pallas_kernels/mhc/mhc_post.py",
        "matrix[i * n + o if self.transposed else o * n + i]",
        "matrix[o * n + i if self.transposed else i * n + o]",
        _POST,
    ),
    Fault(
        "sinkhorn kernel: the gradient sums along the other axis",
        "pallas_kernels/mhc/sinkhorn.py",
        "negative = [s * -1.0 for s in self.reduce(z, by_rows)]",
        "negative = [s * -1.0 for s in self.reduce(z, not by_rows)]",
        _SINKHORN,
    ),
    Fault(
        "mhc_pre kernel: sums of warps are added up before they are there, a race",
        "pallas_kernels/mhc/mhc_pre.py",
        "            warp.barrier()\n            self._add_up(",
        "            self._add_up(",
        _PRE,
    ),
    Fault(
        "mhc_pre kernel of clusters: a buffer is said to be free while lanes read it, a race",
        "pallas_kernels/mhc/cluster/sums.py",
        "        self.warp.sync()  # all lanes have read, before one of them signals\n",
        "",
        _kernels("mhc/test_mhc_pre_clusters", "test_every_tile_gives_the_values"),
    ),
    Fault(
        "mhc_pre kernel of tokens: a warp reads phi before other warps have copied it, a race",
        "pallas_kernels/mhc/tokens/backward.py",
        "            warp.when(i == 0, warp.barrier)\n",
        "",
        _kernels(
            "mhc/test_mhc",
            "test_post_pre_and_its_gradients",
            "test_blocks_of_many_tokens_that_take_turns",
        )
        + _kernels("mhc/test_mhc_pre_clusters", "test_the_backward_pass_in_several_steps"),
    ),
    Fault(
        "mhc_pre kernel: the gradient to a gain takes a row of the next one, off by one",
        "pallas_kernels/mhc/slices/sums.py",
        'part = (lane >= n).to("i32")',
        'part = (lane > n).to("i32")',
        _kernels("mhc/test_mhc_slices", "test_partial_sums_are_added_up"),
    ),
    Fault(
        "mhc_pre kernel of slices: the gradient of the returned streams is dropped",
        "pallas_kernels/mhc/slices/backward.py",
        '(self.scratch["dh_in"].at[slot]) + added + scale * x',
        '(self.scratch["dh_in"].at[slot]) + 0.0 * added + scale * x',
        _kernels("mhc/test_mhc_slices", "test_every_tile_gives_the_gradients"),
    ),
    Fault(
        "mhc_pre kernel of slices: the matrix of the mixing behind it is transposed",
        "pallas_kernels/mhc/slices/backward.py",
        "(old * n + new if self.transposed else new * n + old)",
        "(new * n + old if self.transposed else old * n + new)",
        _kernels("mhc/test_mhc_slices", "test_every_tile_gives_the_gradients"),
    ),
)

HYPERGRAPH_KERNELS = (
    Fault(
        "kernel of small hypergraphs: the matrix is read while it is being copied, a race",
        "pallas_kernels/hypergraph/hypergraph_conv.py",
        "self.warp.threads, (), copy)\n        self.warp.barrier()\n",
        "self.warp.threads, (), copy)\n",
        _MIX,
    ),
    Fault(
        "kernel of small hypergraphs: a token is used while it is being copied, a race",
        "pallas_kernels/hypergraph/hypergraph_conv.py",
        "warp.wait_for_copies(tile.ahead)",
        "warp.wait_for_copies(tile.ahead + 1)",
        _MIX,
    ),
    Fault(
        "kernel of small hypergraphs: the features of a node take the place of its residual",
        "pallas_kernels/hypergraph/hypergraph_conv.py",
        "_add_columns(made, walk.node_columns(i, node + walk.nodes))",
        "_add_columns(made, walk.node_columns(i, node))",
        _MIX,
    ),
    Fault(
        "kernel of small hypergraphs: lanes behind the last token add to the gradients, no mask",
        "pallas_kernels/hypergraph/hypergraph_conv.py",
        "da = [warp.select(walk.inside(token), d, zero) for d in da]\n                totals",
        "da = [*da]\n                totals",
        _MIX,
    ),
)

REFERENCES = (
    Fault(
        "reference of spmm: the scale of the rows is dropped",
        "jaxgnn/ops/_graph/reference/spmm.py",
        "return _times(row_scale, sum_rows(messages, graph.indptr)).astype(x.dtype)",
        "return sum_rows(messages, graph.indptr).astype(x.dtype)",
        _tests("ops/graph/test_spmm", "test_reference_is_the_dense_matrix_product"),
    ),
    Fault(
        "segments: only the first of the ids is looked at for a negative one",
        "jaxgnn/ops/_aggregate/segments.py",
        "if least < 0 and not are_negative_fine:",
        "if np.asarray(ids)[:1] < 0 and not are_negative_fine:",
        _tests(
            "ops/aggregate/test_segments",
            "test_negative_ids_are_refused_wherever_concrete_ids_are",
        ),
    ),
    Fault(
        "reference of segment_softmax: the gradient has a wrong sign",
        "jaxgnn/ops/_graph/reference/segment_softmax.py",
        "return (weighted - probabilities.astype(accumulator)",
        "return (weighted + probabilities.astype(accumulator)",
        _tests("ops/graph/test_segment_softmax", "test_it_can_be_differentiated_twice"),
    ),
    Fault(
        "reference of maxk: a threshold that more than k entries reach, off by one",
        "jaxgnn/ops/_maxk/reference/maxk.py",
        "axis=-1) >= k\n",
        "axis=-1) > k\n",
        _tests("ops/maxk/test_maxk", "test_early_stop_is_the_documented_bisection"),
    ),
    Fault(
        "reference of fused_linear: the gradient to the bias sums rounded numbers",
        "jaxgnn/ops/_dense/reference/fused_linear.py",
        "summed = operand if round_products else dz",
        "summed = operand",
        _tests("ops/dense/test_fused_linear", "test_value_and_every_gradient_equal_float64"),
    ),
    Fault(
        "reference of mhc_post: the gradient to the matrix is transposed",
        "jaxgnn/ops/_mhc/reference/mhc_post.py",
        "left, right = (v, dy) if transposed else (dy, v)",
        "left, right = (dy, v) if transposed else (v, dy)",
        _tests("ops/mhc/test_mhc_post", "test_value_and_every_gradient_equal_float64"),
    ),
    Fault(
        "reference of sinkhorn: the first division is along the other axis",
        "jaxgnn/ops/_mhc/reference/sinkhorn.py",
        "p = jax.nn.softmax(values, first)\n    z = z if",
        "p = jax.nn.softmax(values, second)\n    z = z if",
        _tests(
            "ops/mhc/test_sinkhorn", "test_value_and_gradient_equal_float64_whatever_the_options"
        ),
    ),
    Fault(
        "reference of hypergraph_conv: weights of hyperedges are dropped",
        "jaxgnn/ops/_hypergraph/reference/hypergraph_conv.py",
        "middle = weight.astype(middle.dtype) * middle",
        "middle = 1.0 * middle",
        _tests("ops/hypergraph/test_hypergraph_conv", "test_the_reference_is_the_formula"),
    ),
    Fault(
        "reference of edge_mlp_aggregate: rows without edges are not masked",
        "jaxgnn/ops/_edge_mlp/reference/edge_mlp_aggregate.py",
        "dz = jnp.where(real[:, None], dz, 0)",
        "dz = jnp.where(real[:, None], dz, dz)",
        _tests(
            "ops/test_not_finite",
            "test_a_node_without_edges_has_no_part_in_the_gradients_of_the_layers",
        ),
    ),
)

GRADIENTS = (
    Fault(
        "gradient of spmm: the weights of the transposed graph are dropped",
        "jaxgnn/ops/_graph/spmm.py",
        "dx = spmm_of_request(request, transposed.with_weights(None), transposed.weights, dy)",
        "dx = spmm_of_request(request, transposed.with_weights(None), None, dy)",
        _tests(
            "ops/graph/test_spmm",
            "test_spmm_value_and_gradients_equal_float64_on_every_graph",
            "test_weights_of_padding_slots_may_be_anything",
        ),
    ),
    Fault(
        "gradient of sddmm: the graph is not transposed",
        "jaxgnn/ops/_graph/spmm.py",
        "db = spmm_of_request(request, transposed.with_weights(None), transposed.weights, a)",
        "db = spmm_of_request(request, structure, de, a)",
        _tests("ops/graph/test_spmm", "test_sddmm_value_and_gradients_equal_float64"),
    ),
    Fault(
        "gradient of maxk_spmm: the weights of the graph are dropped",
        "jaxgnn/ops/_maxk_spmm/maxk_spmm.py",
        "GRAD_VALUES(request, structure.with_weights(weights), cbsr, dy)",
        "GRAD_VALUES(request, structure, cbsr, dy)",
        _tests("ops/maxk_spmm/test_maxk_spmm", "test_value_and_gradients_equal_float64_at_every_k"),
    ),
    Fault(
        "gradient of mhc_post: the matrix is transposed",
        "jaxgnn/ops/_mhc/mhc_post.py",
        "_mhc_post = with_backward(MHC_POST, BACKWARD)",
        "_mhc_post = with_backward(\n"
        "    MHC_POST, lambda *a, transposed: BACKWARD(*a, transposed=not transposed)\n)",
        _tests("ops/mhc/test_mhc_post", "test_value_and_every_gradient_equal_float64"),
    ),
    Fault(
        "gradient of edge_mlp_aggregate: nodes without edges are not masked",
        "jaxgnn/ops/_edge_mlp/edge_mlp_aggregate.py",
        "h = jnp.where(jnp.any(dz != 0, axis=-1, keepdims=True), h, 0)",
        "h = jnp.where(jnp.any(dz != 0, axis=-1, keepdims=True), h, h)",
        _tests(
            "ops/test_not_finite",
            "test_a_node_without_edges_has_no_part_in_the_gradients_of_the_layers",
        ),
    ),
)

GRAPHS = (
    Fault(
        "self loops of attention: those that the graph has are kept",
        "jaxgnn/graph/local/self_loops.py",
        "kept = real & (rows != indices)",
        "kept = real",
        _tests(
            "graph/test_looped", "test_each_row_keeps_its_edges_in_order_and_ends_with_its_loop"
        ),
    ),
    Fault(
        "self loops of attention: a zero among others is divided by",
        "jaxgnn/graph/local/self_loops.py",
        "slopes = jnp.where(zeros_of_others == 0, product / others, 0)",
        "slopes = product / others",
        _tests("graph/test_looped", "test_a_product_with_a_zero_has_the_gradient_of_a_product"),
    ),
    Fault(
        "self loops of attention: the mean divides by the edges that were removed too",
        "jaxgnn/graph/local/self_loops.py",
        "sum_rows(jnp.asarray(kept).astype(jnp.int32)",
        "sum_rows(jnp.ones_like(kept, jnp.int32)",
        _tests("nn/test_attention_layers", "test_gradients_are_slopes_of_the_formula"),
    ),
    Fault(
        "messages of edges: what padding holds is read",
        "jaxgnn/nn/shared/layer.py",
        "return without_padding(graph, features.astype(x.dtype))",
        "return features.astype(x.dtype)",
        _tests(
            "nn/test_edge_convolutions",
            "test_values_and_gradients_are_those_of_the_formula_for_a_pair_on_a_padded_graph",
        ),
    ),
    Fault(
        "graph transformer: the gate is the other way round",
        "jaxgnn/nn/attention/transformer_conv.py",
        "return gate * root + (1 - gate) * y",
        "return gate * y + (1 - gate) * root",
        _tests(
            "nn/test_attention_layers",
            "test_a_layer_is_that_of_pytorch_geometric_also_on_a_padded_graph",
        ),
    ),
    Fault(
        "schedule: a row's last unit is left out, a wrong rounding",
        "jaxgnn/graph/plan/schedule.py",
        "-(-xp.diff(indptr) // most))",
        "xp.diff(indptr) // most)",
        _tests("graph/test_schedule", "test_pieces_cover_every_row_longest_first"),
    ),
    Fault(
        "schedule: unused units begin pieces, since the mask is missing",
        "jaxgnn/graph/plan/schedule.py",
        "begins = (rows < num_rows) & (",
        "begins = (rows <= num_rows) & (",
        _tests("graph/test_schedule", "test_pieces_cover_every_row_longest_first"),
    ),
    Fault(
        "normalisation: degrees of columns are not under a root",
        "jaxgnn/graph/csr/normalization.py",
        '"col_scale": scale(column_degrees, -0.5)',
        '"col_scale": scale(column_degrees, -1.0)',
        _tests(
            "graph/test_normalization",
            "test_counts_degrees_of_an_unweighted_graph_and_gives_it_no_weights",
        ),
    ),
    Fault(
        "compressed rows: ids of one byte for 257 columns, off by one",
        "jaxgnn/graph/csr/cbsr.py",
        "if dim <= 2**8:",
        "if dim <= 2**8 + 1:",
        ("tests/graph/test_cbsr.py",),
    ),
    Fault(
        "sums of rows: parts of a long row are counted wrongly, off by one",
        "jaxgnn/graph/plan/row_sums.py",
        "later = num_rows - 1 + offsets[rows] + part",
        "later = num_rows + offsets[rows] + part",
        _tests("graph/test_normalization", "test_degrees_of_a_hub_are_as_exact_as_a_short_sum"),
    ),
    Fault(
        "host arrays: bytes of the other order are taken as those of the machine",
        "jaxgnn/_arrays/arrays.py",
        'return array.astype(array.dtype.newbyteorder("="))',
        'return array.view(array.dtype.newbyteorder("="))',
        _tests("graph/test_host_arrays", "test_arrays_of_the_other_byte_order_give_the_same"),
    ),
    Fault(
        "host arrays: large integers of 64 bits are cut without an error",
        "jaxgnn/_arrays/arrays.py",
        "if not bounds.min <= value <= bounds.max:",
        "if bounds.min > value:",
        _tests("graph/test_host_arrays", "test_integers_that_jax_would_cut_are_refused"),
    ),
    Fault(
        "constructors: from_edges does not name from_edge_index",
        "jaxgnn/graph/csr/constructors.py",
        'is_other = "edge_index" in options or "missing" in str(error)',
        'is_other = "edge_index" in options',
        _tests(
            "graph/test_edge_data",
            "test_from_edges_of_an_edge_index_names_the_constructor_that_takes_it",
        ),
    ),
    Fault(
        "names: letters are compared by case, so GCNconv is not GCNConv",
        "jaxgnn/_suggestions.py",
        "spelled = {other.lower(): other for other in reversed(names)}",
        "spelled = {other: other for other in reversed(names)}",
        _tests("test_suggestions", "test_a_missing_name_is_answered_with_the_one_that_was_meant"),
    ),
    Fault(
        "exported files: the hash is there, and is not compared",
        "jaxgnn/_exporting/file.py",
        "if texts.get(_HASH) != content_hash(",
        "if texts.get(_HASH) is content_hash(",
        _tests(
            "exporting/test_forged_files",
            "test_damaged_bytes_are_refused_before_the_program_is_read",
        )
        + _tests("exporting/test_export", "test_a_file_that_can_not_be_run_here_says_what_it_is"),
    ),
    Fault(
        "exported files: a result of fewer arrays than the program returns is taken",
        "jaxgnn/_exporting/load.py",
        "_require(count == len(arrays),",
        "_require(count <= len(arrays),",
        _tests("exporting/test_forged_files", "test_a_description_that_is_not_true_is_named"),
    ),
    Fault(
        "exported files: types of the inputs are not compared with the program",
        "jaxgnn/_exporting/load.py",
        '"inputs": (inputs, program.inputs),',
        '"inputs": (inputs, inputs),',
        _tests("exporting/test_forged_files", "test_a_description_that_is_not_true_is_named"),
    ),
    Fault(
        "positions: copies of repeated eigenvalues are missed",
        "jaxgnn/graph/points/positions.py",
        "<= last + _EQUAL",
        "<= last + 2",
        _tests(
            "graph/test_positions",
            "test_a_large_graph_gets_the_lowest_frequencies_with_all_their_copies",
        ),
    ),
)

_EDGE_CONVOLUTIONS = _tests(
    "nn/test_edge_convolutions",
    "test_values_and_gradients_are_those_of_the_formula_for_a_pair_on_a_padded_graph",
)
LAYERS = (
    Fault(
        "messages of edges: the gradient of a sender is a sum over other edges than its own",
        "jaxgnn/ops/_aggregate/edge_ends.py",
        'of_edges = of_edges.at[..., order, :].get(mode="promise_in_bounds", unique_indices=True)',
        "of_edges = of_edges * 1",
        _EDGE_CONVOLUTIONS,
    ),
    Fault(
        "messages of edges: EdgeConv's first layer reads the sender and not the difference",
        "jaxgnn/nn/conv/edge_convolutions.py",
        "jnp.concatenate([of_receivers - of_differences, of_differences])",
        "jnp.concatenate([of_receivers, of_differences])",
        _EDGE_CONVOLUTIONS,
    ),
    Fault(
        "messages of edges: PNAConv adds the receiver's part to a sum once, not for each edge",
        "jaxgnn/nn/conv/pna.py",
        "degrees.astype(shift.dtype) * shift if name",
        "shift if name",
        _EDGE_CONVOLUTIONS,
    ),
    Fault(
        "messages of edges: PNAConv has no activation between layers of a tower",
        "jaxgnn/nn/conv/pna.py",
        "layer(function_of(self.activation)(x), self.dtype)",
        "layer(x, self.dtype)",
        _EDGE_CONVOLUTIONS,
    ),
    Fault(
        "messages of edges: CFConv counts edges beyond the cutoff",
        "jaxgnn/nn/conv/schnet.py",
        "is_inside = distances < cutoff",
        "is_inside = distances < jnp.inf",
        _EDGE_CONVOLUTIONS,
    ),
    Fault(
        "messages of edges: GatedGraphConv's gate is the other way round",
        "jaxgnn/nn/conv/gated_graph_conv.py",
        "return (1 - update) * new + update * h",
        "return update * new + (1 - update) * h",
        _EDGE_CONVOLUTIONS,
    ),
    Fault(
        "messages of edges: a function of messages is given what padding holds",
        "jaxgnn/nn/messages/message_functions.py",
        "features = jnp.where(is_real, features, jnp.where(count > 0, last, 0))",
        "features = jnp.where(is_real, features, features)",
        _tests(
            "nn/test_message_functions",
            "test_one_step_takes_a_pair_several_reductions_and_another_width_also_on_a_padded_graph",
        ),
    ),
    Fault(
        "GCNConv: the bias is forgotten",
        "jaxgnn/nn/conv/convolutions.py",
        "return self._biased(aggregated)",
        "return aggregated",
        _tests("nn/test_gcn", "test_gcn_is_that_of_pytorch_geometric"),
    ),
    Fault(
        "GCNConv: degrees do not count the self loops that are added",
        "jaxgnn/graph/csr/normalization.py",
        "degrees = degrees + missing.astype(dtype)",
        "pass",
        _tests("nn/test_gcn", "test_gcn_is_that_of_pytorch_geometric"),
    ),
    Fault(
        "GCNConv: self loops are added to nodes that have one",
        "jaxgnn/graph/csr/normalization.py",
        "looped = jnp.where(rows == indices, indices, num_nodes)",
        "looped = jnp.where(rows == indices, num_nodes, num_nodes)",
        _tests("nn/test_gcn", "test_gcn_is_that_of_pytorch_geometric"),
    ),
    Fault(
        "GINConv: epsilon is dropped",
        "jaxgnn/nn/conv/convolutions.py",
        "total = (1 + self.epsilon[...].astype(neighbors.dtype)) * self._dense(h.dst) + neighbors",
        "total = self._dense(h.dst) + neighbors",
        _tests("nn/test_convolutions", "test_gin_is_its_formula_with_and_without_an_mlp"),
    ),
    Fault(
        "MaxKGNN: all layers but the first have the norm of the layer before, off by one",
        "jaxgnn/models/_maxk_gnn.py",
        "h = self.norms[i](h)",
        "h = self.norms[max(i - 1, 0)](h)",
        _tests(
            "models/test_maxk_gnn",
            "test_every_parameter_gets_a_gradient_and_all_implementations_agree",
            "test_the_network_is_the_published_sequence",
        ),
    ),
    Fault(
        "GraphTransformer: all graphs of a batch read the virtual nodes of the first",
        "jaxgnn/models/_virtual_nodes.py",
        "of_graphs = graph_ids(graph, xp)[:, None] * count",
        "of_graphs = 0 * graph_ids(graph, xp)[:, None] * count",
        _tests(
            "models/test_graph_transformer",
            "test_through_virtual_nodes_all_nodes_of_a_graph_reach_each_other_and_no_others",
        ),
    ),
    Fault(
        "GraphTransformer: nodes that are masked out are not sorted behind the others",
        "jaxgnn/models/_virtual_nodes.py",
        "indices = xp.argsort(~mask, stable=True).astype(np.int32)",
        "indices = xp.arange(nodes, dtype=np.int32)",
        _tests(
            "models/test_graph_transformer",
            "test_nodes_that_are_masked_out_change_nothing_wherever_they_are",
        ),
    ),
    Fault(
        "GraphTransformer: all graphs of a batch have the random signs of the first",
        "jaxgnn/models/_graph_transformer.py",
        "return positions * signs[graph_ids(graph)]",
        "return positions * signs[0 * graph_ids(graph)]",
        _tests(
            "models/test_graph_transformer",
            "test_in_training_each_eigenvector_of_each_graph_has_a_random_sign",
        ),
    ),
)

READERS = (
    Fault(
        "GraphSAINT reader: labels go to nodes in the order of the file",
        "jaxgnn/datasets/readers/graphsaint.py",
        "labels[ids] = values",
        "labels[:] = values",
        ("tests/datasets/test_readers.py",),
    ),
    Fault(
        "GraphSAINT reader: features are standardised by all nodes, not those of training",
        "jaxgnn/datasets/readers/graphsaint.py",
        "seen = features[train].astype(np.float64)",
        "seen = features.astype(np.float64)",
        ("tests/datasets/test_readers.py",),
    ),
    Fault(
        "OGB reader: a mean over edges counts receivers alone",
        "jaxgnn/datasets/readers/ogb.py",
        "        degree += np.bincount(senders, minlength=num_nodes)\n",
        "",
        ("tests/datasets/test_readers.py",),
    ),
    Fault(
        "sparse matrices: rows and columns of a coo matrix are exchanged",
        "jaxgnn/datasets/formats/matrices.py",
        'senders, receivers = arrays["row"], arrays["col"]',
        'senders, receivers = arrays["col"], arrays["row"]',
        ("tests/datasets/test_readers.py", "tests/datasets/test_hostile_files.py"),
    ),
    Fault(
        "Planetoid reader: rows of the test nodes are taken in the order of their numbers",
        "jaxgnn/datasets/readers/planetoid.py",
        "features[test], labels[test] = tested, test_labels",
        "features[np.sort(test)], labels[np.sort(test)] = tested, test_labels",
        ("tests/datasets/test_planetoid.py",),
    ),
    Fault(
        "whole graphs: labels that are not known count in the loss of tasks",
        "experiments/graphs/task.py",
        "known = there[:, None] & ~jnp.isnan(labels)",
        "known = there[:, None] & jnp.ones(labels.shape, bool)",
        _tests(
            "experiments/test_graphs",
            "test_tasks_are_scored_as_ogb_scores_them_and_unknown_labels_do_not_count",
        ),
    ),
    Fault(
        "whole graphs: an epoch has the order of the one before",
        "experiments/graphs/data.py",
        "rng = np.random.default_rng((self.seed, epoch))",
        "rng = np.random.default_rng(self.seed)",
        _tests(
            "experiments/test_graphs",
            "test_every_epoch_has_each_training_graph_once_in_batches_of_one_shape",
        ),
    ),
    Fault(
        "TU reader: a set without any edge is an error",
        "jaxgnn/datasets/readers/tu.py",
        "read_csv(path, dtype, contents, columns, may_be_empty=True)",
        "read_csv(path, dtype, contents, columns)",
        _tests("datasets/test_tu", "test_a_set_without_any_edge_is_a_set_of_nodes"),
    ),
    Fault(
        "pickles: csr_array of scipy is not read",
        "jaxgnn/datasets/formats/pickle_parts.py",
        '_CSR_CLASSES = ("csr_matrix", "csr_array")',
        '_CSR_CLASSES = ("csr_matrix",)',
        _tests(
            "datasets/test_planetoid",
            "test_planetoid_may_have_arrays_of_scipy_in_the_place_of_matrices",
        ),
    ),
)

INTEROP = (
    Fault(
        "from_pyg: matrices are read in the order of their entries, and not transposed",
        "jaxgnn/interop/_pyg_names.py",
        "TRANSPOSED = Form(lambda a: a.T, ",
        "TRANSPOSED = Form(lambda a: a.reshape(a.shape[::-1]), ",
        _tests(
            "interop/test_pyg",
            "test_a_layer_computes_the_formula_of_the_state_dict_that_it_was_given",
        ),
    ),
    Fault(
        "from_pyg: HGTConv's keys are read as queries",
        "jaxgnn/interop/_pyg_names.py",
        "return np.concatenate([second, first, third])",
        "return np.concatenate([first, second, third])",
        _tests(
            "interop/test_pyg",
            "test_a_layer_computes_the_formula_of_the_state_dict_that_it_was_given",
        ),
    ),
    Fault(
        "from_pyg: a parameter that the state dict lacks keeps its value",
        "jaxgnn/interop/pyg.py",
        "    if missing:\n",
        "    if len(missing) > 9:\n",
        _tests(
            "interop/test_pyg",
            "test_a_parameter_that_the_state_dict_lacks_is_an_error_that_names_it",
        ),
    ),
    Fault(
        "weights of edges: layers that do not apply them take the graph",
        "jaxgnn/nn/shared/layer.py",
        "if not self.applies_weights:",
        "if self.applies_weights is None:",
        _tests(
            "nn/test_edge_weights",
            "test_a_layer_that_does_not_apply_weights_refuses_them_and_says_what_to_do",
        ),
    ),
    Fault(
        "weights of edges: ops that do not apply them take the graph",
        "jaxgnn/graph/csr/require_graph.py",
        "if graph.weights is None and (scales or not graph.is_normalized):",
        "if scales or not graph.is_normalized:",
        _tests(
            "ops/test_edge_weights",
            "test_an_op_applies_weights_or_refuses_them_and_says_what_to_do",
        ),
    ),
    Fault(
        "top-k pooling: the number of nodes is rounded in float32",
        "jaxgnn/nn/pooling/top_k_pooling.py",
        "kept = -(-counts * ratio.numerator // ratio.denominator)",
        "kept = np.ceil(np.float32(float(ratio)) * counts.astype(np.float32)).astype(np.int64)",
        _tests("nn/test_readouts", "test_top_k_pooling_keeps_the_exact_number_of_nodes"),
    ),
    Fault(
        "fractions: a share is the float, not the number that is meant",
        "jaxgnn/_fractions.py",
        "Fraction(str(value)).limit_denominator(10**9)",
        "Fraction(float(value))",
        (
            *_tests(
                "test_fractions", "test_parts_of_classes_and_of_pairs_have_their_decimal_share"
            ),
            *_tests("datasets/test_synthetic", "test_splits_have_their_decimal_share_of_the_nodes"),
        ),
    ),
    Fault(
        "batch norm: a batch of padding alone counts",
        "jaxgnn/nn/norms/graph_norms.py",
        "running[...] = jnp.where(has_nodes, running[...], kept)",
        "running[...] = jnp.where(has_nodes | True, running[...], kept)",
        _tests(
            "nn/test_graph_norms",
            "test_a_batch_without_nodes_leaves_the_averages_and_has_finite_gradients",
        ),
    ),
    Fault(
        "nn: BatchNorm writes its averages when it evaluates",
        "jaxgnn/nn/norms/graph_norms.py",
        "        if norm.use_running_average:\n            return norm(x)\n        before",
        "        before",
        _tests("nn/test_graph_norms", "test_a_masked_batch_norm_is_that_of_the_real_nodes"),
    ),
    Fault(
        "fuse: what a call changes in its arguments is lost",
        "jaxgnn/fusion/fused.py",
        "if before.changes(given):",
        "if before.changes(given) and self._is_module:",
        _tests("fusion/test_methods", "test_streams_of_random_numbers_that_are_arguments_go_on"),
    ),
    Fault(
        "fuse: an error of a rule ends the function",
        "jaxgnn/fusion/fused.py",
        "except BaseException as error:",
        "except OSError as error:",
        _tests(
            "fusion/test_failing_rules",
            "test_a_rule_that_raises_leaves_the_function_as_it_was",
        ),
    ),
    Fault(
        "fuse: messages that are summed twice are computed twice on a GPU",
        "jaxgnn/fusion/rules/edge_mlp.py",
        'case = "" if are_read_once else "edge_mlp at both ends"',
        'case = ""',
        _tests(
            "fusion/test_policy", "test_messages_summed_at_both_ends_are_computed_once_on_a_gpu"
        ),
    ),
    Fault(
        "aggregate: the reference's gradient of messages is not rounded to their dtype",
        "jaxgnn/ops/_aggregate/reference/aggregate.py",
        "return _contributions(graph, wide, slots, terms).astype(x.dtype)",
        "return _contributions(graph, wide, slots, terms)",
        _tests("ops/test_result_types", "test_every_implementation_returns_the_same_types"),
    ),
    Fault(
        "sharded: a sparse matrix within an argument is taken for arrays of rows",
        "jaxgnn/distributed/_sharded.py",
        "return jax.tree.leaves(argument, is_leaf=_is_sharded)",
        "return jax.tree.leaves(argument)",
        _tests(
            "distributed/test_networks",
            "test_a_sparse_matrix_within_an_argument_is_that_of_the_device",
        ),
    ),
    Fault(
        "from_pyg: of two arrays for one parameter the last is taken, whatever the first",
        "jaxgnn/interop/pyg.py",
        "if key in arrays and not ",
        "if key in arrays and key is None and not ",
        _tests(
            "interop/test_pyg",
            "test_widths_of_both_ends_and_shared_weights_have_names_of_their_own",
        ),
    ),
)

TRAINING = (
    Fault(
        "training step: every step has the same random numbers",
        "jaxgnn/training/_step.py",
        "key = jax.random.fold_in(key, number)",
        "key = jax.random.fold_in(key, 0 * number)",
        _tests(
            "training/test_fit", "test_dropout_differs_from_step_to_step_and_repeats_with_the_seed"
        ),
    ),
    Fault(
        "training step: the moving average keeps a share of the initial parameters, off by one",
        "jaxgnn/training/_step.py",
        "1.0 / number.astype(jnp.float32)",
        "1.0 / (number + 1).astype(jnp.float32)",
        _tests(
            "training/test_average",
            "test_the_average_is_that_of_its_formula_and_training_is_as_without_it",
        ),
    ),
    Fault(
        "training loop: the best is the smallest where the largest was asked for",
        "jaxgnn/training/_loop.py",
        'sign = 1 if config.select_mode == "max" else -1',
        'sign = -1 if config.select_mode == "max" else 1',
        _tests("training/test_fit", "test_best_model_is_that_of_the_best_evaluation"),
    ),
    Fault(
        "training loop: a resumed run forgets the best model",
        "jaxgnn/training/_loop.py",
        'self.best = None if info["best"] is None else Best(**info["best"])',
        "self.best = None",
        _tests("training/test_resume", "test_resumed_run_equals_the_whole_one_bit_for_bit"),
    ),
    Fault(
        "data parallelism: gradients and losses of the parts are added up",
        "jaxgnn/training/_step.py",
        "return jax.lax.pmean(leaf, self.axis)",
        "return jax.lax.psum(leaf, self.axis)",
        ("tests/training/test_data_parallel.py",),
    ),
    Fault(
        "data parallelism: all parts draw the same",
        "jaxgnn/training/_step.py",
        "key = jax.random.fold_in(key, jax.lax.axis_index(self.axis))",
        "key = jax.random.fold_in(key, 0)",
        ("tests/training/test_data_parallel.py",),
    ),
    Fault(
        "data parallelism: parts of a batch of graphs count by the known labels of all parts",
        "experiments/graphs/data.py",
        "max(known, 1) / self.devices",
        "max(known, 1)",
        ("tests/experiments/test_devices.py",),
    ),
    Fault(
        "event files: numbers beyond float32 end the export",
        "jaxgnn/training/_export.py",
        "except OverflowError:",
        "except ZeroDivisionError:",
        _tests("training/test_export", "test_numbers_beyond_float32_are_infinite_in_event_files"),
    ),
    Fault(
        "pages: bytes that are no UTF-8 are not escaped",
        "jaxgnn/training/files.py",
        'write_bytes(path, printable(text).encode("utf-8"))',
        'write_bytes(path, text.encode("utf-8"))',
        _tests(
            "training/test_report", "test_bytes_that_are_no_utf8_are_escaped_wherever_they_stand"
        ),
    ),
    Fault(
        "command: a puzzle is checked after JAX is imported",
        "jaxgnn/_command_line.py",
        "from jaxgnn import _sudoku\n",
        "from jaxgnn import _info, _sudoku\n",
        _tests("test_command_line", "test_errors_of_the_command_line_do_not_wait_for_jax"),
    ),
    Fault(
        "solver: compilation counts for nothing",
        "jaxgnn/pretrained/_sudoku.py",
        "self.compile_seconds += time.perf_counter() - begin",
        "pass",
        _tests(
            "pretrained/test_sudoku",
            "test_seconds_are_those_of_the_whole_call_and_compilation_is_apart",
        ),
    ),
    Fault(
        "experiments: the options of a command need JAX",
        "experiments/_options.py",
        "import tyro\n",
        "import jax\nimport tyro\n",
        _tests("experiments/test_command_lines", "test_errors_and_help_do_not_wait_for_jax"),
    ),
)

_LINKS = "metrics/test_metrics"
_DRAWS = _tests(
    "sampling/test_negative_edges", "test_pairs_have_the_chances_that_their_weights_give"
)
_READOUTS = "nn/test_readouts"

LINKS = (
    Fault(
        "links: examples of equal scores are not one group of thresholds",
        "jaxgnn/metrics/_binary.py",
        "changes = (ordered[..., 1:] != ordered[..., :-1]) |",
        "changes = (ordered[..., 1:] == ordered[..., 1:]) |",
        _tests(_LINKS, "test_binary_scores_are_those_of_scikit_learn"),
    ),
    Fault(
        "links: examples that the mask leaves out are counted",
        "jaxgnn/metrics/_binary.py",
        "(~counted, scores, counted & (labels > 0)), dimension=-1, num_keys=2",
        "(~counted, scores, labels > 0), dimension=-1, num_keys=2",
        _tests(_LINKS, "test_a_batch_with_masks_and_unlabelled_examples_is_scored_list_by_list"),
    ),
    Fault(
        "links: a hit is one rank too far",
        "jaxgnn/metrics/_ranking.py",
        "hit = (halves <= 2 * k)",
        "hit = (halves <= 2 * k + 2)",
        _tests(_LINKS, "test_hits_with_shared_negatives_are_those_of_ogb"),
    ),
    Fault(
        "links: of the receivers that a sender may draw, one beside an edge is the edge",
        "jaxgnn/sampling/_negative_edges.py",
        "before = (sampler.allowed_before[middle] <= drawn)",
        "before = (sampler.allowed_before[middle] < drawn)",
        _DRAWS,
    ),
    Fault(
        "links: senders of few receivers are as likely as others",
        "jaxgnn/sampling/_negative_edges.py",
        "chances = np.cumsum(allowed * of_senders.astype(np.float64))",
        "chances = np.cumsum((allowed > 0) * of_senders.astype(np.float64))",
        _DRAWS,
    ),
    Fault(
        "links: the two directions of a pair are split apart",
        "jaxgnn/datasets/records/edge_split.py",
        "if undirected else ends",
        "if not undirected else ends",
        _tests("datasets/test_edge_split", "test_nothing_leaks_and_nothing_is_lost"),
    ),
    Fault(
        "links: readouts: padding nodes are in the variance",
        "jaxgnn/nn/shared/graph_ids.py",
        "masked = rows_where(jnp.asarray(batch.node_mask), wide)\n    return sum_rows(masked,",
        "return sum_rows(wide,",
        _tests(_READOUTS, "test_each_reduction_is_that_of_the_single_graphs"),
    ),
    Fault(
        "links: readouts: pooling keeps one node too few",
        "jaxgnn/nn/pooling/top_k_pooling.py",
        "return order, within < of_nodes(wanted, batch)",
        "return order, within + 1 < of_nodes(wanted, batch)",
        _tests(_READOUTS, "test_top_k_pooling_keeps_the_best_nodes_and_the_edges_between_them"),
    ),
    Fault(
        "links: readouts: GraphNorm takes away the whole mean",
        "jaxgnn/nn/norms/graph_norms.py",
        "return x - mean(x) * self.mean_scale[...].astype(x.dtype)",
        "return x - mean(x) + 0 * self.mean_scale[...].astype(x.dtype)",
        _tests("nn/test_graph_norms", "test_a_norm_is_that_of_the_single_graphs"),
    ),
    Fault(
        "links: scores of 64 bits lose their lower halves",
        "jaxgnn/metrics/_order.py",
        "return (values - rest) / base, rest.astype(np.float64)",
        "return (values - rest) / base, 0 * rest.astype(np.float64)",
        _tests(_LINKS, "test_scores_of_the_host_are_compared_in_all_their_bits"),
    ),
    Fault(
        "links: scores of two dtypes are compared after rounding to the common one",
        "jaxgnn/metrics/_order.py",
        "if not all(held):",
        "if not any(held):",
        _tests(_LINKS, "test_numbers_of_two_dtypes_are_compared_without_rounding"),
    ),
    Fault(
        "links: labels of 64 bits are cut before they are compared with classes",
        "jaxgnn/metrics/_arrays.py",
        "if not isinstance(labels, np.ndarray):",
        "if labels.dtype != object:",
        _tests(_LINKS, "test_labels_of_64_bits_do_not_become_classes"),
    ),
)

_PROPAGATION = _tests(
    "nn/test_propagation",
    "test_a_layer_computes_its_formula",
    "test_under_jit_a_layer_reads_a_graph_that_is_an_argument_and_leading_axes",
)

RELATIONS = (
    Fault(
        "propagation: APPNP does not take away the share of the node's own features",
        "jaxgnn/nn/conv/propagation.py",
        "z = (1 - self.alpha) * step(z, self.implementation)",
        "z = step(z, self.implementation)",
        _PROPAGATION,
    ),
    Fault(
        "propagation: the last step of Clenshaw's algorithm is doubled like the others",
        "jaxgnn/nn/conv/propagation.py",
        "return terms[0] + laplacian(now) - after",
        "return terms[0] + 2 * laplacian(now) - after",
        _PROPAGATION,
    ),
    Fault(
        "propagation: eigenvalues of a Laplacian that is not normalised are bounded by 2",
        "jaxgnn/nn/conv/propagation.py",
        "bound = 2 * max_over_devices(graph, jnp.max(own))",
        "bound = 2 * jnp.max(jnp.ones(()))",
        _tests(
            "nn/test_propagation",
            "test_filters_take_a_bound_of_the_eigenvalues_unless_a_call_has_one",
        ),
    ),
    Fault(
        "propagation: a random walk is divided by the degrees of the receivers",
        "jaxgnn/nn/conv/propagation.py",
        "return of_node * z - of_edge * ops.spmm(p, sent, **options)",
        "return of_node * z - of_edge * ops.spmm(p, z, **options) * (sent / z)",
        _PROPAGATION,
    ),
    Fault(
        "propagation: a traced graph keeps its self loops in the Laplacian",
        "jaxgnn/nn/conv/propagation.py",
        "jnp.where(is_loop, 0, weights)",
        "weights",
        _PROPAGATION,
    ),
    Fault(
        "propagation: the second matrix of GCNII is applied to both terms",
        "jaxgnn/nn/conv/gcnii.py",
        "self._apply(self.initial_linear, own)",
        "self._apply(self.initial_linear, support)",
        _PROPAGATION,
    ),
    Fault(
        "propagation: LEConv takes one receiver away for each node, and not for each edge",
        "jaxgnn/nn/conv/convolutions.py",
        "- totals * self._apply(",
        "- self._apply(",
        _PROPAGATION,
    ),
    Fault(
        "relations: all edges of one graph go to its first relation",
        "jaxgnn/graph/hetero/hetero_graph.py",
        "first_row = at[receiver].start * count + place",
        "first_row = at[receiver].start * count",
        _tests("graph/test_hetero", "test_as_one_graph_each_relation_has_the_nodes_of_its_types"),
    ),
    Fault(
        "relations: senders begin where the receivers of the relation before end",
        "jaxgnn/graph/hetero/hetero_graph.py",
        "columns += graph.num_cols",
        "columns += graph.num_rows",
        _tests("nn/test_relations", "test_hgt_computes_its_formula_under_jit"),
    ),
    Fault(
        "relations: HGT forgets the numbers of relations and heads",
        "jaxgnn/nn/hetero/hgt.py",
        "matrices = matrices * factors[..., None, None]",
        "matrices = matrices * 1",
        _tests("nn/test_relations", "test_hgt_computes_its_formula_under_jit"),
    ),
    Fault(
        "relations: blocks of one relation are taken for relations of one block",
        "jaxgnn/nn/hetero/rgcn.py",
        "kernel.swapaxes(0, 1).reshape(num_blocks",
        "kernel.reshape(num_blocks",
        _tests(
            "nn/test_relations",
            "test_rgcn_computes_its_formula_from_graphs_and_from_edge_types",
            "test_rgcn_reads_relations_of_two_types_under_jit_and_leading_axes",
        ),
    ),
    Fault(
        "relations: padding edges of a graph belong to the next node",
        "jaxgnn/graph/hetero/relational.py",
        "real.append(rows < graph.num_rows)",
        "real.append(rows <= graph.num_rows)",
        _tests(
            "graph/test_hetero",
            "test_joined_relations_have_all_receivers_and_the_senders_of_each_relation",
        ),
    ),
)

DISTRIBUTED = (
    Fault(
        "edges of a device: numbers behind dropped edges count the own device alone",
        "jaxgnn/graph/local/local_graph.py",
        "lax.all_gather(part, axis, tiled=True) for part",
        "part for part",
        ("tests/distributed/test_every_layer.py",),
    ),
    Fault(
        "normalisation on devices: senders have the degrees of the device's own nodes",
        "jaxgnn/graph/local/local_graph.py",
        "return self.halo.exchange(of_nodes)",
        "return jnp.resize(of_nodes, (self.halo.table_rows, *of_nodes.shape[1:]))",
        ("tests/distributed/test_every_layer.py",),
    ),
    Fault(
        "virtual nodes: the largest score is that of the own nodes",
        "jaxgnn/models/_virtual_nodes.py",
        "max_over_devices(self.graph, jax.lax.stop_gradient(jnp.max(scores, axis=-1)))",
        "jax.lax.stop_gradient(jnp.max(scores, axis=-1))",
        ("tests/distributed/test_every_layer.py",),
    ),
    Fault(
        "halo exchange: a row that several devices read gets the gradient of the last one alone",
        "jaxgnn/graph/local/halo.py",
        'total.at[rows].add(values, mode="drop")',
        'total.at[rows].set(values, mode="drop")',
        ("tests/distributed/test_halo_exchange.py",),
    ),
    Fault(
        "blocks: lists of rows begin one place too early in the table",
        "jaxgnn/distributed/_blocks.py",
        "begin = columns.rows + owner * self.slots",
        "begin = columns.rows + owner * self.slots - 1",
        ("tests/distributed/test_halo_exchange.py",),
    ),
    Fault(
        "means over nodes: padding rows count",
        "jaxgnn/graph/local/local_graph.py",
        "counted = jnp.where(graph.is_real_row, counted, 0)",
        "counted = jnp.where(graph.is_real_row, counted, counted)",
        ("tests/distributed/test_networks.py",),
    ),
    Fault(
        "dropout: draws go by the row of the device and not by the node",
        "jaxgnn/nn/shared/node_draws.py",
        "ids = halo.ids.astype(jnp.uint32)",
        "ids = jnp.arange(halo.rows, dtype=jnp.uint32)",
        ("tests/distributed/test_networks.py",),
    ),
    Fault(
        "dropout: draws go by the edge slot of the device and not by the edge",
        "jaxgnn/graph/local/edge_numbers.py",
        "first = self.first[rows]",
        "first = 0 * self.first[rows]",
        ("tests/distributed/test_networks.py",),
    ),
    Fault(
        "overlap: own columns get the scales of the first device",
        "jaxgnn/graph/local/local_graph.py",
        "begin = self.halo.first_own()",
        "begin = 0 * self.halo.first_own()",
        ("tests/distributed/test_two_kinds.py",),
    ),
    Fault(
        "watch: a process that is ahead counts as one that is behind",
        "jaxgnn/training/processes.py",
        "other.number >= place.number",
        "other.number == place.number",
        ("tests/training/test_watch.py",),
    ),
)

_APPLIES = "test_a_rule_applies_and_gives_the_same"
_DOES_NOT = "test_a_rule_does_not_apply_where_it_would_be_wrong"
_OWN_AXIS = "test_a_factor_varies_along_its_own_axis"
FUSION = (
    Fault(
        "fusion: attention of one graph for a batch of its size",
        "jaxgnn/fusion/rules/neighbour_sum.py",
        "or parts.has_weights or parts.product.axis != 0:",
        "or parts.has_weights:",
        _tests("fusion/test_rules", _APPLIES),
    ),
    Fault(
        "fusion: values that are not those of the scores of GATv2",
        "jaxgnn/fusion/rules/attention.py",
        "need(of_columns is table and _have_type_of(table, [of_rows]))",
        "need(_have_type_of(table, [of_rows]))",
        _tests("fusion/test_rules", _DOES_NOT),
    ),
    Fault(
        "fusion: keys of other neighbours than the values",
        "jaxgnn/fusion/rules/attention.py",
        "if (ids[graph.order[: min(count, graph.num_live)]] != own[:count]).any():",
        "if ids.size < own.size:",
        _tests("fusion/test_rules", _DOES_NOT),
    ),
    Fault(
        "fusion: a scatter of ids keeps slices that begin outside of the array",
        "jaxgnn/fusion/integers.py",
        "exist = ((starts >= 0) & (starts <= lasts)).all(-1)",
        "exist = (starts >= 0).all(-1)",
        _tests("fusion/test_integers", "test_gathers_and_scatters_give_what_jax_gives"),
    ),
    Fault(
        "fusion: the maximum with zero is relu",
        "jaxgnn/fusion/templates.py",
        '("relu", jax.nn.relu),',
        '("relu", jax.nn.relu), ("relu", lambda x: jnp.maximum(x, 0)),',
        _tests("fusion/test_rules", "test_message_networks_of_another_form_are_none"),
    ),
    Fault(
        "fusion: edges whose receiver is out of range count for the last one",
        "jaxgnn/fusion/edges.py",
        "return own(np.where((ids >= 0) & (ids < size), ids, -1))",
        "return own(np.clip(ids, 0, size - 1))",
        _tests("fusion/test_rules", _APPLIES),
    ),
    Fault(
        "fusion: a product before a sum multiplies rows that no edge reads",
        "jaxgnn/fusion/rules/linear_order.py",
        "rows = where_rows(is_read, values[table], found.gather.axis).astype(left.aval.dtype)",
        "rows = values[table].astype(left.aval.dtype)",
        _tests("fusion/test_linear_order", "test_rows_that_no_edge_reads_may_be_nan"),
    ),
    Fault(
        "fusion: segments of which all logits are -inf are NaN",
        "jaxgnn/fusion/rules/softmax.py",
        "is_guarded = guards_shift and (guards_total or has_epsilon)",
        "is_guarded = False",
        _tests("fusion/test_rules", "test_segments_whose_logits_are_all_minus_infinity_give_zeros"),
    ),
    Fault(
        "fusion: the last of an even number of divisions is left out",
        "jaxgnn/fusion/rules/sinkhorn.py",
        "return (divisions + 1) // 2, divisions % 2 == 0",
        "return (divisions + 1) // 2, False",
        _tests(
            "fusion/proofs/test_sinkhorn",
            "test_divisions_in_turn_are_iterations_and_one_more_if_their_number_is_even",
        ),
    ),
    Fault(
        "fusion: answers about arrays that are gone are kept",
        "jaxgnn/fusion/view.py",
        "weakref.ref(leaf, forget)",
        "weakref.ref(leaf)",
        _tests(
            "fusion/test_constants",
            "test_the_store_lets_answers_go_with_the_arrays_that_they_are_about",
        ),
    ),
    Fault(
        "fusion: numbers of heads alone are reshaped to edges",
        "jaxgnn/fusion/rules/neighbour_sum.py",
        "jnp.broadcast_to(values.reshape(values.shape[:2]), (edges, heads))",
        "jnp.broadcast_to(values.reshape(edges, -1), (edges, heads))",
        _tests("fusion/test_rules", "test_numbers_of_heads_alone_are_weights_of_all_edges"),
    ),
    Fault(
        "fusion: an axis behind a reshape is the one at its place",
        "jaxgnn/fusion/products.py",
        "return tuple(None if n == 1 else next(kept) for n in inner)",
        "return tuple(None if n == 1 else d for d, n in enumerate(inner))",
        _tests("fusion/test_axes", _OWN_AXIS),
    ),
    Fault(
        "fusion: a softmax over as many heads as edges is one over edges",
        "jaxgnn/fusion/rules/neighbour_sum.py",
        "if factor.is_inverse or factor.labels[:1] != (product.axis,):",
        "if factor.is_inverse:",
        _tests("fusion/test_axes", _OWN_AXIS),
    ),
    Fault(
        "fusion: inner products of merged heads are those of each head",
        "jaxgnn/fusion/products.py",
        "    found = Product(tuple(atom.aval.shape), axis)",
        "    atom = before_merge(view, atom, axis)\n"
        "    found = Product(tuple(atom.aval.shape), axis)",
        _tests("fusion/test_axes", _OWN_AXIS),
    ),
    Fault(
        "fusion: an axis behind a reshape is the one at its place, in random programs",
        "jaxgnn/fusion/products.py",
        "return tuple(None if n == 1 else next(kept) for n in inner)",
        "return tuple(None if n == 1 else d for d, n in enumerate(inner))",
        _tests(
            "fusion/test_random_programs",
            "test_factors_whose_axes_are_moved_about_are_the_same_where_all_sizes_are",
        ),
    ),
    Fault(
        "fusion: products of known weights may leave the range",
        "jaxgnn/fusion/rules/neighbour_sum.py",
        "if leaves_range(factors, arrays, values):",
        "if False:",
        _tests("fusion/test_range", "test_what_is_known_stays_in_range"),
    ),
    Fault(
        "fusion: every constant multiplies the sum",
        "jaxgnn/fusion/rules/neighbour_sum.py",
        "waits = not scalars and (softmax is not None or only_widen(view, product.constants))",
        "waits = not scalars",
        _tests("fusion/test_range", "test_what_is_known_stays_in_range"),
    ),
    Fault(
        "fusion: float16 is multiplied in float16",
        "jaxgnn/fusion/rules/neighbour_sum.py",
        "is_short = dtype == jnp.float16 and attention is None",
        "is_short = False",
        _tests(
            "fusion/test_range",
            "test_float16_is_multiplied_and_summed_in_the_range_of_float32",
        ),
    ),
    Fault(
        "fusion: the start of an extreme has no share of the gradient",
        "jaxgnn/fusion/rules/segments.py",
        "return jnp.where(y == start, shares * gradient, gradient), None",
        "return gradient, None",
        _tests(
            "fusion/test_range",
            "test_ties_at_the_start_of_an_extreme_share_the_gradient_with_it",
        ),
    ),
    Fault(
        "fusion: explain does not name that a mask needs finite rows",
        "jaxgnn/fusion/rules/maxk.py",
        "_FINITE if written in _MASKS else ()",
        "()",
        _tests("fusion/test_range", "test_explain_names_what_is_not_kept"),
    ),
    Fault(
        "fuse: an object keeps what a trace has changed in it",
        "jaxgnn/_methods.py",
        "                vars(leaf).update(before)\n",
        "                pass\n",
        _tests("fusion/test_methods", "test_a_call_that_changes_an_object_runs_as_it_is_and_once"),
    ),
    Fault(
        "fuse: a method does not get its object",
        "jaxgnn/_methods.py",
        "self._binds = _binds(function)",
        "self._binds = False",
        _tests("fusion/test_methods", "test_a_method_gets_its_own_object"),
    ),
    Fault(
        "fuse: static methods and modules get an object",
        "jaxgnn/_methods.py",
        "self._binds = _binds(function)",
        "self._binds = True",
        _tests(
            "fusion/test_methods",
            "test_callables_that_do_not_bind_do_not_bind_when_they_are_wrapped",
        ),
    ),
    Fault(
        "fuse: some errors of a rule give no warning",
        "jaxgnn/fusion/rewrite.py",
        "except NotImplementedError as error:",
        "except (NotImplementedError, ValueError) as error:",
        _tests(
            "fusion/test_failing_rules", "test_a_rule_that_raises_leaves_the_function_as_it_was"
        ),
    ),
)

FAULTS: tuple[Fault, ...] = (
    *GRAPH_KERNELS,
    *AGGREGATE_KERNELS,
    *ATTENTION_KERNELS,
    *ATTENTION,
    *HEADS,
    *MAXK_KERNELS,
    *MAXK_SPMM_KERNELS,
    *DENSE_KERNELS,
    *EDGE_MLP_KERNELS,
    *MHC_KERNELS,
    *HYPERGRAPH_KERNELS,
    *REFERENCES,
    *GRADIENTS,
    *GRAPHS,
    *DISTRIBUTED,
    *LAYERS,
    *LINKS,
    *RELATIONS,
    *READERS,
    *TRAINING,
    *INTEROP,
    *FUSION,
)

# A development install finds the packages in the checkout, before any path is searched.
_RUN_IN_COPY = """
import importlib.util, os, sys
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, os.getcwd())
for package in ("jaxgnn", "pallas_kernels"):
    origin = importlib.util.find_spec(package).origin
    if not os.path.realpath(origin).startswith(os.path.realpath(os.getcwd()) + os.sep):
        print("seeded_faults: " + package + " comes from " + origin + ", not from the copy")
        sys.exit(70)  # 1 would be that a test has failed
try:
    import pytest
except ImportError as error:
    print("seeded_faults: " + str(error))
    sys.exit(70)
sys.exit(int(pytest.main(sys.argv[1:])))
"""


def main() -> int:
    """Runs the requested part; returns the exit status."""
    options = _options()
    faults = [fault for fault in FAULTS if options.only in fault.name]
    if not faults:
        print(f"seeded_faults: no fault has {options.only!r} in its name")
        return 2
    problems = [problem for fault in faults if (problem := _problem(fault)) is not None]
    if problems:
        print("\n".join(problems))
        return 2
    begin = time.perf_counter()
    status = _clean(faults, options) if options.clean else _seed(faults, options)
    print(f"{time.perf_counter() - begin:.0f} s in all")
    return status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Do the tests find faults that are seeded?")
    parser.add_argument("--only", default="", metavar="NAME-PART", help="faults with such a name")
    parser.add_argument("--cases", choices=["some", "all"], default="some", help="as of the tests")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--clean", action="store_true", help="the same tests without any fault")
    return parser.parse_args()


def _problem(fault: Fault) -> str | None:
    """The reason why a fault can not be seeded; None if it can."""
    count = (ROOT / fault.file).read_text().count(fault.old)
    if count == 1:
        return None
    return f"seeded_faults: {fault.name}: expected its text once in {fault.file}, got {count} times"


def _clean(faults: Iterable[Fault], options: argparse.Namespace) -> int:
    """Runs each selection of tests without a fault; returns the exit status."""
    selections = list(dict.fromkeys(fault.tests for fault in faults))

    def run(tests: tuple[str, ...]) -> bool:
        outcome = _outcome(None, tests, options.cases)
        passes = outcome.status == PASSED
        _say("passes" if passes else "FAILS", outcome, " ".join(tests))
        if not passes:
            print(outcome.output, flush=True)
        return passes

    passed = _for_each(run, selections, options.jobs)
    print(f"{sum(passed)} of {len(passed)} selections of tests pass without a fault")
    return 0 if all(passed) else 2


def _seed(faults: list[Fault], options: argparse.Namespace) -> int:
    """Seeds one fault after the other; returns the exit status."""

    def run(fault: Fault) -> str:
        outcome = _outcome(fault, fault.tests, options.cases)
        missed = "hole" if fault.hole else "MISSED"
        verdict = "found" if outcome.status == FAILED else missed
        verdict = verdict if outcome.status in (FAILED, PASSED) else "ERROR"
        _say(verdict, outcome, f"{fault.name} ({fault.hole})" if fault.hole else fault.name)
        if verdict == "ERROR":
            print(outcome.output, flush=True)
        return verdict

    verdicts = _for_each(run, faults, options.jobs)
    counts = {each: verdicts.count(each) for each in ("found", "MISSED", "hole", "ERROR")}
    print(
        f"{counts['found']} found, {counts['MISSED']} missed, {counts['hole']} known holes, "
        f"{counts['ERROR']} errors of the table"
    )
    return 2 if counts["ERROR"] else min(counts["MISSED"], 1)


def _for_each[T, R](run: Callable[[T], R], items: Iterable[T], jobs: int) -> list[R]:
    with ThreadPoolExecutor(max_workers=max(jobs, 1)) as pool:
        return list(pool.map(run, items))


def _say(verdict: str, outcome: Outcome, what: str) -> None:
    by = f"\n       by {outcome.failure}" if outcome.failure and verdict == "found" else ""
    print(f"{verdict:6} {outcome.seconds:4.0f} s  {what}{by}", flush=True)


def _outcome(fault: Fault | None, tests: tuple[str, ...], cases: str) -> Outcome:
    """Runs tests in a copy of the sources with a fault."""
    with tempfile.TemporaryDirectory(prefix="seeded_faults_") as name:
        copy = Path(name)
        _copy_sources(copy)
        if fault is not None:
            path = copy / fault.file
            path.write_text(path.read_text().replace(fault.old, fault.new))
        return _pytest(copy, tests, cases)


def _copy_sources(copy: Path) -> None:
    """Copies the files that the tests need, and the compiled library next to its package."""
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / part)
    library = _compiled_library()
    if library is not None:
        shutil.copy2(library, copy / "jaxgnn" / "_ffi")


def _compiled_library() -> Path | None:
    from jaxgnn._ffi._library import library_path

    return library_path("cpu")


def _pytest(copy: Path, tests: tuple[str, ...], cases: str) -> Outcome:
    """Runs tests of a copy until the first one fails."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not long"]
    command = [sys.executable, "-c", _RUN_IN_COPY, *options, "--cases", cases, *tests]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=_environment(copy),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, time.perf_counter() - begin, "", "It did not end in time.")
    seconds = time.perf_counter() - begin
    return Outcome(done.returncode, seconds, _first_failure(done.stdout), done.stdout)


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        # As in `make test`: kernels that a CPU interprets compile faster.
        "XLA_FLAGS": "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
    }


def _first_failure(output: str) -> str:
    """The first failing test and the first line of the reason, as the tests print them at once."""
    found = re.search(r"^FAILED (.+?) at \w+: (.*)$", output, re.MULTILINE)
    return "" if found is None else f"{found[1]}: {found[2][:100]}"


if __name__ == "__main__":
    sys.exit(main())
