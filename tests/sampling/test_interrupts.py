"""A batch that is interrupted, or runs out of memory, leaves nothing wrong for the next one."""

import contextlib
import linecache
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxgnn.sampling
from jaxgnn import CSRGraph, sampling
from jaxgnn.graph import HeteroGraph
from jaxgnn.sampling import features
from jaxgnn.sampling.loader import StagedRows
from jaxgnn.sampling.memory import Spare
from jaxgnn.sampling.prefetch import Prefetched
from jaxgnn.sampling.subgraphs import WholeGraph
from jaxgnn.testing.numerics import assert_bit_equal

NODES = 40
ROOM = str(Path(jaxgnn.sampling.__file__).parent)
RNG = np.random.default_rng(0)
ENDS = RNG.integers(0, NODES, (2, 200))
X = RNG.normal(size=(NODES, 3)).astype(np.float32)
ARRAYS = {"features": X, "labels": np.arange(NODES)}
PAIRS = ENDS[:, :12]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A graph whose arrays are mapped from files."""
    folder, whole = tmp_path_factory.mktemp("graph"), CSRGraph.from_edges(*ENDS, NODES)
    for name in ("indptr", "indices"):
        np.save(folder / f"{name}.npy", getattr(whole, name))
    return CSRGraph(*(np.load(folder / f"{n}.npy", mmap_mode="r") for n in ("indptr", "indices")))


def _hetero(graph):
    graph = HeteroGraph(
        {("a", "to", "a"): CSRGraph(*map(np.asarray, (graph.indptr, graph.indices)))}
    )
    return sampling.HeteroNeighborLoader(graph, ("a", None), (2, 2), 9, {"a": X}, num_threads=1)


LOADERS = {
    "neighbor": lambda g: sampling.NeighborLoader(g, None, (2, 2), 9, **ARRAYS, num_threads=1),
    "link": lambda g: sampling.LinkNeighborLoader(g, PAIRS, (2,), 4, X, num_threads=1),
    "hetero": _hetero,
    "cluster": lambda g: sampling.ClusterLoader(g, np.arange(NODES) % 8, 3, **ARRAYS),
    "node": lambda g: sampling.SaintLoader(g, "node", size=9, norm_samples=4, **ARRAYS),
    "edge": lambda g: sampling.SaintLoader(g, "edge", size=9, norm_samples=4, **ARRAYS),
    "walk": lambda g: sampling.SaintLoader(g, "walk", size=9, norm_samples=4, **ARRAYS),
    "shadow": lambda g: sampling.ShadowLoader(g, None, (2, 2), 9, **ARRAYS),
    "cached": lambda g: sampling.ClusterLoader(
        g, np.arange(NODES) % 8, 3, features=features.CachedFeatures(X, [0, 3])
    ),
}


class Stopped(BaseException):
    """As Ctrl-C, which no code of the library catches either."""


def _interrupted(call, place):
    """Calls a function, and raises ``Stopped`` at a place in the loaders' code; whether it did.

    Places are the beginning of each line that runs, and the return of each function, but not
    between a ``with`` block and the release of its lock: Python looks for no signal there.
    """
    left = place

    def trace(frame, event, _):
        nonlocal left
        file = frame.f_code.co_filename
        if not file.startswith(ROOM):
            return None
        if not linecache.getline(file, frame.f_lineno).lstrip().startswith("with "):
            left -= 1
            if left < 0:
                raise Stopped
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Stopped:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", LOADERS)
def test_the_batch_after_an_interrupt_is_that_of_a_fresh_loader(name, graph):
    loader, expected = LOADERS[name](graph), LOADERS[name](graph).batch(0, 1)
    loader.batch(0, 0)
    places = 0
    while _interrupted(lambda: loader.batch(0, 0), places):
        places += 10
    assert places > 50
    for place in np.linspace(0, places - 10, 25).astype(int).tolist():
        _interrupted(lambda: loader.batch(0, 0), place)
        assert_bit_equal(loader.batch(0, 1), expected)


@pytest.mark.parametrize("name", ["induced", "distinct"])
def test_a_part_after_an_interrupt_at_any_place_is_right(name, graph):
    whole, nodes = WholeGraph.read("test", graph), np.arange(0, NODES, 3)
    cut, expected = getattr(whole, name), getattr(WholeGraph.read("test", graph), name)(nodes)
    cut(nodes)
    place = 0
    while _interrupted(lambda: cut(np.arange(1, NODES, 2)), place):
        jax.tree.map(np.testing.assert_array_equal, cut(nodes), expected)
        place += 1
    assert place > 8


@pytest.mark.parametrize("name", ["induced", "distinct"])
def test_a_part_that_runs_out_of_memory_is_right_the_next_time(name, graph, monkeypatch):
    whole, nodes = WholeGraph.read("test", graph), np.arange(0, NODES, 3)
    expected = getattr(whole, name)(nodes)
    for function in ("arange", "flatnonzero", "searchsorted", "sort"):
        with monkeypatch.context() as patched:

            def without_memory(*_, **__):
                raise MemoryError

            patched.setattr(np, function, without_memory)
            with contextlib.suppress(MemoryError):
                getattr(whole, name)(np.arange(1, NODES, 2))
        jax.tree.map(np.testing.assert_array_equal, getattr(whole, name)(nodes), expected)


def test_a_borrowed_buffer_is_nobody_elses_until_it_is_given_back():
    spare = Spare()
    assert spare.borrow() is None
    spare.give_back("first")
    assert spare.borrow() == "first" and spare.borrow() is None


def test_rows_that_were_not_read_are_not_handed_out(monkeypatch):
    class Failing:
        num_rows, shape, dtype = NODES, X.shape, X.dtype
        fails = True

        def gather(self, ids, out=None):
            out[:] = np.nan if self.fails else X[ids]
            if self.fails:
                raise MemoryError
            return out

    store = Failing()
    rows = StagedRows("loader", store, None)
    monkeypatch.setattr(rows, "_reuses", True)  # as on a GPU
    with pytest.raises(MemoryError):
        rows.gather(np.arange(4))
    store.fails = False
    np.testing.assert_array_equal(rows.gather(np.arange(4)), X[:4])


def _steps_of(batches):
    return [int(np.asarray(batch.n_id)[0]) for batch in batches]


def test_steps_after_an_interrupt_have_their_batches(graph):
    def make():
        return sampling.NeighborLoader(graph, None, (2,), 1, shuffle=False, num_threads=1)

    line = 0
    while True:
        steps = make().steps()
        steps(1)
        if not _interrupted(lambda: steps(2), line):  # noqa: B023
            break
        assert _steps_of([steps(3), steps(2), steps(3)]) == [2, 1, 2]
        steps.close()
        line += 1
    assert line > 10


def test_an_iteration_goes_on_behind_an_interrupt_and_repeats_nothing():
    line = 0
    while True:
        squares = Prefetched(lambda item: item * item, range(12), threads=1, depth=1)
        assert next(squares) == 0
        if not _interrupted(lambda: next(squares), line):  # noqa: B023
            break
        rest = list(squares)
        assert rest in ([i * i for i in range(1, 12)], [i * i for i in range(2, 12)])
        line += 1
    assert line > 5


def test_a_thread_that_fails_between_two_items_is_reported(monkeypatch):
    from jaxgnn.sampling import prefetch

    def without_memory(self):
        raise MemoryError("no memory for the next item")

    monkeypatch.setattr(prefetch._Shared, "_take", without_memory)
    with pytest.raises(MemoryError, match="no memory for the next item"):
        next(Prefetched(str, range(3), threads=2, depth=2))
