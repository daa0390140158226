"""The benchmark of sampling on the device, and the random graphs that it samples."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.benchmarks import sample_on_device
from experiments.benchmarks._cugraph import CuGraph
from experiments.benchmarks._random_graph import SIZES, random_graph
from experiments.benchmarks._report import read_rows
from experiments.benchmarks.sample_on_device import Options, main
from jaxgnn.sampling import reference


def test_random_graphs_have_their_mean_degree_and_nodes_of_many_edges_send_many():
    num_nodes, mean_degree = SIZES["small"]
    graph = random_graph("small")
    indptr, indices = (np.asarray(array) for array in graph)
    received = np.diff(indptr)
    assert graph.num_nodes == num_nodes and indptr[0] == 0 and indptr[-1] == len(indices)
    assert abs(received.mean() / mean_degree - 1) < 0.15
    sent = np.bincount(indices, minlength=num_nodes)
    assert len(sent) == num_nodes and received.max() > 10 * mean_degree
    assert np.corrcoef(received, sent)[0, 1] > 0.2
    with pytest.raises(ValueError, match="products, papers, small"):
        random_graph("reddit")


def test_each_program_is_timed_with_its_memory_and_its_compilation(tmp_path, capsys):
    options = {"fanouts": (2,), "batch_size": 16, "in_flight": (2,), "relabelling": ("marks",)}
    main(Options(graph="small", repeats=1, out=tmp_path, **options))
    (row,) = read_rows(tmp_path / "sample_on_device.jsonl")
    assert row["relabelling"] == "marks" and row["in_flight"] == 2 and row["overflows"] == 0
    assert 16 < row["edges_per_batch"] <= 32 and row["ms_per_batch"] > 0
    speed = row["edges_per_batch"] / row["ms_per_batch"] / 1e3
    assert row["million_edges_per_s"] == pytest.approx(speed)
    printed = capsys.readouterr().out
    assert "M edges/s" in printed and "no rows of pylibcugraph: it needs a GPU" in printed


class OnDevice(np.ndarray):
    """An array with the attribute that pylibcugraph reads arrays by."""

    __cuda_array_interface__ = None


class FakeGraph:
    """Draws as pylibcugraph is documented to; ``shift`` names wrong senders."""

    shift = 0

    def __init__(self, handle, properties, receivers, senders, *, vertices_array, **options):
        assert properties == {"is_symmetric": False, "is_multigraph": True}
        counts = np.bincount(receivers, minlength=len(vertices_array))
        self.indices, self.indptr = senders, np.append(0, np.cumsum(counts))

    def sample(self, seeds, offsets, fanouts, *, prior_sources_behavior, random_state, **options):
        made = {"majors": [], "minors": [], "edge_id": [], "renumber_map": []}
        hop_offsets, map_offsets = [0], [0]
        for batch in range(len(offsets) - 1):
            n_id = drawn = np.unique(seeds[offsets[batch] : offsets[batch + 1]])
            used = drawn[:0]
            for hop, fanout in enumerate(fanouts):
                keys = reference.randomness(random_state, batch, 0, hop)
                _, edges = reference.sample_rows(self.indptr, self.indices, drawn, fanout, keys)
                rows = np.searchsorted(self.indptr, edges, side="right") - 1
                senders = self.indices[edges]
                used = np.union1d(used, drawn)
                n_id = np.append(n_id, np.setdiff1d(senders, n_id))
                drawn = n_id
                if prior_sources_behavior == "exclude":
                    drawn = np.setdiff1d(senders, used)
                place = np.zeros(len(self.indptr) - 1, np.int32)
                place[n_id] = np.arange(len(n_id))
                made["edge_id"].append(edges)
                made["majors"].append(place[rows])
                made["minors"].append((place[senders] + self.shift) % len(n_id))
                hop_offsets.append(hop_offsets[-1] + len(edges))
            made["renumber_map"].append(n_id)
            map_offsets.append(map_offsets[-1] + len(n_id))
        arrays = {name: np.concatenate(parts) for name, parts in made.items()}
        offsets = {"label_hop_offsets": hop_offsets, "renumber_map_offsets": map_offsets}
        return arrays | {name: np.array(values) for name, values in offsets.items()}


@pytest.fixture
def pylibcugraph(monkeypatch):
    """Fakes of pylibcugraph, cupy and rmm."""
    fake = SimpleNamespace(
        __version__="0",
        ResourceHandle=object,
        GraphProperties=dict,
        SGGraph=FakeGraph,
        homogeneous_uniform_neighbor_sample=lambda handle, graph, *args, **options: graph.sample(
            *args, **options
        ),
    )
    cupy = SimpleNamespace(
        asarray=lambda array: np.asarray(array).view(OnDevice),
        asnumpy=np.asarray,
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
        cuda=SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=lambda: None)),
    )
    rmm = SimpleNamespace(reinitialize=lambda **options: None)
    for name, module in {"pylibcugraph": fake, "cupy": cupy, "rmm": rmm}.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_pylibcugraph_is_timed_beside_ours(pylibcugraph, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_on_device.jax, "default_backend", lambda: "gpu")
    options = {"fanouts": (3, 2), "batch_size": 16, "in_flight": (2,), "relabelling": ("sort",)}
    main(Options(graph="small", repeats=1, out=tmp_path, **options))
    ours, every, new = read_rows(tmp_path / "sample_on_device.jsonl")
    assert [row["candidate"] for row in (ours, every, new)] == ["jaxgnn"] + 2 * ["pylibcugraph"]
    assert (every["sources"], new["sources"], every["pylibcugraph"]) == ("all", "new", "0")
    assert new["edges_per_batch"] < every["edges_per_batch"]
    assert every["edges_per_batch"] == pytest.approx(ours["edges_per_batch"], rel=0.2)


def test_wrong_samples_of_pylibcugraph_are_found(pylibcugraph, monkeypatch):
    monkeypatch.setattr(FakeGraph, "shift", 1)
    graph = random_graph("small")
    peer = CuGraph(graph, (3, 2))
    seeds, _ = next(sample_on_device.batches(graph, 16, 2, 1))
    with pytest.raises(ValueError, match="wrong edges in hop 0 of all nodes"):
        peer.check(seeds)


def test_bad_options_are_named():
    for wrong, message in (({"graph": "cora"}, "--graph"), ({"batch_size": 0}, "positive")):
        with pytest.raises(ValueError, match=message):
            Options(**wrong)
