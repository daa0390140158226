"""``--data`` is read by every experiment that has files for it, and refused by all others."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from experiments._node_data import load, make_graph, say_weights_are_unused
from experiments.attention.config import AttentionConfig
from experiments.attention.recipes import recipe as attention_recipe
from experiments.graphs.config import GraphsConfig
from experiments.graphs.data import load as load_graphs
from experiments.hgnn.config import NodesConfig
from experiments.hgnn.data import load as load_hypergraph
from experiments.hgnn.nodes import nodes
from experiments.links.config import TrainConfig as LinksConfig
from experiments.maxk.config import TrainConfig as MaxKConfig
from jaxgnn.datasets import NodeDataset
from tests.datasets import formats

NODE_CONFIGS = (MaxKConfig, AttentionConfig, LinksConfig)


@pytest.fixture(scope="module")
def planetoid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planetoid")
    return folder, formats.write_planetoid(folder, "citeseer")


def _assert_same(found, expected):
    for field in ("senders", "receivers", "features", "labels", "train", "validation", "test"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), field)


@pytest.mark.parametrize("config", NODE_CONFIGS)
def test_the_files_of_planetoid_are_read_where_data_names_their_folder(config, planetoid):
    folder, expected = planetoid
    _assert_same(load(config(dataset="citeseer", data=folder)), expected)


def test_pytorch_geometrics_folder_is_read_as_planetoids(planetoid, tmp_path):
    folder, expected = planetoid
    raw = tmp_path / "CiteSeer" / "raw"
    shutil.copytree(folder, raw)
    for data in (tmp_path, tmp_path / "CiteSeer"):
        _assert_same(load(MaxKConfig(dataset="citeseer", data=data)), expected)


def test_weights_of_ones_own_graph_reach_the_network_and_other_numbers_are_named(tmp_path, capsys):
    (tmp_path / "labels.csv").write_text("a\nb\n" * 5)
    rows = "".join(f"{i},{(i + 1) % 10},{i + 1},7\n" for i in range(10))
    (tmp_path / "edges.csv").write_text("u,v,weight,year\n" + rows)
    data = load(MaxKConfig(dataset=str(tmp_path)))
    assert "features of edges (year) are not used" in capsys.readouterr().out
    say_weights_are_unused(data, "attention")
    assert "weights of edges are not used by attention" in capsys.readouterr().out
    graph = make_graph(data, None, "mean", 0)
    row = graph.to_scipy()[[1]].toarray()[0]  # of node 1: edges of weight 1 and 2
    np.testing.assert_allclose(row[[0, 2]], [1 / 3, 2 / 3], rtol=1e-6)


def _write_npz(path):
    """A ring of 240 nodes of four classes."""
    nodes = np.arange(240, dtype=np.int32)
    data = NodeDataset(
        name="ring",
        senders=nodes,
        receivers=np.roll(nodes, 1),
        features=np.eye(240, dtype=np.float32)[:, :5],
        labels=nodes % 4,
        train=nodes[:1],
        validation=nodes[1:2],
        test=nodes[2:],
        num_classes=4,
    )
    formats.write_npz_graph(path, data)
    return data


def test_an_npz_file_is_read_by_its_path_in_its_folder_and_as_a_graph_of_ones_own(tmp_path):
    file = tmp_path / "cora.npz"
    expected = _write_npz(file)
    found = [
        load(MaxKConfig(dataset="cora", data=file, seed=3)),
        load(MaxKConfig(dataset="cora", data=tmp_path, seed=3)),
        load(MaxKConfig(dataset=str(file), seed=3)),
    ]
    for data in found:
        np.testing.assert_array_equal(data.labels, expected.labels)
        assert (data.num_edges, data.train.size) == (480, 80)
        np.testing.assert_array_equal(data.train, found[0].train)


def test_runs_on_files_of_cora_have_another_folder_than_those_on_the_embedded_one(tmp_path):
    for config in NODE_CONFIGS:
        folders = [config(data=data).run_folder() for data in (None, tmp_path / "planetoid")]
        assert folders[0] != folders[1]


def test_citeseer_and_pubmed_have_the_recipes_of_cora():
    for name in ("citeseer", "pubmed"):
        assert MaxKConfig(dataset=name).recipe() == MaxKConfig(dataset="cora").recipe()
        assert MaxKConfig(dataset=name).kind() == MaxKConfig(dataset="cora").kind()
        assert attention_recipe(name, "gat") == attention_recipe("cora", "gat")


def test_a_hyperedge_of_papers_is_a_paper_and_its_neighbours(planetoid, tmp_path):
    folder, graph = planetoid
    config = NodesConfig(
        dataset="citeseer", data=folder, epochs=1, run=tmp_path / "run", progress=False
    )
    found = load_hypergraph(config)
    assert found.num_hyperedges == graph.num_nodes
    for node in (0, 100, graph.num_nodes - 1):
        members = found.node_ids[found.hyperedge_ids == node]
        neighbours = graph.senders[graph.receivers == node]
        assert sorted(members.tolist()) == sorted({node, *neighbours.tolist()})
    assert 0 <= nodes(config).test <= 1


REFUSED = {
    "digits": (load, MaxKConfig(dataset="digits"), "train: --data must be left out for digits"),
    "synthetic": (load, AttentionConfig(dataset="synthetic"), "left out for synthetic, which is"),
    "links": (load, LinksConfig(dataset="digits"), "train: --data must be left out for digits"),
    "own graph": (load, MaxKConfig(dataset="."), r"--data must be left out for \., which is the"),
    "mutag": (load_graphs, GraphsConfig(dataset="mutag"), "--data must be left out for mutag"),
    "own graphs": (load_graphs, GraphsConfig(dataset="."), r"--data must be left out for \., whi"),
    "hypergraph": (load_hypergraph, NodesConfig(), "nodes: --data must be left out for digits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_is_refused_where_nothing_would_be_read_from_it(name, tmp_path):
    read, config, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        read(replace(config, data=tmp_path))


def test_options_of_another_hypergraph_are_refused(tmp_path):
    for name, value in (("split", 3), ("first_id", 0), ("feature_noise", 0.1)):
        option = "--" + name.replace("_", "-")
        with pytest.raises(ValueError, match=f"nodes: {option} must be left out for digits"):
            load_hypergraph(NodesConfig(**{name: value}))


def test_a_citation_network_without_files_asks_for_them():
    with pytest.raises(ValueError, match="train: --data must be the folder with the raw files of"):
        load(MaxKConfig(dataset="pubmed"))
