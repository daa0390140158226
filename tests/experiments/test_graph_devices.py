"""Experiments on one graph have, on several devices, the losses of one; each device reads its rows.

Networks of MaxK are trained on several devices in ``tests/distributed``.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx

from experiments._seeds import Repeats
from experiments._spread import spread_features, spread_graph
from experiments.attention.compare import compare as compare_attention
from experiments.attention.config import AttentionConfig
from experiments.attention.train import train as train_attention
from experiments.attention.train import train_all as train_attentions
from experiments.hgnn.config import NodesConfig
from experiments.hgnn.nodes import nodes, spread_columns
from experiments.links.config import TrainConfig as LinksConfig
from experiments.links.train import train as train_links
from experiments.links.train import train_all as train_all_links
from experiments.maxk.compare import compare as compare_maxk
from experiments.maxk.config import TrainConfig as MaxKConfig
from experiments.maxk.train import train as train_maxk
from jaxgnn import CSRGraph, datasets, distributed
from jaxgnn.models import HypergraphGNN
from tests.datasets import formats
from tests.distributed._commands import run_two

TINY = datasets.SyntheticScale(
    nodes=50, edges=300, features=6, communities=3, exponent=0.5, train=0.6, validation=0.2
)


@pytest.fixture(scope="module")
def tiny():
    return datasets.synthetic(TINY, seed=0)


ATTENTION = {
    "dataset": "synthetic",
    "model": "transformer",
    "laplacian": 2,
    "virtual_nodes": 1,
    "num_layers": 1,
    "hidden_features": 8,
    "heads": 2,
    "epochs": 3,
    "progress": False,
}
LINKS = {
    "dataset": "synthetic",
    "hidden_features": 8,
    "embedding_features": 4,
    "input_dropout": 0.1,
    "epochs": 3,
    "eval_every": 1,
    "candidates": 5,
    "progress": False,
}
CASES = {
    "transformer": (train_attention, AttentionConfig(**ATTENTION)),
    "links": (train_links, LinksConfig(**LINKS)),
}


@pytest.mark.again("tests/distributed/test_training.py")
@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_a_training_on_devices_has_the_losses_of_one(name, tiny, tmp_path, four_devices):
    train, config = CASES[name]
    histories = []
    for devices, partition in ((1, "degree"), (4, "contiguous")):
        own = {"devices": devices, "partition": partition, "run": tmp_path / str(devices)}
        histories.append(train(dataclasses.replace(config, **own), tiny).history)
    one, four = histories
    assert one[0]["loss"] != one[-1]["loss"]
    for row, wanted in zip(four, one, strict=True):
        assert row == pytest.approx(wanted, rel=1e-4)


@pytest.mark.again("tests/distributed/test_training.py")
@pytest.mark.costly
@pytest.mark.parametrize("kind", ["unigin"])
def test_a_training_on_columns_of_a_hypergraph_has_the_losses_of_one_device(
    kind, tmp_path, four_devices
):
    histories = []
    for devices in (1, 4):
        options = {"devices": devices, "run": tmp_path / str(devices), "implementation": "xla"}
        config = NodesConfig(
            model=kind, hidden_features=8, epochs=3, eval_every=1, progress=False, **options
        )
        histories.append(nodes(config, formats.small_hypergraph()).history)
    one, four = histories
    for row, wanted in zip(four, one, strict=True):
        assert row == pytest.approx(wanted, rel=1e-4)


def test_columns_of_parameters_lie_on_different_devices(four_devices):
    model = HypergraphGNN(5, 8, 3, num_layers=2, implementation="xla", rngs=nnx.Rngs(0))
    before = jax.device_get(nnx.state(model))
    spread_columns(model, (), 4)
    for path, array in nnx.to_flat_state(nnx.state(model)):
        shard = array[...].addressable_shards[0].data
        divided = array.shape[-1] % 4 == 0
        assert shard.shape[-1] == array.shape[-1] // (4 if divided else 1), path
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(nnx.state(model)), before)


BAD_COLUMNS = {
    "nodes: --hidden-features must be divisible by --devices 3, got 64": {"devices": 3},
    "nodes: --implementation must be left out, or xla, with --devices 2, got ffi": {
        "devices": 2,
        "implementation": "ffi",
    },
    r"nodes: --devices must be in 1\.\.\d+, .*, got 99": {"devices": 99},
    "nodes: --devices must be at least 1, got 0": {"devices": 0},
}


@pytest.mark.parametrize("message", BAD_COLUMNS)
def test_devices_that_do_not_fit_a_hypergraph_are_named(message, tmp_path, four_devices):
    with pytest.raises(ValueError, match=message):
        nodes(NodesConfig(run=tmp_path / "run", **BAD_COLUMNS[message]))
    assert not (tmp_path / "run").exists()


def test_each_device_reads_its_own_rows_once_and_no_others(tiny, four_devices):
    class Recorded(np.ndarray):
        def __getitem__(self, index):
            read.append(np.array(index))
            return np.asarray(self)[index]

    read: list[np.ndarray] = []
    config = MaxKConfig(devices=4, partition="contiguous")
    whole = CSRGraph.from_edges(tiny.senders, tiny.receivers, tiny.num_nodes)
    graph = spread_graph(whole, config, ("spmm",))
    recorded = dataclasses.replace(tiny, features=tiny.features.view(Recorded))
    features = spread_features(graph, recorded, "float32")
    np.testing.assert_array_equal(graph.gather_rows(features), tiny.features)
    expected = [np.flatnonzero(graph.partition.part_of == part) for part in range(4)]
    assert sorted(rows.tolist() for rows in read) == sorted(rows.tolist() for rows in expected)


def test_features_of_a_node_that_are_not_finite_are_named(tiny, four_devices):
    features = tiny.features.copy()
    features[7, 2] = np.nan
    spoiled = dataclasses.replace(tiny, features=features)
    whole = CSRGraph.from_edges(tiny.senders, tiny.receivers, tiny.num_nodes)
    graph = spread_graph(whole, MaxKConfig(devices=2), ("spmm",))
    with pytest.raises(
        ValueError, match=r"features of synthetic-custom must be finite .* at node 7"
    ):
        spread_features(graph, spoiled, "float32")


def _write_own(folder, data):
    """A folder of a graph of one's own, all files in numpy's format."""
    folder.mkdir()
    np.save(folder / "edges.npy", np.stack([data.senders, data.receivers]))
    np.save(folder / "labels.npy", data.labels)
    np.save(folder / "features.npy", data.features)
    for part in ("train", "validation", "test"):
        np.save(folder / f"{part}.npy", getattr(data, part))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("command", ["maxk", "attention"])
def test_a_process_uses_no_features_but_those_of_its_own_rows(
    command, tiny, tmp_path, four_devices
):
    """Each process has a file in which the rows of the other one are no numbers."""
    folder = _write_own(tmp_path / "graph", tiny)
    options = {
        "dataset": str(folder),
        "num_layers": 1,
        "hidden_features": 8,
        "epochs": 4,
        "devices": 2,
        "partition": "contiguous",
    }
    one = {"run": tmp_path / "one", "progress": False}
    if command == "maxk":
        wanted = train_maxk(MaxKConfig(**options, k=(4,), **one)).history
        options |= {"k": 4}
    else:
        options |= {"model": "transformer", "heads": 2, "virtual_nodes": 1}
        wanted = train_attention(AttentionConfig(**options, **one)).history
    own = datasets.read_graph(folder)
    whole = CSRGraph.from_edges(own.senders, own.receivers, own.num_nodes).with_self_loops()
    part_of = distributed.partition(whole, 2, "contiguous").part_of
    files = []
    for process in range(2):
        features = tiny.features.copy()
        features[part_of != process] = np.nan
        files.append(tmp_path / f"of{process}.npy")
        np.save(files[-1], features)
    typed = [f"--{name.replace('_', '-')}" for name in options]
    values = map(str, options.values())
    shared = [part for pair in zip(typed, values, strict=True) for part in pair]
    shared += ["--no-progress", "--num-processes", "2", "--run", str(tmp_path / "two")]
    own_files = [("--features", str(file)) for file in files]
    texts, codes, _ = run_two(shared, others=own_files, module=f"experiments.{command}")
    assert codes == [0, 0], texts
    assert "trivial methods are left out: no process reads the features of all" in texts[0][0]
    rows = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    for row, expected in zip(map(json.loads, rows), wanted, strict=True):
        assert row == pytest.approx(expected, rel=1e-5)


ON_ONE = {
    "--vmap": lambda config: train_attentions(config, Repeats((0, 1)), vmap=True),
    "--processes": lambda config: train_attentions(config, Repeats((0, 1), 2)),
    "compare": lambda config: compare_attention(config, repeats=Repeats((0, 1)), vmap=True),
}


@pytest.mark.parametrize("name", ON_ONE)
def test_what_runs_on_one_device_is_refused_with_several(name, tmp_path, four_devices):
    config = AttentionConfig(devices=2, run=tmp_path / "run")
    with pytest.raises(ValueError, match="must be left out with --devices 2"):
        ON_ONE[name](config)
    with pytest.raises(ValueError, match="--processes must be left out with --devices 2"):
        train_all_links(LinksConfig(devices=2), Repeats((0, 1), 2))
    with pytest.raises(ValueError, match="compare: --vmap must be left out with --devices 2"):
        compare_maxk(MaxKConfig(devices=2), (), Repeats((0, 1)), vmap=True)


BAD = {
    r"--devices must be in 1\.\.\d+, the devices that there are, got 99": {"devices": 99},
    "--devices must be at least 1, got 0": {"devices": 0},
    "--partition must be left out with --devices 1, got random": {"partition": "random"},
}


@pytest.mark.parametrize("message", BAD)
@pytest.mark.parametrize("case", [(train_attention, AttentionConfig), (train_links, LinksConfig)])
def test_devices_that_do_not_fit_are_named_as_they_are_typed(message, case, tmp_path):
    train, config = case
    with pytest.raises(ValueError, match=message):
        train(config(run=tmp_path / "run", **BAD[message]))
    assert not (tmp_path / "run").exists()


def test_a_partition_whose_package_is_missing_is_named(tiny, monkeypatch, four_devices):
    def missing(*_, **__):
        raise ImportError("partition: method 'metis' needs pymetis")

    monkeypatch.setattr(distributed, "shard", missing)
    whole = CSRGraph.from_edges(tiny.senders, tiny.receivers, tiny.num_nodes)
    with pytest.raises(ValueError, match="--partition must be another method where a package is"):
        spread_graph(whole, MaxKConfig(devices=2, partition="metis"), ("spmm",))
    assert jax.device_count() >= 4
