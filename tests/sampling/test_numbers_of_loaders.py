"""Loaders hand on the numbers of labels and features: never cut to 32 bits, in any byte order."""

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph, sampling
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import features, infer_layerwise
from jaxgnn.testing.numerics import assert_bit_equal

NODES = 8
RING = np.arange(NODES)
GRAPH = CSRGraph.from_edges(RING, np.roll(RING, -1), NODES)
TYPED = HeteroGraph({("a", "to", "a"): GRAPH})
LABELS = 3 * RING
X = (10 * RING[:, None] + np.arange(3)).astype(np.float32)
LARGE = 1_700_000_000_000

# Loaders without a shuffle, so that the last batch has the last node.
LOADERS = {
    "neighbour": lambda x, y: sampling.NeighborLoader(
        GRAPH, None, (1,), 4, x, y, shuffle=False, num_threads=1
    ),
    "neighbour on the device": lambda x, y: sampling.NeighborLoader(
        GRAPH, None, (1,), 4, x, y, shuffle=False, on="device", num_threads=1
    ),
    "hetero": lambda x, y: sampling.HeteroNeighborLoader(
        TYPED, ("a", None), (1,), 4, None if x is None else {"a": x}, y, shuffle=False
    ),
    "link": lambda x, y: sampling.LinkNeighborLoader(
        GRAPH, (RING, np.roll(RING, -1)), (1,), 4, x, y, shuffle=False, num_threads=1
    ),
    "cluster": lambda x, y: sampling.ClusterLoader(
        GRAPH, RING // 4, 1, features=x, labels=y, num_threads=1
    ),
    "saint": lambda x, y: sampling.SaintLoader(
        GRAPH, "node", size=5, features=x, labels=y, num_threads=1
    ),
    "shadow": lambda x, y: sampling.ShadowLoader(
        GRAPH, None, (1,), 4, features=x, labels=y, shuffle=False, num_threads=1
    ),
}
each_loader = pytest.mark.parametrize("name", LOADERS)


def _mapped(folder, array):
    np.save(folder / "values.npy", array)
    return np.load(folder / "values.npy", mmap_mode="r")


@each_loader
def test_labels_and_features_that_jax_would_cut_are_refused_at_once(name):
    late = np.append(LABELS[:-1], LARGE)
    message = "must be in the range of int32, or used under jax_enable_x64, got 1700000000000"
    for labels in (late, late.tolist(), late.astype(">i8")):
        with pytest.raises(ValueError, match=rf"sampling.\w+: labels {message}"):
            LOADERS[name](None, labels)
    with pytest.raises(ValueError, match=rf"sampling.\w+: features {message}"):
        LOADERS[name](late[:, None], None)
    with pytest.raises(
        ValueError, match=r"labels must be in the range of uint32, .* got 4294967296"
    ):
        LOADERS[name](None, LABELS.astype(np.uint64) + 2**32)


@each_loader
def test_mapped_and_stored_rows_are_checked_when_they_are_read(name, tmp_path):
    late = np.append(LABELS[:-1], LARGE)
    stored = features.HostFeatures(late[:, None])
    for argument, given in (
        ("labels", (None, _mapped(tmp_path, late))),
        ("features", (stored, None)),
    ):
        with pytest.raises(ValueError, match=f"{argument} must be in the range of int32"):
            loader = LOADERS[name](*given)
            for _ in range(8):  # a sampler may not draw the last node at first
                list(loader)


@each_loader
def test_both_byte_orders_and_all_sizes_in_range_give_the_same(name, tmp_path):
    made = LOADERS[name](X, LABELS.astype(np.int32)).batch(0, 0)
    others = [(X.astype(">f4"), LABELS.astype(">i8")), (X.astype(float), LABELS.tolist())]
    np.save(tmp_path / "x.npy", X.astype(">f4"))
    others.append((tmp_path / "x.npy", _mapped(tmp_path, LABELS.astype(">i4"))))
    for x, labels in others:
        assert_bit_equal(LOADERS[name](x, labels).batch(0, 0), made)


def test_labels_of_64_bits_are_kept_under_x64():
    with jax.enable_x64(True):
        batch = LOADERS["neighbour"](None, LABELS + LARGE).batch(0, 0)
        assert batch.y.tolist() == [LARGE, LARGE + 3, LARGE + 6, LARGE + 9]


def test_inference_and_caches_do_not_cut_either():
    layer = lambda block, x: x[0]  # noqa: E731
    x = (RING + LARGE)[:, None]
    for given in (x, features.HostFeatures(x)):
        with pytest.raises(ValueError, match="infer_layerwise: features must be in the range of"):
            infer_layerwise([layer], GRAPH, given, progress=False)
    with pytest.raises(ValueError, match="CachedFeatures: features must be in the range of int32"):
        features.CachedFeatures(x, [0])
    late = features.CachedFeatures(np.where(x == x.max(), x, 0), [0])
    with pytest.raises(ValueError, match="CachedFeatures: features must be in the range of int32"):
        late.gather(np.array([NODES - 1]))
    out = np.zeros((NODES, 3), ">f4")
    assert infer_layerwise([layer], GRAPH, X.astype(">f4"), out=out, progress=False) is out
    np.testing.assert_array_equal(out, X)
