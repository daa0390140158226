"""Rows arrive at the devices that read them, and gradients at the owners, added up."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, distributed, ops
from jaxgnn.graph import CBSR, column_dtype
from tests.distributed._graphs import NODES, WIDTH, features, graph, mesh, sharded_graph

FORMS = ("all_gather", "all_to_all")


def _run(sharded, function, *rows, outputs="rows"):
    over = distributed.sharded(
        function, sharded.mesh, rows=range(1, 1 + len(rows)), outputs=outputs
    )
    return jax.jit(over)(sharded, *map(sharded.shard_rows, rows))


def _read(local, x):
    """The rows that the edges of the device read, added up with a factor for each edge slot."""
    table = distributed.halo_exchange(local, x)
    return ops.spmm(local.bipartite(), table)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("form", FORMS)
def test_edges_find_the_rows_of_their_senders_and_gradients_return_to_them(
    form, devices, four_devices
):
    sharded, x = sharded_graph(devices, form), features()
    assert sharded.exchange == form

    def both(local, x):
        y, pull_back = jax.vjp(functools.partial(_read, local), x)
        return y, pull_back(jnp.cos(y))[0]

    dense = graph().to_scipy().toarray()
    expected = dense @ x
    y, dx = map(sharded.gather_rows, _run(sharded, both, x))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, dense.T @ np.cos(expected), rtol=1e-5, atol=1e-5)


def _moved(sharded, function, x):
    """The results of all collectives of a function, such as ``u8[6,3]``."""
    over = distributed.sharded(function, sharded.mesh)
    text = str(jax.make_jaxpr(over)(sharded, sharded.shard_rows(x)))
    kinds = "all_gather|all_to_all|reduce_scatter"
    return re.findall(rf":(\w+\[[\d,]*\])\S* = (?:{kinds})\[", text)


@pytest.mark.parametrize("form, records", [("all_gather", False), ("all_to_all", True)])
def test_of_compressed_rows_values_and_columns_go_out_and_values_come_back(
    form, records, four_devices
):
    sharded, x = sharded_graph(4, form, records=records), features()

    def both(local, x):
        kept = ops.maxk(x, 3)

        def aggregate(values):
            return ops.maxk_spmm(local, CBSR(values, kept.indices, WIDTH, in_range=True))

        y, pull_back = jax.vjp(aggregate, kept.values)
        return y, pull_back(jnp.cos(y))[0]

    def whole(x):
        kept = ops.maxk(x, 3)
        y, pull_back = jax.vjp(
            lambda v: ops.maxk_spmm(graph(), CBSR(v, kept.indices, WIDTH, in_range=True)),
            kept.values,
        )
        return y, pull_back(jnp.cos(y))[0]

    for made, expected in zip(_run(sharded, both, x), whole(jnp.asarray(x)), strict=True):
        np.testing.assert_allclose(sharded.gather_rows(made), expected, rtol=1e-5, atol=1e-5)
    moved = [re.sub(r"\d+,", "rows,", result) for result in _moved(sharded, both, x)]
    apart = ["f32[rows,3]", "f32[rows,3]", "u8[rows,3]"]
    assert sorted(moved) == (["f32[rows,3]", "u8[rows,15]"] if records else apart)


@pytest.mark.parametrize(
    "k, dim, wire, record",
    [(4, 256, None, "u32[5]"), (4, 300, "bfloat16", "u32[4]"), (2, 300, None, "u32[3]"),
     (3, 300, "bfloat16", "u16[6]"), (1, 70_000, None, "u32[2]")],
)  # fmt: skip
def test_records_have_the_bytes_of_values_and_columns_in_the_widest_words(
    k, dim, wire, record, four_devices
):
    draws = np.random.default_rng(0)
    values = draws.standard_normal((NODES, k)).astype(np.float32)
    columns = np.sort(draws.integers(0, dim, (NODES, k)), axis=1).astype(column_dtype(dim))
    sharded = sharded_graph(2, "all_to_all", wire_dtype=wire, records=True)

    def tables(local, values, columns):
        kept = CBSR(values, columns, dim, in_range=True)
        made = distributed.halo_exchange(local, kept)
        places = jnp.arange(local.halo.table_rows, dtype=jnp.float32)
        ids = distributed.halo_exchange(local, local.halo.ids)
        return made.values, made.indices, ids, places

    rows = sharded.shard_rows(values), sharded.shard_rows(columns)
    over = distributed.sharded(tables, sharded.mesh, rows=(1, 2))
    made, made_columns, ids, _ = map(np.asarray, jax.jit(over)(sharded, *rows))
    real = ids < NODES
    sent = values if wire is None else np.asarray(jnp.asarray(values, wire), np.float32)
    # Own rows do not travel, and keep all bits.
    exact = (made[real] == sent[ids[real]]) | (made[real] == values[ids[real]])
    assert exact.all()
    np.testing.assert_array_equal(made_columns[real], columns[ids[real]])
    text = str(jax.make_jaxpr(over)(sharded, *rows))
    dtype, width = record[:-1].split("[")
    assert re.search(rf":{dtype}\[\d+,{width}\]\S* = all_to_all\[", text)


@pytest.mark.parametrize("form", FORMS)
def test_rows_travel_in_the_narrow_dtype_and_are_added_up_in_their_own(form, four_devices):
    sharded, x = sharded_graph(4, form, wire_dtype="bfloat16"), features()

    def both(local, x):
        y, pull_back = jax.vjp(functools.partial(_read, local), x)
        return y, pull_back(y)[0]

    moved = _moved(sharded, both, x)
    assert len(moved) == 2 and all(result.startswith("bf16") for result in moved)
    dense = graph().to_scipy().toarray()
    y, dx = map(sharded.gather_rows, _run(sharded, both, x))
    assert y.dtype == dx.dtype == np.float32
    np.testing.assert_allclose(y, dense @ x, rtol=0.02, atol=0.1)
    np.testing.assert_allclose(dx, dense.T @ (dense @ x), rtol=0.02, atol=2)
    assert (y != dense @ x).any()


@pytest.mark.parametrize("form", FORMS)
def test_the_exchange_is_differentiated_twice(form, four_devices):
    """The gradient of a square: its slope along a direction is twice the product of both."""
    sharded, x, v = sharded_graph(2, form), features(2), features(2, seed=5)

    def slope(local, x, v):
        def energy(x):
            table = distributed.halo_exchange(local, x)
            return jax.lax.psum(jnp.sum(table**2 * jnp.arange(1.0, 3.0)), "nodes")

        return jax.grad(lambda x: jax.lax.psum(jnp.sum(jax.grad(energy)(x) * v), "nodes"))(x)

    def count(local, x, v):
        return local.halo.add_at_owners(jnp.ones((local.halo.table_rows, 1))) + 0 * x

    readers = sharded.gather_rows(_run(sharded, count, x, v))
    actual = sharded.gather_rows(_run(sharded, slope, x, v))
    np.testing.assert_allclose(actual, 2 * readers * v * np.array([1.0, 2.0]), rtol=1e-5)


def test_auto_takes_what_receives_fewer_rows():
    ring = np.arange(NODES)
    local = CSRGraph.from_edges(ring, (ring + 1) % NODES, NODES)
    near = distributed.shard(local, mesh(4), partition="contiguous")
    assert near.exchange == "all_to_all" and near.rows_received == 3
    everywhere = CSRGraph.from_edges(np.repeat(ring, NODES), np.tile(ring, NODES), NODES)
    far = distributed.shard(everywhere, mesh(4))
    assert far.exchange == "all_gather" and far.rows_received == 3 * far.rows


def test_bad_input_is_named(four_devices):
    with pytest.raises(ValueError, match="halo_exchange: graph must be a LocalGraph"):
        distributed.halo_exchange(graph(), jnp.ones((NODES, 2)))
    sharded = sharded_graph(2)

    def short(local, x):
        return distributed.halo_exchange(local, x[1:])

    message = f"halo_exchange: x must be of {sharded.rows} rows along axis 0"
    with pytest.raises(ValueError, match=message):
        _run(sharded, short, features())


def test_parts_without_a_common_edge_exchange_nothing(four_devices):
    nodes = np.arange(8)
    loops = CSRGraph.from_edges(nodes, nodes, 8)
    whole = distributed.shard(loops, mesh(4), partition=nodes // 2, exchange="all_to_all")
    x = np.arange(8, dtype=np.float32)[:, None]
    sums = distributed.sharded(ops.spmm, whole.mesh)  # not jitted: XLA ended the process
    np.testing.assert_array_equal(whole.gather_rows(sums(whole, whole.shard_rows(x))), x)
    gradient = jax.grad(lambda rows: jnp.sum(sums(whole, rows) ** 2))(whole.shard_rows(x))
    np.testing.assert_array_equal(whole.gather_rows(gradient), 2 * x)
