"""Pytrees of the library among the arguments and results of ``jax.export`` itself."""

import dataclasses
import json

import jax
import jax.export
import numpy as np
import pytest

from jaxgnn import CSRGraph, graph
from jaxgnn._arrays.arrays import KeepsArrays
from jaxgnn.graph import BlockShape
from jaxgnn.graph import serialization as _serialization
from jaxgnn.graph.serialization import options_as_bytes, options_from_bytes

SHAPE = BlockShape(8, 8, 64, 1, 1, (1, 2), "degree")
GRID = graph.CellGrid((True, False), (1,), (2, 3), (0.5,), (1, 1), 4)


@pytest.mark.parametrize(
    "options", [(), (4, None, True), ("mean", 3), (SHAPE,), (GRID,), ((("a", "b"),), ())], ids=str
)
def test_static_options_come_back_from_json(options):
    assert options_from_bytes(options_as_bytes(options)) == options
    assert hash(options_from_bytes(options_as_bytes(options))) == hash(options)


GOOD = json.loads(options_as_bytes((SHAPE,)))[0]
FORGED = {
    "no list": {},
    "a number": 3,
    "other entries": [{**GOOD, "colour": 1}],
    "fewer entries": [{"tiles": [1]}],
    "tiles of something else": [{**GOOD, "tiles": 3}],
    "tiles of names": [{**GOOD, "tiles": ["1"]}],
    "a flag for a number": [{**GOOD, "rows": True}],
    "a grid without cells": [{"periodic": [True]}],
    "a grid of flags": [{**dataclasses.asdict(GRID), "counts": [True]}],
}


@pytest.mark.parametrize("name", FORGED)
def test_options_that_nobody_has_written_are_refused(name):
    with pytest.raises(ValueError, match=r"jax\.export: the file must be options of a graph"):
        options_from_bytes(json.dumps(FORGED[name]).encode())
    with pytest.raises(ValueError, match="options of a graph"):
        options_from_bytes(b"[1, ")
    with pytest.raises(ValueError, match="options of a graph"):
        options_from_bytes(b"[" * 100_000)


def test_every_pytree_is_registered_once():
    classes = [value for value in vars(graph).values() if isinstance(value, type)]
    pytrees = {cls for cls in classes if issubclass(cls, KeepsArrays)} | {graph.HeteroGraph}
    # The part of one device exists inside of shard_map alone, so that no program takes it.
    assert pytrees - {graph.Halo, graph.LocalGraph} == set(_serialization._TYPES)
    for cls in _serialization._TYPES:
        with pytest.raises(ValueError, match=f"Duplicate serialization .*{cls.__name__}"):
            jax.export.register_pytree_node_serialization(
                cls, serialized_name="twice", serialize_auxdata=bytes, deserialize_auxdata=tuple
            )


def test_a_symbolic_number_of_columns_is_refused():
    (nodes,) = jax.export.symbolic_shape("nodes")
    with pytest.raises(ValueError, match=r"known number of columns, got nodes; jaxgnn\.export"):
        options_as_bytes((nodes, None))


def test_an_exported_program_keeps_the_trees_of_graphs():
    pytest.importorskip("flatbuffers", reason="reason: jax.export needs flatbuffers to serialise")
    made = CSRGraph.from_edges([0, 1, 2], [1, 2, 2], 3).normalized("mean")
    exported = jax.export.export(jax.jit(lambda graph: (graph, graph.indptr)))(made)
    loaded = jax.export.deserialize(exported.serialize())
    assert (loaded.in_tree, loaded.out_tree) == (exported.in_tree, exported.out_tree)
    np.testing.assert_array_equal(loaded.call(made)[1], made.indptr)
