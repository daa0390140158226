"""What is written in a published format is what the reader returns."""

import numpy as np
import pytest
import scipy.sparse

from jaxgnn import datasets
from jaxgnn.datasets.formats.matrices import read_adjacency

from . import formats


def sorted_edges(data):
    return np.array(sorted(zip(data.senders.tolist(), data.receivers.tolist(), strict=True)))


def assert_equal(got, expected):
    np.testing.assert_array_equal(sorted_edges(got), sorted_edges(expected))
    for field in ("features", "labels", "train", "validation", "test"):
        value, reference = getattr(got, field), getattr(expected, field)
        np.testing.assert_array_equal(value, reference, err_msg=field)
        assert value.dtype == reference.dtype, field
    assert got.senders.dtype == got.receivers.dtype == np.int32
    assert got.num_classes == expected.num_classes
    assert got.multilabel == expected.multilabel


@pytest.mark.every
@pytest.mark.parametrize("name", ["reddit", "flickr", "ogbn-products", "ogbn-arxiv"])
def test_reading_gives_back_what_was_written(name, tmp_path):
    formats.WRITERS[name](tmp_path)
    data = datasets.read(name, tmp_path)
    assert data.name == name
    assert_equal(data, formats.small_dataset())


@pytest.mark.parametrize("layout", [scipy.sparse.coo_matrix, scipy.sparse.csr_matrix])
def test_the_rows_of_a_directed_matrix_are_its_senders(layout, tmp_path):
    rows, columns = np.array([0, 0, 2]), np.array([1, 3, 1])
    file = tmp_path / "matrix.npz"
    scipy.sparse.save_npz(file, layout((np.ones(3), (rows, columns)), (4, 4)))
    senders, receivers, num_nodes = read_adjacency(file)
    np.testing.assert_array_equal((senders, receivers), (rows, columns))
    assert num_nodes == 4


def test_every_format_has_a_reader():
    assert set(datasets.READERS) == set(formats.WRITERS)


def test_lists_of_labels_make_a_multilabel_set(tmp_path):
    formats.WRITERS["yelp"](tmp_path)
    assert_equal(datasets.read("yelp", tmp_path), formats.small_dataset(tasks=5))


def test_graphsaint_matrix_without_a_format_entry_is_read_as_csr(tmp_path):
    expected = formats.small_dataset()
    formats.write_graphsaint(tmp_path, expected, stored_format=False)
    assert_equal(datasets.read_graphsaint(tmp_path, "other"), expected)


def test_standardize_uses_the_training_nodes_and_only_centres_a_constant_feature(tmp_path):
    stored = formats.small_dataset()
    stored.features[:, 1] = 2.5
    formats.write_graphsaint(tmp_path, stored)
    data = datasets.read("flickr", tmp_path, standardize=True)
    mean, deviation = stored.features[data.train].mean(0), stored.features[data.train].std(0)
    deviation[1] = 1
    np.testing.assert_allclose(data.features, (stored.features - mean) / deviation, atol=1e-6)
    assert data.features.dtype == np.float32


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_proteins_nodes_get_the_features_of_their_incident_edges(reduction, tmp_path):
    written = formats.small_dataset(tasks=formats.TASKS)
    per_edge = formats.edge_features(written)
    formats.write_ogb(tmp_path, written, "ogbn-proteins", edge_features=per_edge)
    data = datasets.read("ogbn-proteins", tmp_path, edge_reduction=reduction)
    expected = np.zeros((written.num_nodes, formats.EDGE_FEATURES))
    np.add.at(expected, written.receivers, np.concatenate([per_edge, per_edge]))
    if reduction == "mean":
        degrees = np.bincount(written.receivers, minlength=written.num_nodes)
        expected /= np.maximum(degrees, 1)[:, None]
    np.testing.assert_allclose(data.features, expected, rtol=1e-6)
    assert not data.features[-1].any()  # the isolated node
    np.testing.assert_array_equal(sorted_edges(data), sorted_edges(written))
    np.testing.assert_array_equal(data.labels, written.labels)
    assert data.num_classes == formats.TASKS


def test_uncompressed_csv_is_read_too(tmp_path):
    expected = formats.small_dataset()
    formats.write_ogb(tmp_path, expected, "ogbn-products", compressed=False)
    assert_equal(datasets.read("ogbn-products", tmp_path), expected)


def test_arxiv_can_stay_directed(tmp_path):
    formats.WRITERS["ogbn-arxiv"](tmp_path)
    data = datasets.read("ogbn-arxiv", tmp_path, undirected=False)
    assert data.num_edges == formats.small_dataset().num_edges // 2
    assert (data.senders < data.receivers).all()


def test_repeated_edges_are_dropped_from_undirected_arxiv_but_kept_in_products(tmp_path):
    once = formats.small_dataset()
    for name, factor in (("ogbn-arxiv", 1), ("ogbn-products", 2)):
        folder = tmp_path / name
        formats.write_ogb(folder, once, name)
        edges = np.stack([once.senders, once.receivers], axis=1)  # both directions are listed
        formats.write_csv(folder / "raw/edge.csv", edges, compressed=True)
        formats.write_csv(folder / "raw/num-edge-list.csv", [[len(edges)]], compressed=True)
        assert datasets.read(name, folder).num_edges == factor * once.num_edges


def test_labels_written_as_floats_are_read_as_whole_numbers(tmp_path):
    expected = formats.small_dataset()
    formats.write_ogb(tmp_path, expected, "ogbn-products")
    labels = expected.labels[:, None].astype(float)
    formats.write_csv(tmp_path / "raw/node-label.csv", labels, compressed=True)
    assert_equal(datasets.read("ogbn-products", tmp_path), expected)


def test_unknown_name_lists_the_names(tmp_path):
    with pytest.raises(ValueError, match=r"flickr.*ogbn-arxiv.*'cora'"):
        datasets.read("cora", tmp_path)


def test_unknown_ogb_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ogbn-products.*'ogbn-mag'"):
        datasets.read_ogb(tmp_path, "ogbn-mag")
    with pytest.raises(ValueError, match=r"edge_reduction.*'max'"):
        datasets.read("ogbn-proteins", tmp_path, edge_reduction="max")
