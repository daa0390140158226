"""Public objects can be pickled and copied: constants, records, graphs, modules."""

import copy
import dataclasses
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import datasets, graph, metrics, models, nn, ops, pretrained, sampling, training
from jaxgnn.datasets import sudoku
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.ops.core.verify import Setting
from tests.models._table import MODELS
from tests.nn._table import GRAPH, HETERO, HYPERGRAPH, LAYERS, X

PACKAGES = (
    jaxgnn,
    graph,
    ops,
    nn,
    models,
    datasets,
    metrics,
    sampling,
    sudoku,
    training,
    pretrained,
)
ROUTES = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy}


def _public(package):
    # ``dir`` has those that are imported on first use, too.
    values = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    return {
        f"{package.__name__}.{name}": value
        for name, value in values.items()
        if not inspect.ismodule(value)
    }


# Constants, functions, classes, and names of types.
GIVEN_OUT = {name: value for package in PACKAGES for name, value in _public(package).items()}


@pytest.mark.parametrize("route", ROUTES)
def test_whatever_has_a_public_name_is_pickled_and_copied(route):
    for name, value in GIVEN_OUT.items():
        copied = ROUTES[route](value)
        assert type(copied) is type(value), name


@pytest.mark.parametrize("route", ROUTES)
def test_presets_of_hyper_connections_are_the_same_and_can_not_be_changed(route):
    presets = ROUTES[route](ops.MHC_PRESETS)
    assert dict(presets) == dict(ops.MHC_PRESETS) and len(presets) == 4
    for mapping in (presets, ops.MHC_PRESETS):
        with pytest.raises(TypeError):
            mapping["paper"] = ops.MHCConvention()


def _edge_blocks():
    plan = make_plan(np.asarray(GRAPH.indptr), np.asarray(GRAPH.indices), 4, edge_blocks=True)
    return plan.edge_blocks[0]


def _halo():
    return graph.Halo(np.arange(4, dtype=np.int32), None, "nodes", 1, 4)


def _puzzles():
    return sudoku.Puzzles(np.zeros((2, 81), np.int8), np.ones((2, 81), np.int8))


def _edge_split():
    senders, receivers = np.triu_indices(8, 1)
    return datasets.split_edges(senders, receivers, 8)


def _hops():
    arrays = np.asarray(GRAPH.indptr), np.asarray(GRAPH.indices)
    return sampling.sample_hops(*arrays, np.array([1]), (2,), seed=0, epoch=0, step=0)


def _device_sample():
    sizes = {"nodes": (1, 3), "edges": (2,)}
    arrays = GRAPH.indptr, GRAPH.indices, jnp.array([1], jnp.int32)
    return sampling.sample_on_device(*arrays, (2,), **sizes, seed=0, epoch=0, step=0)


def _hetero_batch():
    relations = graph.HeteroGraph({("node", "to", "node"): GRAPH})
    return sampling.HeteroNeighborLoader(relations, ("node", [1]), (2,), 1).batch(0, 0)


def _link_batch():
    return sampling.LinkNeighborLoader(GRAPH, ([0], [1]), (2,), 1).batch(0, 0)


_NODES = np.zeros(4, np.int32)

# One of each record, by its class.
RECORDS = {
    graph.BlockShape: lambda: graph.BlockShape(8, 8, 64, 1, 1, (1,), "degree"),
    graph.BlockTasks: lambda: _edge_blocks().tasks[0],
    graph.CBSR: lambda: ops.maxk(X, 2),
    graph.CSRGraph: lambda: GRAPH.normalized("sym"),
    graph.EdgeBlocks: _edge_blocks,
    graph.Halo: _halo,
    graph.LocalGraph: lambda: graph.LocalGraph(GRAPH.indptr, GRAPH.indices, halo=_halo()),
    graph.MaskedGraph: lambda: graph.masked(GRAPH, jnp.ones(GRAPH.num_edges)),
    graph.HeteroGraph: lambda: HETERO.prepared(),
    graph.RelationalGraph: lambda: graph.RelationalGraph.from_graphs([GRAPH, GRAPH]),
    graph.GCNCoefficients: lambda: graph.gcn_coefficients(GRAPH, add_self_loops=True),
    graph.GraphBatch: lambda: graph.GraphBatch.from_graphs([GRAPH, GRAPH], None),
    graph.GraphPlan: GRAPH.made_plan,
    graph.GraphSample: lambda: graph.GraphSample(_NODES, _NODES, 1),
    graph.Incidence: lambda: HYPERGRAPH,
    models.AtomicEdges: lambda: models.AtomicEdges.of_vectors(X[:, :3]),
    models.Potential: lambda: models.Potential(X[:, 0], X[:, :3]),
    graph.IncidencePlan: HYPERGRAPH.made_plan,
    graph.LoopedGraph: lambda: graph.with_one_loop_each(GRAPH),
    graph.CellGrid: lambda: graph.CellGrid.for_points(np.eye(3), 0.5),
    graph.NeighbourList: lambda: graph.NeighbourList.allocate(np.eye(3), 0.5, skin=1.0),
    graph.NeighbourEdges: lambda: graph.radius_graph(np.eye(3), 0.5, box=np.full(3, 2.0)),
    graph.NetworkXAttributes: lambda: graph.NetworkXAttributes({"x": _NODES}, {}),
    graph.RowSchedule: lambda: GRAPH.made_plan().schedule,
    graph.Subgraph: lambda: graph.largest_component(GRAPH),
    ops.EdgeMLPParams: lambda: ops.EdgeMLPParams([X], [None]),
    ops.MHCConvention: lambda: ops.MHCConvention(iterations=3),
    ops.MaxK: lambda: ops.MaxK(3),
    ops.VerificationError: lambda: ops.VerificationError("differs"),
    Setting: lambda: Setting("strict", 0.1),
    nn.Pooled: lambda: nn.Pooled(X, graph.GraphBatch.from_graphs([GRAPH], None), _NODES),
    sampling.Step: lambda: sampling.Step(1, 2, 0, np.arange(3)),
    sampling.Capacity: lambda: sampling.Capacity((2, 4), (3,)),
    sampling.DeviceSample: lambda: _device_sample(),
    sampling.HeteroBatch: lambda: _hetero_batch(),
    sampling.HeteroCapacity: lambda: sampling.HeteroCapacity({"node": (1, 2)}, {}),
    sampling.Hop: lambda: _hops().hops[0],
    sampling.Hops: lambda: _hops(),
    sampling.LinkBatch: lambda: _link_batch(),
    sampling.SampledBatch: lambda: sampling.NeighborLoader(GRAPH, [1], (2,), 1).batch(0, 0),
    sampling.SubgraphBatch: lambda: sampling.ShadowLoader(GRAPH, [1], (2,)).batch(0, 0),
    sampling.NegativeSampler: lambda: sampling.NegativeSampler.of(GRAPH),
    nn.LSTMState: lambda: nn.LSTMState(X, X, jnp.array(True)),
    datasets.EdgeSplit: _edge_split,
    nn.DegreeAverages: lambda: nn.DegreeAverages.of(GRAPH),
    datasets.GraphsDataset: lambda: datasets.GraphsDataset(
        "rings", *np.ones((2, 4), np.int32), *np.full((2, 1), 4, np.int32), _NODES[:1], 1
    ),
    datasets.LinkPart: lambda: _edge_split().train,
    datasets.HypergraphDataset: datasets.digits_hypergraph,
    datasets.LinksDataset: lambda: datasets.LinksDataset(
        "rings", 4, np.ones((2, 3), np.int32), None, *np.ones((5, 2, 1), np.int32)
    ),
    datasets.RelationsDataset: lambda: datasets.RelationsDataset(
        "rings", {"a": 4}, {("a", "to", "a"): _NODES}, {}, "a", _NODES, 1, *[_NODES[:1]] * 3, {}
    ),
    datasets.TriplesDataset: lambda: datasets.TriplesDataset(
        "rings", {"a": 4}, 1, *np.ones((3, 3, 2), np.int32), *np.ones((4, 2, 1), np.int32)
    ),
    datasets.NodeDataset: lambda: datasets.synthetic("tiny"),
    datasets.ParticleMotion: lambda: datasets.particles(runs=1, frames=3),
    datasets.StructuresDataset: lambda: datasets.argon(num=1),
    datasets.SyntheticScale: lambda: next(iter(datasets.SCALES.values())),
    datasets.TextDataset: datasets.pydoc_text,
    sudoku.Conflict: lambda: sudoku.Conflict("row 3", 2, ((3, 1), (3, 5))),
    sudoku.Difficulty: lambda: sudoku.Difficulty(_NODES, _NODES, _NODES),
    sudoku.Puzzles: _puzzles,
    sudoku.Symmetry: lambda: sudoku.random_symmetry(jax.random.key(0)),
    training.Best: lambda: training.Best(3, {"accuracy": 0.5}),
    training.FitResult: lambda: training.FitResult(
        nn.GCNConv(8, 4, rngs=nnx.Rngs(0)), None, None, None, [{"loss": 0.5}], 0.1, None, True
    ),
    training.Confusion: lambda: training.Confusion(_NODES, _NODES, ("a", "b")),
    training.ManyResult: lambda: training.ManyResult([{"loss": 0.5}], None, 2.0),
    training.Table: lambda: training.Table("scores", ("method", "score"), (("best", 0.5),)),
    training.LoopConfig: lambda: training.LoopConfig(steps=3),
    pretrained.SudokuAnswer: lambda: pretrained.SudokuAnswer(_NODES, _NODES, True, 2, 0, 0.5, ()),
    pretrained.SudokuEffort: lambda: pretrained.SudokuEffort(steps=3),
    pretrained.SudokuSolutions: lambda: pretrained.SudokuSolutions(
        _NODES, _NODES > 0, _NODES, _NODES, 0.5
    ),
}
# Handles of what is elsewhere, and a base of other classes.
LOADER_CLASSES = {
    value
    for value in GIVEN_OUT.values()
    if inspect.isclass(value) and issubclass(value, sampling.Loader)
}
NO_RECORDS = LOADER_CLASSES | {training.RunFolder, jaxgnn.ExportedFunction, nn.NodeUpdate}
NO_RECORDS |= {pretrained.SudokuSolver}  # see below


def test_the_tables_have_every_class():
    classes = {value for value in GIVEN_OUT.values() if inspect.isclass(value)}
    modules = {getattr(nn, name) for name in LAYERS} | {getattr(models, name) for name in MODELS}
    assert classes | {Setting} == set(RECORDS) | modules | NO_RECORDS


def _assert_same(copied, value):
    assert type(copied) is type(value)
    if isinstance(value, Exception):
        assert str(copied) == str(value)
    elif isinstance(value, graph.HeteroGraph):
        assert jax.tree.structure(copied) == jax.tree.structure(value)
        jax.tree.map(np.testing.assert_array_equal, copied, value)
    elif isinstance(value, tuple) or dataclasses.is_dataclass(value):
        parts = [v if isinstance(v, tuple) else _fields(v) for v in (copied, value)]
        leaves = [jax.tree.flatten(part) for part in parts]
        assert leaves[0][1] == leaves[1][1]
        for one, other in zip(leaves[0][0], leaves[1][0], strict=True):
            if dataclasses.is_dataclass(other):
                _assert_same(one, other)
            else:
                np.testing.assert_array_equal(one, other)
    else:
        raise AssertionError(f"a comparison is missing: {value!r}")


def _fields(record):
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


@pytest.mark.costly(len(RECORDS))  # each of them by one of the routes
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_and_graphs_are_the_same_behind_it(record, route):
    value = RECORDS[record]()
    _assert_same(ROUTES[route](value), value)


@pytest.mark.costly(len(LAYERS | MODELS))
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", [*LAYERS, *MODELS])
def test_layers_and_models_are_the_same_behind_it(name, route):
    case = (LAYERS | MODELS)[name]
    module = case.make(nnx.Rngs(0))
    copied = ROUTES[route](module)
    (graphdef, state), (expected, values) = nnx.split(copied), nnx.split(module)
    assert graphdef == expected
    jax.tree.map(np.testing.assert_array_equal, state, values)


def test_a_graph_that_has_been_used_takes_what_is_known_of_it_along():
    ops.spmm(GRAPH, X)
    GRAPH.uniform_degrees()
    copied = pickle.loads(pickle.dumps(GRAPH))
    np.testing.assert_array_equal(ops.spmm(copied, X), ops.spmm(GRAPH, X))
    assert copied.uniform_degrees() == GRAPH.uniform_degrees()


LOADERS = {
    "NeighborLoader": lambda: sampling.NeighborLoader(GRAPH, [1], (2,), 1),
    "LinkNeighborLoader": lambda: sampling.LinkNeighborLoader(GRAPH, ([0], [1]), (2,), 1),
    "HeteroNeighborLoader": lambda: sampling.HeteroNeighborLoader(
        graph.HeteroGraph({("node", "to", "node"): GRAPH}), ("node", [1]), (2,), 1
    ),
    "ClusterLoader": lambda: sampling.ClusterLoader(GRAPH, 2),
    "SaintLoader": lambda: sampling.SaintLoader(GRAPH, size=2),
    "ShadowLoader": lambda: sampling.ShadowLoader(GRAPH, [1], (2,)),
}


@pytest.mark.every
@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_and_its_batches_ahead_say_that_they_are_made_in_each_process(name, copied):
    loader = LOADERS[name]()
    message = f"sampling.{name}: a loader can not be copied or pickled; make one of the same arg"
    with pytest.raises(TypeError, match=message):
        copied(loader)
    with pytest.raises(TypeError, match="batches that threads make ahead can not be copied"):
        copied(iter(loader))
    steps = loader.steps()
    with pytest.raises(TypeError, match="can not be copied or pickled"):
        copied(steps)
    steps.close()


def test_a_cache_of_features_is_pickled():
    store = sampling.features.CachedFeatures(np.eye(3), [0])
    copied = pickle.loads(pickle.dumps(store))
    np.testing.assert_array_equal(copied.gather(np.array([0, 1, -1])), np.eye(4, 3)[[0, 1, 3]])
    assert copied.hits == copied.misses == 1


def test_a_solver_is_pickled():
    model = MODELS["CandidateNetwork"].make(nnx.Rngs(0))
    solver = pickle.loads(pickle.dumps(pretrained.SudokuSolver(model)))
    puzzle = ".23456789456789123789123456214365897365897214897214365531642978642978531978531642"
    answers = [
        s.solve(puzzle, pretrained.SudokuEffort(2))
        for s in (solver, pretrained.SudokuSolver(model))
    ]
    np.testing.assert_array_equal(answers[0].board, answers[1].board)
