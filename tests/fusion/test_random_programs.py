"""Random functions of nodes and edges give the same after they are rewritten."""

import itertools

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jaxgnn.fusion._policy import Policy
from jaxgnn.fusion._rewrite import Rules
from jaxgnn.fusion._rules import RULES
from jaxgnn.fusion._transform import transformed
from jaxgnn.testing import assert_close

NODES, EDGES, WIDTH = 5, 14, 4
_rng = np.random.default_rng(3)
# Repeated, unsorted, and out of range at either side.
IDS = {
    "senders": jnp.asarray(_rng.integers(0, NODES - 1, EDGES), jnp.int32),
    "receivers": jnp.asarray(_rng.integers(0, NODES, EDGES), jnp.int32),
    "sorted": jnp.asarray(np.sort(_rng.integers(0, NODES, EDGES)), jnp.int32),
    "padded": jnp.asarray(_rng.integers(0, NODES + 2, EDGES), jnp.int32),
    "negative": jnp.asarray(_rng.integers(-2, NODES, EDGES), jnp.int32),
}
MODES = ("clip", "fill")


def _of_nodes(pick, nodes, edges):
    """A new array of nodes [NODES, WIDTH], made of the arrays that there are."""
    x, y = pick(nodes), pick(nodes)
    e = pick(edges)
    ids = IDS[pick(tuple(IDS))]
    kind = pick(range(9))
    if kind == 0:
        return jax.ops.segment_sum(e, ids, NODES)
    if kind == 1:
        top = jax.ops.segment_max(e, ids, NODES)
        return jnp.where(jnp.isfinite(top), top, 0)
    if kind == 2:
        low = jax.ops.segment_min(e, ids, NODES)
        return jnp.where(jnp.isfinite(low), low, 0)
    if kind == 3:
        counts = jax.ops.segment_sum(jnp.ones_like(e), ids, NODES)
        return jax.ops.segment_sum(e, ids, NODES) / jnp.maximum(counts, 1)
    if kind == 4:
        return x.at[ids].add(e)
    if kind == 5:
        values, columns = jax.lax.top_k(x, 2)
        return jnp.zeros_like(x).at[jnp.arange(NODES)[:, None], columns].set(values)
    if kind == 6:
        return jnp.tanh(x) * 0.5 + y
    if kind == 7:
        return jnp.where(y > 0, x, -0.5 * y)
    return (x.T @ y / NODES)[None].repeat(NODES, 0).mean(1) + x


def _of_edges(pick, nodes, edges, matrix):
    """A new array of edges [EDGES, WIDTH], made of the arrays that there are."""
    x, e = pick(nodes), pick(edges)
    f = pick(edges)
    ids = IDS[pick(tuple(IDS))]
    kind = pick(range(9))
    if kind == 0:
        return x[IDS[pick(("senders", "receivers", "sorted"))]]
    if kind == 1:
        return jnp.nan_to_num(x.at[ids].get(mode=pick(MODES)))
    if kind == 2:
        return e * f[:, :1]
    if kind == 3:
        return -e / (1 + f[:, 1:2] ** 2)
    if kind == 4:
        return e + 0.5 * f
    if kind == 5:
        return e * x[IDS["receivers"]]
    if kind == 6:
        top = jax.ops.segment_max(e, IDS["receivers"], NODES)
        powers = jnp.exp(e - top[IDS["receivers"]])
        return powers / jax.ops.segment_sum(powers, IDS["receivers"], NODES)[IDS["receivers"]]
    if kind == 7:
        ends = x[IDS["receivers"]], x[IDS["senders"]], e
        return jax.nn.relu(jnp.concatenate(ends, -1) @ matrix) @ matrix[:WIDTH]
    return jnp.concatenate([x[IDS["senders"]], e[:, :2]], -1) @ matrix[: WIDTH + 2]


class _Function:
    """A function of nodes, edges and a matrix, whose steps are chosen by a list of numbers."""

    def __init__(self, steps: list[bool], numbers: list[int]):
        self.steps, self.numbers = steps, numbers

    def __repr__(self) -> str:
        return f"_Function({self.steps}, {self.numbers})"

    def __call__(self, x, e, matrix):
        numbers = itertools.cycle(self.numbers)  # the same choices in every trace

        def pick(options):
            return options[next(numbers) % len(options)]

        nodes, edges = [x], [e]
        for is_edge in self.steps:
            if is_edge:
                edges.append(_of_edges(pick, nodes[-3:], edges[-3:], matrix))
            else:
                nodes.append(_of_nodes(pick, nodes[-3:], edges[-3:]))
        nodes.append(jax.ops.segment_sum(edges[-1], IDS["receivers"], NODES))
        return nodes[-1], nodes[-2], edges[-1]


_functions = st.builds(
    _Function,
    st.lists(st.booleans(), min_size=3, max_size=8),
    st.lists(st.integers(0, 10_000), min_size=60, max_size=60),
)


def _loss_of(function):
    def loss(*args):
        outputs = function(*args)
        slopes = (1 + jnp.arange(y.size).reshape(y.shape) / 7 for y in outputs)
        return sum(jnp.sum(jnp.sin(y) * s) for y, s in zip(outputs, slopes, strict=True)), outputs

    return loss


@pytest.mark.costly
@pytest.mark.parametrize("block", range(50))
def test_rewritten_programs_have_the_same_results_and_gradients(block):
    @seed(block)
    @settings(
        max_examples=4,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=HealthCheck,
    )
    @given(run=_functions)
    def check(run):
        rng = np.random.default_rng(block)
        shapes = (NODES, WIDTH), (EDGES, WIDTH), (3 * WIDTH, WIDTH)
        args = [jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for s in shapes]
        closed = jax.make_jaxpr(run)(*args)
        program, findings = transformed(closed, Rules(RULES, Policy(only_if_faster=False)), {})
        assert findings.applied  # the last sum at least
        expected, actual = (
            jax.jit(jax.grad(_loss_of(f), argnums=(0, 1, 2), has_aux=True))(*args)
            for f in (jex.jaxpr_as_fun(closed), jex.jaxpr_as_fun(program.closed()))
        )
        for e, a in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
            assert_close(a, e, reduction_length=4000, largest_term=1.0)

    check()
