"""Stores return the rows that were asked for, from wherever they are."""

import io

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgnn import CSRGraph
from jaxgnn.sampling import NeighborLoader, features, infer_layerwise
from jaxgnn.sampling.loader import StagedRows
from jaxgnn.testing import random_array

ROWS = 300
X = np.asarray(random_array((ROWS, 6), "float32", seed=0))
IDS = np.array([7, -1, 299, 7, 0, 150, -1], np.int32)
EXPECTED = np.where(IDS[:, None] >= 0, X[IDS], 0)


def _npy(tmp_path, array=X):
    np.save(tmp_path / "x.npy", array)
    return tmp_path / "x.npy"


def _shards(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for i, part in enumerate(np.array_split(X, 11)):  # part-10 is the last, not the second
        np.save(folder / f"part-{i}.npy", part)
    return folder


STORES = {
    "array": lambda tmp_path: X,
    "memmap": lambda tmp_path: np.load(_npy(tmp_path), mmap_mode="r"),
    "raw memmap": lambda tmp_path: _raw(tmp_path),
    "file": _npy,
    "folder": _shards,
    "device": lambda tmp_path: jnp.asarray(X),
    "cached": lambda tmp_path: features.CachedFeatures(X, [7, 100]),
    "cached files": lambda tmp_path: features.CachedFeatures(_shards(tmp_path), np.arange(0, 250)),
}


def _raw(tmp_path):
    X.tofile(tmp_path / "x.bin")
    return np.memmap(tmp_path / "x.bin", np.float32, "r", shape=X.shape)


@pytest.mark.parametrize("name", STORES)
def test_rows_are_those_of_the_array_and_zeros_for_none(name, tmp_path):
    store = features.as_store("test", STORES[name](tmp_path))
    assert isinstance(store, features.FeatureStore)
    assert (store.num_rows, store.shape, store.dtype) == (ROWS, X.shape, X.dtype)
    for ids in (IDS, IDS.astype(np.int64), IDS[:0], np.full(3, -1), np.arange(ROWS)):
        rows = store.gather(ids)
        np.testing.assert_array_equal(rows, np.where(ids[:, None] >= 0, X[ids], 0))


@pytest.mark.parametrize("name", ["memmap", "file", "folder"])
def test_many_rows_of_a_file_are_read_by_threads_into_their_places(name, tmp_path):
    ids = np.random.default_rng(0).integers(-1, ROWS, 5000)
    out = np.full((len(ids), 6), np.nan, np.float32)
    store = features.as_store("test", STORES[name](tmp_path))
    np.testing.assert_array_equal(store.gather(ids, out), np.where(ids[:, None] >= 0, X[ids], 0))


@pytest.mark.parametrize("name", ["array", "file", "folder"])
def test_rows_are_written_to_an_array_of_the_caller(name, tmp_path):
    out = np.full((len(IDS), 6), np.nan, np.float32)
    assert features.as_store("test", STORES[name](tmp_path)).gather(IDS, out) is out
    np.testing.assert_array_equal(out, EXPECTED)


@pytest.mark.parametrize("name", ["array", "memmap", "file", "folder"])
def test_rows_in_the_other_byte_order_are_those_of_this_machine(name, tmp_path):
    swapped = X.astype(">f4")
    if name == "folder":  # of both orders
        np.save(tmp_path / "a.npy", swapped[:100])
        np.save(tmp_path / "b.npy", X[100:])
    given = {
        "array": lambda: swapped,
        "folder": lambda: tmp_path,
        "file": lambda: _npy(tmp_path, swapped),
    }
    given["memmap"] = lambda: np.load(_npy(tmp_path, swapped), mmap_mode="r")
    store = features.as_store("test", given[name]())
    assert store.dtype == np.float32 and store.dtype.isnative
    out = np.empty((len(IDS), 6), np.float32)
    for rows in (store.gather(IDS), store.gather(IDS, out)):
        np.testing.assert_array_equal(rows, EXPECTED)


def _with_bytes(path, content):
    (path / "x.npy").write_bytes(content)
    return features.FileFeatures(path / "x.npy")


def _bytes_of(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


STORED = _bytes_of(X)
HEADER = len(STORED) - X.nbytes
DAMAGED = {
    "empty": (b"", "it ends after 0 of 8 bytes"),
    "appended": (STORED + b"\0" * 24, "expected 7200 bytes for float32.*, got 7224"),
    "inserted": (STORED[:HEADER] + b"\0" * 24 + STORED[HEADER:], "expected 7200 bytes .* got 7224"),
    "cut off": (STORED[:-1], "expected 7200 bytes for float32.*, got 7199"),
    "cut in the header": (STORED[:50], "it ends after 40 of 118 bytes"),
    "other header": (STORED.replace(b"descr", b"other"), "expected a header of descr"),
    "an archive": (b"PK\3\4" + STORED, "it starts with .*, as no array does"),
    "objects": (
        _bytes_of(np.array([None]), allow_pickle=True),
        "expected a dtype of plain numbers",
    ),
    "fields": (_bytes_of(np.zeros(2, [("a", "f4")])), "expected a header of descr"),
    "text": (_bytes_of(np.array(["a"])), "expected numbers, got <U1"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(name, tmp_path):
    content, message = DAMAGED[name]
    with pytest.raises(ValueError, match=f"FileFeatures: path must be .*x.npy: {message}"):
        _with_bytes(tmp_path, content)
    (tmp_path / "x.npy").unlink()
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(ValueError, match=r"x\.npy, which is no regular file"):
        features.FileFeatures(tmp_path)


def test_bytes_that_are_added_to_a_mapped_file_are_found(tmp_path):
    graph = CSRGraph.from_edges([0], [1], ROWS)
    mapped = np.load(_npy(tmp_path), mmap_mode="r")
    part = np.memmap(tmp_path / "x.npy", np.float32, "r", HEADER, (9, 6))
    store = features.as_store("test", tmp_path / "x.npy")
    loader = NeighborLoader(graph, [1, 299], (1,), 2, labels=mapped)
    (tmp_path / "x.npy").write_bytes(DAMAGED["inserted"][0])
    message = r"in a .npy file of 7328 bytes, .* got 7352 bytes in .*x.npy"
    for read in (lambda: store.gather(IDS), lambda: loader.batch(0, 0)):
        with pytest.raises(ValueError, match=message):
            read()
    shifted = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(ValueError, match=message):
        NeighborLoader(graph, [1], (1,), 1, labels=shifted)
    assert features.as_store("test", part).gather(IDS[:2]).shape == (2, 6)


WRONG_ROWS = {
    "a row too few": lambda ids: X[ids][:-1],
    "a row too many": lambda ids: np.concatenate([X[ids], X[:1]]),
    "narrower rows": lambda ids: X[ids][:, :2],
    "integers": lambda ids: X[ids].astype(int),
    "lists": lambda ids: X[ids].tolist(),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_store_that_returns_other_rows_is_named(name):
    class Store(features.HostFeatures):
        def gather(self, ids, out=None):
            return WRONG_ROWS[name](ids)

    store, graph = Store(X), CSRGraph.from_edges([0], [1], ROWS)
    reads = [
        lambda: NeighborLoader(graph, [1], (1,), 1, features=store).batch(0, 0),
        lambda: infer_layerwise([lambda block, x: x[0]], graph, store, progress=False),
        lambda: features.CachedFeatures(store, [0, 1]),
    ]
    for read in reads:
        with pytest.raises(ValueError, match=r"whose gather returns float32\[.* of Store"):
            read()


def test_bfloat16_is_kept_also_by_files(tmp_path):
    short = X.astype(ml_dtypes.bfloat16)
    for given in (short, jnp.asarray(short), _npy(tmp_path, short)):
        store = features.as_store("test", given)
        assert store.dtype == jnp.bfloat16
        rows = store.gather(IDS)
        assert rows.dtype == jnp.bfloat16
        np.testing.assert_array_equal(rows, EXPECTED.astype(ml_dtypes.bfloat16))


def test_int8_rounds_each_row_by_its_own_scale(tmp_path):
    x = X * np.geomspace(1e-3, 1e3, ROWS, dtype=np.float32)[:, None]
    store = features.Int8Features.of(x)
    rows = np.asarray(store.gather(IDS))
    bound = np.abs(x[IDS]).max(axis=1, keepdims=True) * (0.5 / 127 + 1e-6)
    assert (np.abs(rows - np.where(IDS[:, None] >= 0, x[IDS], 0)) <= bound).all()
    scales = np.linspace(1, 2, ROWS)
    values = np.ones((ROWS, 2), np.int8)
    for given in (values, jnp.asarray(values), _npy(tmp_path, values)):
        half = features.Int8Features(given, scales, dtype=jnp.bfloat16)
        assert half.gather(IDS).dtype == half.dtype == jnp.bfloat16
        assert half.gather(IDS)[1].tolist() == [0, 0]


def test_a_cache_counts_hits_and_reads_the_store_for_misses_alone():
    reads = []

    class Store(features.HostFeatures):
        def gather(self, ids, out=None):
            reads.append(ids[ids >= 0].tolist())
            return super().gather(ids, out)

    store = features.CachedFeatures(Store(X), [7, 0])
    reads.clear()
    store.gather(IDS)
    assert reads == [[299, 150]] and (store.hits, store.misses) == (3, 2)
    assert store.hit_rate == 3 / 5
    store.gather(np.array([0, 7, -1]))
    assert len(reads) == 1 and store.hit_rate == 5 / 7


def test_the_hottest_rows_are_those_that_batches_read_most():
    hub = 5
    graph = CSRGraph.from_edges(np.full(ROWS, hub), np.arange(ROWS), ROWS)
    counts = NeighborLoader(graph, range(100), (2,), 10).read_counts()
    store = features.CachedFeatures.hottest(X, counts, share=1 / ROWS)
    store.gather(np.array([hub, 1]))
    assert (store.hits, store.misses) == (1, 1)
    assert features.CachedFeatures.hottest(X, counts, share=1.0).gather(IDS).shape == (7, 6)


def test_a_cache_compiles_for_few_numbers_of_misses():
    from jaxgnn.sampling.features.wrappers import _slots

    slots = {_slots(count, 100_000) for count in range(1, 60_000)}
    assert len(slots) < 100
    assert all(_slots(c, 10**6) >= c and _slots(c, 10**6) <= 1.13 * c + 128 for c in range(1, 9999))


def test_rows_that_are_spread_over_a_mesh_are_gathered_to_all_devices():
    mesh = Mesh(np.array(jax.devices()[:4]), "nodes")
    spread = jax.device_put(X, NamedSharding(mesh, PartitionSpec("nodes")))
    rows = features.DeviceFeatures(spread).gather(IDS)
    assert rows.sharding.is_fully_replicated and len(rows.sharding.device_set) == 4
    np.testing.assert_array_equal(rows, EXPECTED)


@pytest.mark.parametrize("name", ["memmap", "raw memmap", "file"])
def test_a_file_that_has_become_shorter_is_named(name, tmp_path):
    given = STORES[name](tmp_path)
    (path,) = tmp_path.glob("x.*")
    graph = CSRGraph.from_edges([0], [1], ROWS)
    loader = NeighborLoader(graph, [1, 299], (1,), 2, features=given)
    assert loader.batch(0, 0).x.shape[1] == 6
    with open(path, "r+b") as file:
        file.truncate(5000)
    with pytest.raises(
        ValueError, match=r"in a file of at least \d+ bytes, got 5000 bytes in .*x\."
    ):
        next(iter(loader))


BAD = [
    (lambda p: features.FileFeatures(p), "path must be a .npy file, or a folder with some"),
    (lambda p: features.FileFeatures(_unlike(p)), r"as a.npy, got float64 of shape \(2, 3\) in"),
    (lambda p: features.HostFeatures(np.float32(1)), "array must be a NumPy array"),
    (lambda p: features.CachedFeatures(X, [1, 1]), "rows must be a list of distinct integers"),
    (lambda p: features.CachedFeatures(X, [ROWS]), r"rows must be in \[0, 300\), got 300 to 300"),
    (lambda p: features.CachedFeatures.hottest(X, X[:, 0], share=2), r"share must be in \[0, 1\]"),
    (lambda p: features.CachedFeatures.hottest(X, X[:9, 0]), r"counts must be of shape \(300,\)"),
    (lambda p: features.Int8Features(X, X[:, 0]), "values must be of dtype int8, got float32"),
    (
        lambda p: features.Int8Features(X.astype(np.int8), [1.0]),
        r"scales must be of shape \(300,\)",
    ),
    (lambda p: features.Int8Features.of(np.full((2, 1), np.inf)), r"array\[0\] must be finite"),
]


def _unlike(path):
    np.save(path / "a.npy", X[:2, :3])
    np.save(path / "b.npy", X[:2, :3].astype(np.float64))
    return path


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_input_is_named(make, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_buffers_are_reused_where_the_device_does_not_read_them_in_place(monkeypatch):
    outs = []

    class Store(features.HostFeatures):
        def gather(self, ids, out=None):
            outs.append(out)
            return super().gather(ids, out)

    # A stand-in for a GPU, which copies: a CPU would read the buffer after it was refilled.
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda rows, device=None: put(rows.copy(), device))
    staged = StagedRows("test", Store(X), None)
    staged._reuses = True
    first, second = staged.gather(IDS), staged.gather(IDS[::-1])
    assert outs[0] is outs[1]
    assert staged.gather(IDS[:3]).shape == (3, 6) and outs[2] is not outs[0]
    np.testing.assert_array_equal(first, EXPECTED)
    np.testing.assert_array_equal(second, EXPECTED[::-1])
    on_device = StagedRows("test", features.DeviceFeatures(jnp.asarray(X)), None)
    np.testing.assert_array_equal(on_device.gather(IDS), EXPECTED)
