"""Functions of graphs in files: loaded in a fresh process, at other sizes, and refused."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import zipfile

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CBSR, CSRGraph, Incidence, ops
from jaxgnn._exporting import load as loading
from jaxgnn._exporting.file import content_hash
from jaxgnn.graph import GraphBatch
from jaxgnn.models import MaxKGNN
from jaxgnn.testing import random_array

GRAPH = CSRGraph.from_edges([0, 1, 2, 3, 3], [1, 2, 3, 0, 1], 4)
LARGER = CSRGraph.from_edges([0, 1, 2, 3, 4, 5, 5], [1, 2, 3, 4, 5, 0, 2], 6)
X, MORE = random_array((4, 8), "float32", seed=1), random_array((6, 8), "float32", seed=2)
BOTH = {"platforms": ("cpu", "cuda")}
ANY_SIZE = {"shapes": ("nodes, edges", "nodes, _")}

# A fresh process that has imported the library alone; the file and its input are on the disk.
LOADS = """
import sys, numpy as np, jaxgnn
folder = sys.argv[1]
given = np.load(folder + "/given.npz")
graph = jaxgnn.CSRGraph(given["indptr"], given["indices"])
function = jaxgnn.load_exported(folder + "/model.jaxgnn")
assert "flax" not in sys.modules
np.save(folder + "/made.npy", function(graph, given["x"]))
"""


@pytest.fixture(scope="module")
def model():
    """A trained network, as far as a test is concerned."""
    network = MaxKGNN(8, 16, 3, num_layers=2, k=4, rngs=nnx.Rngs(0))
    network.eval()
    return network


@pytest.fixture(scope="module")
def file(model):
    """A program of the network for both platforms, with its kernels."""
    return jaxgnn.export(model, GRAPH, X, **BOTH, metadata={"classes": ["a", "b", "c"]})


def _aggregate(graph, x):
    return {"sum": ops.spmm(graph, x)}


def test_a_fresh_process_gets_the_numbers_of_the_model_and_needs_no_flax(model, file, tmp_path):
    (tmp_path / "model.jaxgnn").write_bytes(file)
    np.savez(tmp_path / "given.npz", indptr=GRAPH.indptr, indices=GRAPH.indices, x=X)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", LOADS, os.fspath(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_allclose(np.load(tmp_path / "made.npy"), model(GRAPH, X), atol=1e-6)


def test_a_file_for_cpu_and_cuda_has_the_kernels_of_both(file):
    loaded = jaxgnn.load_exported(file)
    assert loaded.platforms == ("cpu", "cuda")
    assert {"jaxgnn_maxk", "jaxgnn_spmm", "mosaic_gpu_v2"} <= set(loaded.kernels)
    assert loaded.metadata == {"classes": ["a", "b", "c"]}
    assert (loaded.jaxgnn_version, loaded.jax_version) == (jaxgnn.__version__, jax.__version__)
    assert "float32[4, 8]; platforms=cpu, cuda" in repr(loaded)


def test_symbolic_sizes_take_graphs_of_any_size(model):
    loaded = jaxgnn.load_exported(jaxgnn.export(model, GRAPH, X, **ANY_SIZE))
    assert loaded.inputs == ("int32[nodes + 1]", "int32[edges]", "float32[nodes, 8]")
    assert "jaxgnn_spmm" not in loaded.kernels  # This kernel needs the sizes of a graph.
    for graph, x in ((GRAPH, X), (LARGER, MORE)):
        np.testing.assert_allclose(loaded(graph, x), model(graph, x), atol=1e-5)


def test_one_axis_may_be_symbolic_of_weights_and_scales_too():
    graph = GRAPH.with_weights(jnp.arange(5.0)).normalized("sym")
    file = jaxgnn.export(ops.spmm, graph, X, shapes=("_, edges", None))
    fewer = CSRGraph.from_edges([0, 1], [1, 0], 4, weights=jnp.ones(2)).normalized("sym")
    np.testing.assert_allclose(jaxgnn.load_exported(file)(fewer, X), ops.spmm(fewer, X), rtol=1e-6)


def _attend(graph, q, k, v, logits):
    """All ops of attention, and their parts, with gradients."""

    def run(q, k, v, logits):
        narrow = jnp.sum(q, axis=-1), jnp.sum(k, axis=-1)
        sums = ops.dot_attention(graph, q, k, v, edge_logits=logits)
        sums += ops.gat_attention(graph, *narrow, v, edge_logits=logits)
        sums += ops.gatv2_attention(graph, q, k, q[0], edge_logits=logits)
        weights = ops.segment_softmax(graph, logits)
        return sums + ops.spmm(graph.with_weights(weights), v)

    y, pull_back = jax.vjp(run, q, k, v, logits)
    return y, pull_back(jnp.cos(y))


@pytest.mark.parametrize("shapes", [None, ("n, e", "n, _, _", "n, _, _", "n, _, _", "e, _")])
def test_attention_and_sums_of_heads_are_exported_with_their_gradients(shapes):
    def arguments(graph):
        rows = (graph.num_rows, 2, 3)
        q, k, v = (random_array(rows, "float32", seed=i) for i in range(3))
        return graph, q, k, v, random_array((graph.num_edges, 2), "float32", seed=3)

    loaded = jaxgnn.load_exported(jaxgnn.export(_attend, *arguments(GRAPH), shapes=shapes))
    calls = [name for name in loaded.kernels if "_attention" in name]
    assert len(calls) == (9 if shapes is None else 0)  # forward, rows and columns of each
    graph = GRAPH if shapes is None else LARGER
    actual, expected = (jax.tree.leaves(f(*arguments(graph))) for f in (loaded, _attend))
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


def test_weights_of_heads_are_a_part_of_the_graph():
    graph = GRAPH.with_weights(jnp.ones((5, 2)))
    x = random_array((4, 2, 3), "float32", seed=3)
    loaded = jaxgnn.load_exported(jaxgnn.export(ops.spmm, graph, x, shapes=("n, e", "n, _, _")))
    assert loaded.inputs == ("int32[n + 1]", "int32[e]", "float32[e, 2]", "float32[n, 2, 3]")
    np.testing.assert_allclose(loaded(graph, x), ops.spmm(graph, x), rtol=1e-6)


def _rectangular(graph, x):
    return ops.spmm(graph, x)


def test_a_graph_of_fixed_columns_is_no_square_one():
    bipartite = CSRGraph.from_edges([0, 1, 2], [0, 1, 1], 2, num_senders=4)
    loaded = jaxgnn.load_exported(jaxgnn.export(_rectangular, bipartite, X, shapes=("n, _", None)))
    other = CSRGraph.from_edges([0, 1, 2], [3, 1, 1], 4, num_senders=4)
    np.testing.assert_allclose(loaded(other, X), ops.spmm(other, X), rtol=1e-6)
    with pytest.raises(ValueError, match=r"args\[0\]\.num_cols must be 4, got 6"):
        loaded(CSRGraph.from_edges([0, 1, 5], [3, 1, 1], 4, num_senders=6), X)


def test_parameters_may_be_an_argument(model):
    graphdef, state = nnx.split(model)
    state = nnx.to_pure_dict(state)
    run = lambda state, graph, x: nnx.merge(graphdef, state)(graph, x)  # noqa: E731
    loaded = jaxgnn.load_exported(jaxgnn.export(run, state, GRAPH, X))
    halved = jax.tree.map(lambda p: p / 2, state)
    np.testing.assert_allclose(loaded(halved, GRAPH, X), run(halved, GRAPH, X), atol=1e-6)


def test_every_pytree_of_the_library_passes_in_and_out():
    def run(arguments):
        batch, hypergraph, x, _ = arguments["all"]
        kept = ops.maxk(x, 3)
        return [ops.spmm(batch.graph, jnp.concatenate([x, x])), kept, (hypergraph, None), batch]

    batch = GraphBatch.from_graphs([GRAPH, GRAPH])
    hypergraph = Incidence.from_hyperedges([{0, 1}, {1, 2, 3}], 4)
    arguments = {"all": (batch, hypergraph, X, None), 3: 2.0}
    actual, expected = (
        jaxgnn.load_exported(jaxgnn.export(run, arguments))(arguments),
        run(arguments),
    )
    assert isinstance(actual[1], CBSR) and isinstance(actual[2][0], Incidence)
    assert isinstance(actual[3], GraphBatch) and actual[3].graph.plan is None
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    np.testing.assert_array_equal(actual[1].todense(), expected[1].todense())
    np.testing.assert_array_equal(actual[3].graph_ids, batch.graph_ids)


def test_a_loaded_function_is_a_method_as_functions_are():
    loaded = jaxgnn.load_exported(jaxgnn.export(ops.spmm, GRAPH, X))

    class Table(CSRGraph):
        aggregate, alone = loaded, staticmethod(loaded)

    table, expected = Table(GRAPH.indptr, GRAPH.indices, GRAPH.weights), ops.spmm(GRAPH, X)
    for actual in (table.aggregate(X), Table.aggregate(GRAPH, X), table.alone(GRAPH, X)):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_a_gradient_is_exported_as_a_function():
    slope = jax.grad(lambda x, graph: jnp.sum(ops.spmm(graph, ops.maxk(x, 3).todense()) ** 2))
    loaded = jaxgnn.load_exported(jaxgnn.export(slope, X, GRAPH))
    np.testing.assert_allclose(loaded(X, GRAPH), slope(X, GRAPH), rtol=1e-4, atol=1e-5)


def test_ids_out_of_range_of_a_loaded_program_are_the_nearest_node():
    loaded = jaxgnn.load_exported(jaxgnn.export(ops.spmm, GRAPH, X))
    wild = CSRGraph(np.asarray(GRAPH.indptr), np.array([3, 10**6, -7, 1, 10**9], np.int32))
    nearest = CSRGraph(np.asarray(GRAPH.indptr), np.array([3, 3, 0, 1, 3], np.int32))
    np.testing.assert_allclose(loaded(wild, X), ops.spmm(nearest, X), rtol=1e-6)


CALLS = {
    "width": (lambda: (GRAPH, X[:, :7]), r"args\[1\] must be float32\[nodes, 8\], got float32\[4"),
    "dtype": (lambda: (GRAPH, X > 0), r"args\[1\] must be float32\[nodes, 8\], got bool"),
    "no graph": (lambda: (X, X), r"args\[0\] must be a CSRGraph, got \w*Array"),
    "weights": (
        lambda: (GRAPH.with_weights(jnp.ones(5)), X),
        r"args\[0\]\.weights must be None, got \w*Array",
    ),
    "normalised": (
        lambda: (GRAPH.normalized("mean"), X),
        r"args\[0\]\.normalization must be None, got 'mean'",
    ),
    "one argument": (lambda: (GRAPH,), r"args must be a tuple of 2, got tuple of 1"),
    "text": (
        lambda: (GRAPH, np.full((4, 8), "a")),
        r"args\[1\] must be of numbers, or bool, got dtype <U1",
    ),
    "other nodes": (
        lambda: (GRAPH, MORE),
        r"args\[1\]\.shape\[0\] \(= 6\) and the specification 'nodes' \(= 4\)",
    ),
}


@pytest.fixture(scope="module")
def any_size():
    return jaxgnn.load_exported(jaxgnn.export(_aggregate, GRAPH, X, **ANY_SIZE))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_something_else_names_the_argument(name, any_size):
    arguments, message = CALLS[name]
    with pytest.raises(ValueError, match=f"load_exported: .*{message}"):
        any_size(*arguments())


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda")])
def test_functions_may_take_or_return_nothing_and_return_what_they_do_not_read(platforms):
    def load(function, *args):
        file = jaxgnn.export(function, *args, platforms=platforms)
        return jaxgnn.load_exported(file)(*args)

    assert load(lambda x: None, X) is None
    assert load(lambda: {"a": jnp.zeros((2, 0), jnp.bfloat16)})["a"].shape == (2, 0)
    unread, one = load(lambda x, _: (x, x[0, 0]), X, MORE)
    np.testing.assert_array_equal(unread, X)
    assert one == X[0, 0]


def test_arrays_of_numpy_are_taken_in_either_byte_order_and_not_cut():
    loaded = jaxgnn.load_exported(jaxgnn.export(lambda x, ids: x[ids], X, np.array([1, 0])))
    x, ids = np.asarray(X).astype(">f4"), np.array([1, 0], ">i8")
    np.testing.assert_array_equal(loaded(x, ids), X[np.array([1, 0])])
    with pytest.raises(ValueError, match=r"args\[1\] must be in the range of int32"):
        loaded(X, np.array([2**32, 0]))


def test_examples_are_arrays_of_either_byte_order():
    loaded = jaxgnn.load_exported(jaxgnn.export(lambda x: 2 * x, np.arange(3, dtype=">i8")))
    assert loaded.inputs == ("int32[3]",)
    assert loaded(np.arange(3)).tolist() == [0, 2, 4]


EMPTY = CSRGraph.from_edges(np.zeros(0, int), np.zeros(0, int), 4)
OF_EMPTY = {
    "sums": (lambda graph, x, e: ops.spmm(graph, x), 4),
    "attention": (lambda graph, x, e: ops.segment_softmax(graph, e), 0),
    "messages": (lambda graph, x, e: ops.aggregate(graph, e[:, None], "max"), 4),
    "the graph itself": (lambda graph, x, e: graph, None),
}


@pytest.mark.parametrize("name", OF_EMPTY)
def test_a_named_number_of_edges_may_be_zero(name):
    function, rows = OF_EMPTY[name]
    shapes = ("nodes, edges", "nodes, _", "edges")
    for example, of_edges in ((GRAPH, jnp.ones(5)), (EMPTY, jnp.ones(0))):
        loaded = jaxgnn.load_exported(jaxgnn.export(function, example, X, of_edges, shapes=shapes))
        actual = jax.tree.leaves(loaded(EMPTY, X, jnp.ones(0)))
        expected = jax.tree.leaves(function(dataclasses.replace(EMPTY, plan=None), X, jnp.ones(0)))
        assert rows is None or actual[0].shape[0] == rows
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    again = loaded(GRAPH, X, jnp.ones(5))
    assert jax.tree.leaves(again)[0].shape[0] == {4: 4, 0: 5, None: 5}[rows]


def test_a_result_of_a_size_that_is_computed_from_no_edges_is_refused():
    loops = jaxgnn.export(
        lambda graph: jnp.concatenate([graph.indices, graph.indices]), GRAPH, shapes=("n, edges",)
    )
    with pytest.raises(ValueError, match=r"the graph must be of at least one edge, as a result"):
        jaxgnn.load_exported(loops)(EMPTY)


EXPORTS = {
    "platform": ({"platforms": ["tpu"]}, r"platforms must be some of cpu, cuda, got \['tpu'\]"),
    "no platform": ({"platforms": []}, r"platforms must be some of cpu, cuda, got \[\]"),
    "shapes": ({"shapes": ("n",)}, r"shapes must be a tuple with .* for each of 2 arguments"),
    "sizes": ({"shapes": (None, "n, 8, 1")}, r"shapes\[1\] must be 2 sizes, such as '_, _'"),
    "metadata": ({"metadata": {"x": {1, 2}}}, r"metadata must be a dict that JSON gives back"),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_bad_options_of_export_are_named(name):
    options, message = EXPORTS[name]
    with pytest.raises(ValueError, match=f"export: {message}"):
        jaxgnn.export(_aggregate, GRAPH, X, **options)


def test_what_can_not_be_exported_says_why():
    with pytest.raises(ValueError, match=r"export: args\[0\] must be arrays in tuples.*, got set"):
        jaxgnn.export(_aggregate, {1, 2}, X)
    with pytest.raises(ValueError, match=r"export: the result must be arrays in .*, got str"):
        jaxgnn.export(lambda x: "text", X)
    keys = r"must be of numbers; pass jax.random.key_data\(key\), .*, got keys of jax.random, key"
    with pytest.raises(ValueError, match=rf"export: args\[0\]\['a'\] {keys}"):
        jaxgnn.export(lambda tree: tree, {"a": jax.random.key(0)})
    with pytest.raises(ValueError, match=f"export: the result {keys}"):
        jaxgnn.export(lambda x: jax.random.key(0), X)
    with pytest.raises(
        ValueError, match=r"export: args\[0\] must be of numbers, .*, got dtype <U1"
    ):
        jaxgnn.export(lambda x: x, np.array(["a"]))
    with pytest.raises(ValueError, match="export: shapes must be sizes with which the function"):
        jaxgnn.export(lambda x: x if x.shape[0] > 5 else -x, X, shapes=("n, _",))
    with pytest.raises(ValueError, match=r"shapes\[0\] must be None, .* for a GraphBatch"):
        batch = GraphBatch.from_graphs([GRAPH])
        jaxgnn.export(lambda batch: batch.graph_ids, batch, shapes=("n",))
    with pytest.raises(ValueError, match="export: function must be without callbacks into Python"):
        jaxgnn.export(lambda x: jax.pure_callback(np.sin, jax.typeof(x), x), X)
    needs = r"spmm\[ffi\]: needs sizes that are known when it is traced"
    with jaxgnn.default_implementation("ffi"), pytest.raises(NotImplementedError, match=needs):
        jaxgnn.export(_aggregate, GRAPH, X, **ANY_SIZE)


def _written(file: bytes, hashed: bool = True, **members: bytes) -> bytes:
    """The file with other members, and a hash that fits them."""
    with zipfile.ZipFile(io.BytesIO(file)) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    contents |= {next(n for n in contents if n.startswith(part)): m for part, m in members.items()}
    if hashed:
        contents["sha256"] = content_hash(
            contents["description.json"], contents["program.stablehlo"]
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for name, content in contents.items():
            new.writestr(name, content)
    return buffer.getvalue()


def _described(file: bytes) -> dict:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return json.loads(archive.read("description.json"))


def _changed(file: bytes, **entries) -> bytes:
    """The file with other entries in its description."""
    return _written(file, description=json.dumps({**_described(file), **entries}).encode())


def _replace_program(file: bytes, program: bytes) -> bytes:
    """The file with another program."""
    return _written(file, program=program)


def _calls_python(file: bytes) -> bytes:
    """The file with a program that calls an address of a process, as callbacks do."""
    name = "xla_ffi_python_cpu_callback"
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(X.shape, X.dtype))
    checks = [jax.export.DisabledSafetyCheck.custom_call(name)]
    exported = jax.export.export(jax.jit(call), disabled_checks=checks)(X)
    return _replace_program(file, bytes(exported.mlir_module_serialized))


def _flipped(file: bytes) -> bytes:
    """The file with another byte in its program."""
    place = file.index(b"StableHLO") + 200
    return file[:place] + bytes([file[place] ^ 1]) + file[place + 1 :]


HERE = rf"this is jaxgnn {jaxgnn.__version__} and jax {jax.__version__}".replace(".", r"\.")
FILES = {
    "a newer format": (
        lambda f: _changed(f, format=3, jaxgnn="9.0"),
        rf"jaxgnn 9\.0 .*, and {HERE}: expected format 2, got 3",
    ),
    "an older format": (
        lambda f: _changed(f, format=1),
        rf"{HERE}: expected format 2, got 1; export the function again",
    ),
    "another hash": (
        lambda f: _written(f, hashed=False, sha256=b"0" * 64),
        "a whole file .*, got content that its hash does not fit",
    ),
    "another release": (
        lambda f: _changed(f, jaxgnn="0.1.0"),
        rf"written by jaxgnn 0\.1\.0 .*, and {HERE}: its kernels need the version that wrote it",
    ),
    "another convention": (lambda f: _changed(f, calling_convention=99), rf"{HERE}: .*got 99"),
    "another platform": (lambda f: _changed(f, platforms=["cuda"]), "on cuda, .*, got cpu"),
    "no list": (lambda f: _changed(f, inputs=3), "must have list as inputs, got 3"),
    "an entry too many": (lambda f: _changed(f, colour="red"), "another description: .*colour"),
    "shapes of something else": (lambda f: _changed(f, inputs=[["4,", "x"]]), "damaged"),
    "no program": (
        lambda f: _replace_program(f, b"MLIR of another time"),
        rf"{HERE}: its program can not be read",
    ),
    "a call of Python": (_calls_python, "must call no Python, got a call of xla_ffi_python"),
    "cut short": (lambda f: f[: len(f) // 2], "a whole file that jaxgnn.export has made"),
    "another program of the same description": (
        lambda f: _written(f, hashed=False, program=b"ML" + bytes(100)),
        "a whole file .*, got content that its hash does not fit",
    ),
    "a flipped bit": (_flipped, "a whole file .*, got Bad CRC-32"),
    "text": (lambda f: b"graph", "a whole file .*, got File is not a zip file"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_can_not_be_run_here_says_what_it_is(name, file, tmp_path):
    spoil, message = FILES[name]
    path = tmp_path / "model.jaxgnn"
    path.write_bytes(spoil(file))
    with pytest.raises(ValueError, match=rf"load_exported: .*model\.jaxgnn.*{message}"):
        jaxgnn.load_exported(path)


def test_a_program_of_plain_jax_is_loaded_by_other_releases():
    with jaxgnn.default_implementation("xla"):
        file = _changed(jaxgnn.export(ops.spmm, GRAPH, X), jaxgnn="0.1.0")
    np.testing.assert_allclose(jaxgnn.load_exported(file)(GRAPH, X), ops.spmm(GRAPH, X), rtol=1e-6)


def test_missing_libraries_are_named_and_missing_files_too(monkeypatch, tmp_path):
    file = jaxgnn.export(ops.spmm, GRAPH, X)
    monkeypatch.setattr(loading._ffi, "why_missing", lambda platform: "needs a library")
    with pytest.raises(NotImplementedError, match=r"load_exported: .* needs a library"):
        jaxgnn.load_exported(file)
    with pytest.raises(FileNotFoundError, match="missing"):
        jaxgnn.load_exported(tmp_path / "missing")
