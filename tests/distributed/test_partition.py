"""Partitions give every row to a part, count what that costs, and refuse what can not be."""

import sys
import types

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph, distributed
from jaxgnn.distributed._blocks import Cutter, Layout
from jaxgnn.distributed._partition import _METHODS
from tests.distributed._graphs import NODES, graph
from tests.distributed.two_processes import mapped_graph

METHODS = ("contiguous", "random", "degree", "communities")


def _counts(graph, part_of, parts):
    """Edges and halo rows of each part, and edges between parts, by loops over edges."""
    edges, read, cut = np.zeros(parts, int), [set() for _ in range(parts)], 0
    for row in range(graph.num_rows):
        for sender in graph.indices[graph.indptr[row] : graph.indptr[row + 1]].tolist():
            part = part_of[row]
            edges[part] += 1
            if part_of[sender] != part:
                read[part].add(sender)
                cut += 1
    return edges.tolist(), [len(nodes) for nodes in read], cut


@pytest.mark.parametrize("parts", [1, 3, 4])
@pytest.mark.parametrize("method", METHODS)
def test_every_row_has_a_part_and_edges_and_halo_rows_are_counted(method, parts):
    made = distributed.partition(graph(), parts, method)
    edges, halo_rows, cut = _counts(graph(), made.part_of, parts)
    assert made.rows.tolist() == np.bincount(made.part_of, minlength=parts).tolist()
    assert made.rows.sum() == NODES and made.rows.all()
    assert (made.edges.tolist(), made.halo_rows.tolist(), made.cut_edges) == (edges, halo_rows, cut)
    assert made.imbalance == max(edges) / np.mean(edges)


def test_dealing_by_degree_balances_edges_and_rows_of_a_power_law(monkeypatch):
    draws = np.random.default_rng(0)
    receivers = (4000 * draws.random(50_000) ** 2).astype(np.int32)  # the largest has a 63rd
    power_law = CSRGraph.from_edges(draws.integers(0, 4000, 50_000), receivers, 4000)
    monkeypatch.setattr("jaxgnn.distributed._partition._ROWS_BY_LOAD", 1000)
    made = distributed.partition(power_law, 8, "degree")
    assert made.imbalance < 1.01 and made.rows.max() < 1.05 * 500


def test_a_contiguous_partition_keeps_the_order_and_cuts_where_edges_are_equal():
    senders, receivers = np.arange(12) % 6, np.array([0] * 6 + [1, 2, 3, 4, 5, 5])
    made = distributed.partition(CSRGraph.from_edges(senders, receivers, 6), 2, "contiguous")
    assert made.part_of.tolist() == [0, 0, 1, 1, 1, 1] and made.edges.tolist() == [7, 5]


def test_one_row_of_all_edges_leaves_no_contiguous_part_empty():
    hub = CSRGraph.from_edges(np.zeros(100, int), np.full(100, 3), 4)
    assert distributed.partition(hub, 4, "contiguous").part_of.tolist() == [0, 1, 2, 3]


def test_random_partitions_repeat_with_their_seed():
    first, same, other = (
        distributed.partition(graph(), 2, "random", seed=seed).part_of for seed in (1, 1, 2)
    )
    assert (first == same).all() and (first != other).any()


def test_communities_keep_most_edges_within_parts_of_similar_size():
    def inside(senders, receivers, parts):
        nodes = int(max(senders.max(), receivers.max())) + 1
        hidden = np.random.default_rng(0).permutation(nodes)  # so that ids tell nothing
        whole = CSRGraph.from_edges(hidden[senders], hidden[receivers], nodes)
        part_of = distributed.partition(whole, parts, "communities").part_of
        sizes = np.bincount(part_of, minlength=parts) * parts / nodes
        assert sizes.min() >= 0.5 and sizes.max() <= 1.06
        again = distributed.partition(whole, parts, "communities").part_of
        assert (again == part_of).all()
        return (part_of[hidden[senders]] == part_of[hidden[receivers]]).mean()

    cliques = np.nonzero(np.kron(np.eye(20), np.ones((10, 10))))
    assert inside(*cliques, 20) > 0.95
    ids = np.arange(900).reshape(30, 30)
    right, down = (ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])
    grid = [np.concatenate([a.ravel(), b.ravel()]) for a, b in zip(right, down, strict=True)]
    assert inside(*grid, 9) > 0.75


@pytest.mark.parametrize("parts", [1, 2, 5, 6, 7])
def test_communities_of_graphs_with_few_edges_are_parts_of_any_number(parts):
    for ends in ([], []), ([0, 0, 6], [0, 1, 5]):
        few = CSRGraph.from_edges(*ends, 7)
        assert distributed.partition(few, parts, "communities").rows.all()


def test_metis_is_asked_for_a_balance_of_edges(monkeypatch):
    asked = {}

    def part_graph(parts, adjacency, vweights):
        asked.update(parts=parts, adjacency=adjacency, weights=vweights)
        return 0, [row % parts for row in range(NODES)]

    fake = types.SimpleNamespace(part_graph=part_graph, CSRAdjacency=lambda *csr: csr)
    monkeypatch.setitem(sys.modules, "pymetis", fake)
    made = distributed.partition(graph(), 2, "metis")
    assert made.part_of.tolist() == [row % 2 for row in range(NODES)]
    assert asked["weights"].tolist() == (np.diff(graph().indptr) + 1).tolist()
    assert asked["parts"] == 2
    pairs = {frozenset(pair) for pair in zip(*graph().to_scipy().nonzero(), strict=True)}
    offsets, neighbours = asked["adjacency"]
    rows = np.repeat(np.arange(NODES), np.diff(offsets))
    both = list(zip(rows.tolist(), neighbours.tolist(), strict=True))
    assert {frozenset(pair) for pair in both} == {pair for pair in pairs if len(pair) == 2}
    assert len(both) == 2 * len({frozenset(pair) for pair in both})


def test_metis_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match="needs the package pymetis"):
        distributed.partition(graph(), 2, "metis")


def _made_by(cache, monkeypatch, whole=None, parts=2, seed=0):
    """A partition with this cache, and how often the method ran for it."""
    calls, method = [], _METHODS["random"]
    counted = lambda *given: calls.append(1) or method(*given)  # noqa: E731
    monkeypatch.setitem(_METHODS, "random", counted)
    made = distributed.partition(whole or graph(), parts, "random", seed=seed, cache=cache)
    monkeypatch.setitem(_METHODS, "random", method)
    return made, len(calls)


def test_a_partition_is_made_once_for_the_same_graph_and_arguments(tmp_path, monkeypatch):
    folder = tmp_path / "new" / "cache"
    first, calls = _made_by(folder, monkeypatch)
    assert calls == 1 and len(list(folder.iterdir())) == 1
    again, calls = _made_by(folder, monkeypatch)
    assert calls == 0 and (again.part_of == first.part_of).all()
    assert repr(again) == repr(first)
    weighted = graph().with_weights(np.ones(graph().num_edges, np.float32))
    assert _made_by(folder, monkeypatch, weighted)[1] == 0
    for other in ({"seed": 1}, {"parts": 3}, {"whole": graph().transpose()}):
        assert _made_by(folder, monkeypatch, **other)[1] == 1
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("fault", ["cut off", "other parts", "other rows", "no archive"])
def test_a_partition_that_can_not_be_read_is_made_anew_with_a_warning(fault, tmp_path, monkeypatch):
    first, _ = _made_by(tmp_path, monkeypatch)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    if fault == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif fault == "no archive":
        path.write_text("part_of")
    else:
        with np.load(path) as file:
            part_of, digest = file["part_of"], file["digest"]
        part_of = part_of[::-1] if fault == "other parts" else part_of[1:]
        np.savez(path, part_of=part_of, digest=digest)
    with pytest.warns(UserWarning, match="partition: .*npz is made anew: "):
        made, calls = _made_by(tmp_path, monkeypatch)
    assert calls == 1 and (made.part_of == first.part_of).all()
    assert path.read_bytes() == whole and _made_by(tmp_path, monkeypatch)[1] == 0


def test_of_a_mapped_graph_a_block_reads_the_senders_of_its_own_rows_alone(tmp_path):
    """All other senders are out of range: reading one would fail."""
    right = distributed.partition(graph(), 4, "contiguous")
    for own in range(4):
        folder = tmp_path / str(own)
        folder.mkdir()
        mapped = mapped_graph(graph(), 4, [own], folder)
        assert isinstance(mapped.indices, np.memmap)
        for method in ("degree", "random", "contiguous"):
            made = distributed.partition(mapped, 4, method)
        assert made.edges.tolist() == right.edges.tolist()
        layout = Layout.from_partition(made)
        whole = Layout.from_partition(right)
        block = Cutter(mapped, layout, layout, lists=False).cut(own)
        expected = Cutter(graph(), whole, whole, lists=False).cut(own)
        np.testing.assert_array_equal(block.indices, expected.indices)
        with pytest.raises(IndexError):
            made.halo_rows  # noqa: B018


BAD = {
    "parts must be at most one for each of 23 rows, got 24": (24, "degree"),
    "parts must be an integer of at least 1, got 0": (0, "degree"),
    "parts must be an integer of at least 1, got True": (True, "degree"),
    "method must be 'contiguous', 'random', 'degree', .*'metis' or an array, got 'best'": (
        2,
        "best",
    ),
    r"method must be integers of shape \(23,\)": (2, np.zeros(22, int)),
    "the part of each row, got float": (2, np.zeros(NODES)),
    "must be parts from 0 to 1, got 0 to 2": (2, np.arange(NODES) % 3),
    "must be at least one row for each of 3 parts, got none for part 2": (
        3,
        np.arange(NODES) % 2,
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_with_numbers(message):
    parts, method = BAD[message]
    with pytest.raises(ValueError, match=f"partition: .*{message}"):
        distributed.partition(graph(), parts, method)


def test_graphs_that_can_not_be_divided_are_refused():
    with pytest.raises(ValueError, match=r"cache must be a folder, .* got .*test_partition"):
        distributed.partition(graph(), 2, cache=__file__)
    with pytest.raises(ValueError, match=r"graph must be a .*CSRGraph, got list"):
        distributed.partition([1], 2)
    with pytest.raises(
        ValueError, match=r"graph must be square, or the part .* got shape \(2, 3\)"
    ):
        distributed.partition(CSRGraph.from_edges([0], [0], 2, num_senders=3), 2)
    with pytest.raises(ValueError, match="graph must be concrete; call it outside jit"):
        jax.jit(lambda g: distributed.partition(g, 2).cut_edges)(graph())
