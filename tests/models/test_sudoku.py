"""Sudoku's graphs, networks and losses: sizes, formulae, symmetries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from jaxgnn.models import (
    CandidateNetwork,
    EquivariantRelationalNetwork,
    RecurrentRelationalNetwork,
    SudokuGNN,
    sudoku_cross_entropy,
    sudoku_digits,
    sudoku_focal_loss,
)
from jaxgnn.models.sudoku_boards import fulfils_rules
from jaxgnn.models.sudoku_states import perturbed
from tests.ops.edge_mlp._edges import QUICK

_jit = functools.partial(jax.jit, compiler_options=QUICK)
RNG = np.random.default_rng(0)

# Band by band; every other grid of 4×4 or 16×16 is as good.
SOLUTIONS = {
    box: np.array(
        [
            (box * (row % box) + row // box + column) % (box * box) + 1
            for row in range(box * box)
            for column in range(box * box)
        ],
        np.int32,
    )
    for box in (2, 3, 4)
}
PUZZLES = {box: np.where(RNG.random(s.shape) < 0.5, s, 0) for box, s in SOLUTIONS.items()}


def _count(make):
    state = nnx.eval_shape(lambda: nnx.state(make(rngs=nnx.Rngs(0)), nnx.Param))
    return sum(leaf.size for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("box, neighbours", [(2, 7), (3, 20), (4, 39)])
def test_graphs_join_what_shares_a_row_a_column_or_a_box(box, neighbours):
    side = box * box
    positions = models.sudoku_positions(box)
    assert sorted(map(tuple, positions[:, :2])) == [
        (r, c) for r in range(side) for c in range(side)
    ]
    graph = models.sudoku_graph(box)
    assert graph.uniform_degrees() == (neighbours, neighbours)
    ends = np.asarray(graph.receivers()), np.asarray(graph.indices)
    shared = positions[ends[0]] == positions[ends[1]]
    assert (ends[0] != ends[1]).all() and shared.any(axis=1).all()
    np.testing.assert_array_equal(
        models.sudoku_relations(box), np.stack([shared[:, :2].any(axis=1), shared[:, 2]], axis=1)
    )
    both_ways = models.sudoku_constraint_graph(box)
    degrees = np.asarray(both_ways.degrees())
    assert (degrees[: side * side] == 3).all() and (degrees[side * side :] == side).all()
    units = np.asarray(both_ways.indices)[: 3 * side * side].reshape(-1, 3) - side * side
    np.testing.assert_array_equal(np.sort(units, axis=1), positions + side * np.arange(3))


def test_sizes_are_the_published_ones():
    assert models.sudoku_graph(3).num_edges == 1620
    graph = models.sudoku_constraint_graph(3)
    assert (graph.num_rows, graph.num_edges) == (108, 486)
    assert _count(SudokuGNN) == 188_169
    # 201,194 with the weights of an edge feature that is zero.
    assert _count(RecurrentRelationalNetwork) == 201_194 - 96


def _published(model, puzzle, steps):
    """The recurrent relational network edge by edge, in NumPy, with zeros as edge features."""

    def dense(layer, x):
        return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

    def mlp(layers, x):
        *hidden, last = layers
        for layer in hidden:
            x = np.maximum(dense(layer, x), 0)
        return dense(last, x)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    rows, columns, boxes = models.sudoku_positions(model.box).T
    tables = (model.digits, puzzle), (model.rows, rows), (model.columns, columns)
    parts = [np.asarray(table.embedding[...])[index] for table, index in tables]
    x = mlp(model.encoder.layers, np.concatenate(parts, axis=-1))
    h, hidden, cell, logits = x, np.zeros_like(x), np.zeros_like(x), []
    for _ in range(steps):
        arrived = np.zeros_like(x)
        for i in range(len(x)):
            for j in range(len(x)):
                near = rows[i] == rows[j] or columns[i] == columns[j] or boxes[i] == boxes[j]
                if i != j and near:
                    arrived[i] += mlp(model.steps.messages.layers, np.concatenate([h[i], h[j]]))
        read = mlp(model.steps.update.mlp.layers, np.concatenate([arrived, x], axis=-1))
        z = dense(model.steps.update.gates, np.concatenate([read, hidden], axis=-1))
        i, f, g, o = np.split(z, 4, axis=-1)
        cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
        h = hidden = sigmoid(o) * np.tanh(cell)
        logits.append(dense(model.readout, h))
    return np.stack(logits)


def test_the_recurrent_relational_network_is_the_published_one_at_any_number_of_steps():
    model = RecurrentRelationalNetwork(
        box=2, features=6, embedding_features=3, num_steps=2, rngs=nnx.Rngs(0)
    )
    expected = _published(model, PUZZLES[2], 3)
    run = _jit(lambda: (model(PUZZLES[2]), model(PUZZLES[2][None], num_steps=3)))
    two, three = run()
    np.testing.assert_allclose(three[:, 0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(two, expected[:2], rtol=1e-4, atol=1e-5)
    kernels = [p[...] for path, p in nnx.to_flat_state(nnx.state(model)) if path[-1] == "kernel"]
    others = (model.steps.update.gates.kernel[...], model.readout.kernel[...])
    squares = [sum(jnp.sum(k**2) for k in some) for some in (kernels, others)]
    np.testing.assert_allclose(model.weight_penalty(), (squares[0] - squares[1]) / 2, rtol=1e-5)


def _symmetries(box):
    """Permutations of cells that a Sudoku has: within bands, of bands, and transposed."""
    side, rng = box * box, np.random.default_rng(1)
    grid = np.arange(side * side).reshape(side, side)

    def lines():
        bands = [box * band + rng.permutation(box) for band in rng.permutation(box)]
        return np.concatenate(bands)

    return {"lines": grid[lines()][:, lines()].ravel(), "transposed": grid.T.ravel()}


def _candidate_logits(model, puzzle, steps):
    """The network over candidates, candidate by candidate and group by group, in NumPy."""

    def dense(layer, x, bias=True):
        y = x @ np.asarray(layer.kernel[...])
        return y + np.asarray(layer.bias[...]) if bias else y

    def relu(x):
        return np.maximum(x, 0)

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    positions, side = models.sudoku_positions(round(len(puzzle) ** 0.25)), round(len(puzzle) ** 0.5)
    candidates = [(k, cell) for k in range(side) for cell in range(side * side)]
    kinds = [0 if not puzzle[c] else 1 if puzzle[c] == k + 1 else 2 for k, c in candidates]
    x = np.asarray(model.kinds.embedding[...])[kinds]
    h = dense(model.start, x)
    messages, update = model.steps.messages, model.steps.update
    hidden, cell, logits = np.zeros_like(h), np.zeros_like(h), []
    for _ in range(steps):
        heard = np.zeros_like(h)
        for i, (digit, place) in enumerate(candidates):
            groups = [
                (layer, [j for j, (d, p) in enumerate(candidates) if d == digit and same[p]])
                for layer, same in zip(
                    (messages.groups[0], messages.groups[0], messages.groups[1]),
                    (positions == positions[place]).T,
                    strict=True,
                )
            ]
            groups.append(
                (messages.groups[2], [j for j, (_, p) in enumerate(candidates) if p == place])
            )
            for layer, members in groups:
                candidate = dense(messages.candidate, h[i], bias=False)
                heard[i] += relu(candidate + dense(layer, h[members].mean(axis=0)))
        first, second = update.mlp.layers
        read = dense(second, relu(dense(first, np.concatenate([heard, x], axis=-1))))
        z = dense(update.gates, np.concatenate([read, hidden], axis=-1))
        i, f, g, o = np.split(z, 4, axis=-1)
        cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
        h = hidden = sigmoid(o) * np.tanh(cell)
        logits.append(dense(model.readout, h)[:, 0].reshape(side, side * side).T)
    return np.stack(logits)


def test_the_network_over_candidates_is_that_of_its_docstring():
    model = CandidateNetwork(features=5, num_steps=2, rngs=nnx.Rngs(0))
    expected = _candidate_logits(model, PUZZLES[2], 3)
    run = _jit(lambda: (model(PUZZLES[2]), model(PUZZLES[2][None], num_steps=3)))
    two, three = run()
    np.testing.assert_allclose(three[:, 0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(two, expected[:2], rtol=1e-4, atol=1e-5)


WARM = {
    "relational": functools.partial(RecurrentRelationalNetwork, box=2),
    "equivariant": EquivariantRelationalNetwork,
    "candidates": CandidateNetwork,
}


@pytest.mark.parametrize("name", WARM)
def test_steps_behind_a_warm_up_are_those_of_a_longer_run(name):
    model = WARM[name](features=4, num_steps=2, rngs=nnx.Rngs(0))
    late, whole = _jit(lambda n: (model(PUZZLES[2], warm_up=n), model(PUZZLES[2], num_steps=5)))(3)
    np.testing.assert_allclose(late, whole[3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", [EquivariantRelationalNetwork, CandidateNetwork])
def test_renamed_digits_and_turned_boards_have_renamed_and_turned_answers(network):
    layers = {"num_layers": 2} if network is EquivariantRelationalNetwork else {}
    options = {"features": 6, "num_steps": 3, **layers}
    puzzle = PUZZLES[2]
    names = np.array([2, 0, 3, 1])  # what each digit, from 0, is called
    boards = {"plain": puzzle, "renamed": np.where(puzzle > 0, names[puzzle - 1] + 1, 0)}
    turned = _symmetries(2)
    boards |= {kind: puzzle[cells] for kind, cells in turned.items()}
    with jax.enable_x64(True):
        options |= {"dtype": jnp.float64, "param_dtype": jnp.float64}
        model = network(**options, rngs=nnx.Rngs(0))
        logits = _jit(model)(np.stack([*boards.values()]))
    plain, renamed, *others = np.moveaxis(np.asarray(logits), 1, 0)
    assert plain.dtype == np.float64 and np.ptp(plain[-1], axis=-1).min() > 1e-6
    np.testing.assert_allclose(renamed[..., names], plain, rtol=1e-12, atol=1e-13)
    for other, cells in zip(others, turned.values(), strict=True):
        np.testing.assert_allclose(other, plain[:, cells], rtol=1e-12, atol=1e-13)


def test_the_same_weights_read_boards_of_other_sizes():
    model = EquivariantRelationalNetwork(features=4, num_layers=1, rngs=nnx.Rngs(0))
    run = functools.partial(model, num_steps=2)
    for box, puzzle in PUZZLES.items():
        assert jax.eval_shape(run, puzzle).shape == (2, box**4, box * box)
        candidates = functools.partial(CandidateNetwork(features=4, rngs=nnx.Rngs(0)), num_steps=2)
        assert jax.eval_shape(candidates, puzzle).shape == (2, box**4, box * box)
        for make in (RecurrentRelationalNetwork, SudokuGNN):
            state = lambda make=make, box=box: make(box=box, features=4, rngs=nnx.Rngs(0))  # noqa: E731
            assert jax.eval_shape(lambda p, s=state: s()(p), puzzle).shape[-2] == box**4


NETWORKS = {
    "relational": functools.partial(RecurrentRelationalNetwork, box=2),
    "equivariant": EquivariantRelationalNetwork,
    "candidates": CandidateNetwork,
    "constraints": functools.partial(SudokuGNN, box=2),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_a_gradient_in_training_and_in_bfloat16(name):
    options = {"features": 4, "num_steps": 2, "dtype": jnp.bfloat16}
    graphdef, state = nnx.split(NETWORKS[name](**options, rngs=nnx.Rngs(0)))
    puzzles, solutions = jnp.asarray(PUZZLES[2])[None], jnp.asarray(SOLUTIONS[2])[None]

    @_jit
    def gradient(state):
        def loss(state):
            logits = nnx.merge(graphdef, state)(puzzles, rngs=nnx.Rngs(dropout=0))
            if name == "constraints":
                return sudoku_focal_loss(logits, solutions, puzzles)
            return sudoku_cross_entropy(logits, solutions)

        return jax.grad(loss)(state)

    # Flax's LayerNorm promotes bfloat16 implicitly.
    with jax.numpy_dtype_promotion("standard" if name == "constraints" else "strict"):
        gradients = gradient(state)
    for path, leaf in nnx.to_flat_state(gradients):
        assert np.isfinite(leaf[...]).all() and np.abs(leaf[...]).max() > 0, path


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_made_one_at_a_time_are_those_of_a_run_and_noise_changes_them(name):
    model = NETWORKS[name](features=4, num_steps=3, rngs=nnx.Rngs(0))
    every: dict = {"every_step": True} if name == "constraints" else {}

    def one_at_a_time(puzzle, noise):
        recurrence, logits = model.recurrence(puzzle), []
        state = perturbed(recurrence.start(), jax.random.key(0), noise)
        for _ in range(3):
            state, now = recurrence.step(state)
            logits.append(now)
        return jnp.stack(logits)

    run = _jit(lambda p, noise: (one_at_a_time(p, noise), model(p, **every)))
    single, together = run(PUZZLES[2], 0.0)
    np.testing.assert_allclose(single, together, rtol=1e-4, atol=1e-5)
    noisy, _ = run(PUZZLES[2], 1.0)
    assert np.isfinite(noisy).all() and np.abs(noisy - single).max() > 1e-3
    with pytest.raises(ValueError, match=r"puzzles must be digits from 0 to 4, got 5 at \[0\]"):
        model.recurrence(np.full(16, 5))


@pytest.mark.parametrize("box", SOLUTIONS)
def test_boards_fulfil_the_rules_if_each_unit_has_each_digit_once(box):
    side, board = box * box, SOLUTIONS[box]
    rows = board.reshape(side, side)
    two_rows = rows[[1, 0, *range(2, side)]]  # Both are in one band, so no rule is broken.
    two_bands_mixed = rows[[box, *range(1, box), 0, *range(box + 1, side)]]
    wrong = board % side + 1
    boards = [board, two_rows, two_bands_mixed, np.where(np.arange(side**2) == 7, wrong, board)]
    boards += [board * (np.arange(side**2) != 3), board + 1, wrong]
    stacked = np.stack([np.reshape(b, -1) for b in boards])
    expected = [True, True, False, False, False, False, True]
    np.testing.assert_array_equal(fulfils_rules(stacked), expected)


def test_the_gated_network_scores_every_step_as_if_it_were_the_last():
    model = SudokuGNN(box=2, features=4, num_steps=3, rngs=nnx.Rngs(0))
    run = _jit(lambda p: (model(p, every_step=True), model(p, num_steps=2), model(p)))
    every, second, last = run(PUZZLES[2])
    np.testing.assert_allclose(every[1], second, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(every[2], last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("extra", [0, 1], ids=["digits", "with a class for none"])
def test_losses_of_a_solution_are_zero_whatever_was_given_and_answers_are_digits(extra):
    solution, puzzle = jnp.asarray(SOLUTIONS[3]), jnp.asarray(PUZZLES[3])
    right = 50.0 * jax.nn.one_hot(solution - 1 + extra, 9 + extra)
    logits = jnp.stack([right, right])  # two steps
    np.testing.assert_array_equal(sudoku_digits(right), solution)
    for value in (
        sudoku_cross_entropy(logits, solution),
        models.sudoku_constraint_loss(logits, puzzle),
        sudoku_focal_loss(logits, solution, puzzle),
    ):
        np.testing.assert_allclose(value, 0, atol=1e-6)


@pytest.mark.parametrize("extra", [0, 1], ids=["digits", "with a class for none"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_cell_whose_logits_are_not_finite_has_no_digit(bad, extra):
    solution = jnp.asarray(SOLUTIONS[3])
    logits = jax.nn.one_hot(solution - 1 + extra, 9 + extra)
    actual = sudoku_digits(logits.at[7, 4].set(bad).at[8].set(bad).at[9, 8].set(-jnp.inf))
    np.testing.assert_array_equal(actual, solution.at[7].set(0).at[8].set(0))


def test_a_root_of_what_is_left_has_a_gradient_where_nothing_is():
    solution, blank = jnp.asarray(SOLUTIONS[3]), jnp.zeros(81, jnp.int32)
    sure = 200.0 * jax.nn.one_hot(solution - 1, 9)
    gradient = jax.grad(lambda x: sudoku_focal_loss(x, solution, blank, gamma=0.5))(sure)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_losses_of_equal_scores_are_those_of_chance():
    logits, solution = jnp.zeros((2, 81, 9)), jnp.asarray(SOLUTIONS[3])
    blank = jnp.zeros(81, jnp.int32)
    np.testing.assert_allclose(sudoku_cross_entropy(logits, solution), np.log(9), rtol=1e-6)
    constraint = 0.2 * 0.1 * (np.log(9) + 1)
    np.testing.assert_allclose(models.sudoku_constraint_loss(logits, blank), constraint, rtol=1e-5)
    focal = (8 / 9) ** 2 * np.log(9) + 0.5 * constraint
    np.testing.assert_allclose(sudoku_focal_loss(logits, solution, blank), focal, rtol=1e-5)
    # With the first row given, it has each digit once. A column has its given digit 1 + 8/9 times,
    # others 8/9 times; each of the three boxes at the row has three digits 1 + 6/9 times, six 6/9.
    clues = jnp.where(jnp.arange(81) < 9, solution, 0)
    columns = (9 * (8 / 9) ** 2 + 72 * (1 / 9) ** 2) / 81
    boxes = (9 * (6 / 9) ** 2 + 18 * (3 / 9) ** 2) / 81
    actual = models.sudoku_constraint_loss(logits, clues)
    np.testing.assert_allclose(actual, 0.2 * (columns + boxes) + constraint, rtol=1e-5)


X = jnp.zeros((2, 81), jnp.int32)
MODEL = functools.partial(RecurrentRelationalNetwork, features=4, rngs=nnx.Rngs(0))
ONES = jnp.ones((2, 81), jnp.int32)
BAD = {
    "a digit too large": (
        lambda: MODEL()(X.at[1, 7].set(10)),
        ["RecurrentRelationalNetwork: puzzles", "digits from 0 to 9", "10 at [1, 7]"],
    ),
    "a digit below zero": (
        lambda: EquivariantRelationalNetwork(features=4, rngs=nnx.Rngs(0))(X.at[0, 3].set(-1)),
        ["EquivariantRelationalNetwork: puzzles", "digits from 0 to 9", "-1 at [0, 3]"],
    ),
    "a digit of larger boards": (
        lambda: CandidateNetwork(features=4, rngs=nnx.Rngs(0))(np.full(16, 5, np.int8)),
        ["CandidateNetwork: puzzles", "digits from 0 to 4", "5 at [0]"],
    ),
    "a digit in a grid": (
        lambda: SudokuGNN(features=4, rngs=nnx.Rngs(0))(X.at[0, 3].set(-1)),
        ["SudokuGNN: puzzles", "digits from 0 to 9", "-1 at [0, 3]"],
    ),
    "a blank in a solution": (
        lambda: sudoku_cross_entropy(jnp.zeros((2, 81, 10)), ONES.at[1, 7].set(0)),
        ["sudoku_cross_entropy: solutions", "digits from 1 to 9", "0 at [1, 7]"],
    ),
    "a digit of a focal loss": (
        lambda: sudoku_focal_loss(jnp.zeros((2, 81, 9)), ONES, X.at[1, 7].set(10)),
        ["sudoku_focal_loss: puzzles", "digits from 0 to 9", "10 at [1, 7]"],
    ),
    "a digit of a loss of constraints": (
        lambda: models.sudoku_constraint_loss(jnp.zeros((2, 81, 9)), X.at[1, 7].set(-1)),
        ["sudoku_constraint_loss: puzzles", "digits from 0 to 9", "-1 at [1, 7]"],
    ),
    "box": (lambda: models.sudoku_graph(1), ["box", "an int of at least 2", "got 1"]),
    "box of a model": (lambda: MODEL(box=2.5), ["box", "got 2.5"]),
    "cells": (
        lambda: jax.eval_shape(MODEL(), X[:, :80]),
        ["RecurrentRelationalNetwork: puzzles", "81 cells", "(2, 80)"],
    ),
    "digits": (
        lambda: jax.eval_shape(MODEL(), X.astype(float)),
        ["RecurrentRelationalNetwork: puzzles", "integers", "float32"],
    ),
    "any size": (
        lambda: EquivariantRelationalNetwork(features=4, rngs=nnx.Rngs(0))(X[:, :80]),
        ["EquivariantRelationalNetwork: puzzles", "16, 81, 256", "(2, 80)"],
    ),
    "dropout": (lambda: SudokuGNN(dropout=1.0, rngs=nnx.Rngs(0)), ["SudokuGNN: dropout", "1.0"]),
    "width": (lambda: SudokuGNN(features=0, rngs=nnx.Rngs(0)), ["SudokuGNN", "at least 1"]),
    "classes": (
        lambda: sudoku_cross_entropy(jnp.zeros((2, 81, 8)), X),
        ["sudoku_cross_entropy: logits", "9 classes", "(2, 81, 8)"],
    ),
    "boards": (
        lambda: sudoku_focal_loss(jnp.zeros((2, 81, 9)), X, X[:1]),
        ["sudoku_focal_loss: a board", "(2, 81)", "(1, 81)"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_and_boards_are_named(name):
    call, fragments = BAD[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"


DIGITLESS = {
    "RecurrentRelationalNetwork": functools.partial(RecurrentRelationalNetwork, box=2),
    "EquivariantRelationalNetwork": EquivariantRelationalNetwork,
    "CandidateNetwork": CandidateNetwork,
    "SudokuGNN": functools.partial(SudokuGNN, box=2),
}


@pytest.mark.parametrize("name", DIGITLESS)
def test_boards_with_other_numbers_than_digits_have_nan_under_jit_and_others_do_not(name):
    model = DIGITLESS[name](features=4, num_steps=1, rngs=nnx.Rngs(0))
    good = jnp.asarray(PUZZLES[2])
    boards = jnp.stack([good, good.at[3].set(5), good, good.at[0].set(-1)])
    logits = _jit(lambda boards: model(boards))(boards)
    np.testing.assert_array_equal(_have_nan(logits), [False, True, False, True])


def _have_nan(logits):
    """Returns the mask of the boards, on the third axis from the end, that are all NaN."""
    is_nan = np.isnan(np.asarray(logits)).reshape(-1, 4, *logits.shape[-2:])
    assert (is_nan.all(axis=(0, 2, 3)) == is_nan.any(axis=(0, 2, 3))).all()
    return is_nan.all(axis=(0, 2, 3))


@pytest.mark.parametrize("wrong", [0, -1, 10])
def test_losses_of_other_numbers_than_digits_are_nan_under_jit(wrong):
    logits, solution = jnp.zeros((2, 81, 10)), jnp.asarray(SOLUTIONS[3])
    spoiled, blank = solution.at[5].set(wrong), jnp.zeros(81, jnp.int32)
    losses = [
        _jit(sudoku_cross_entropy)(logits, spoiled),
        _jit(sudoku_focal_loss)(logits, spoiled, solution.at[5].set(0)),
        _jit(models.sudoku_constraint_loss)(logits, blank.at[5].set(wrong)),
        _jit(sudoku_focal_loss)(logits, solution, blank.at[5].set(wrong)),
        _jit(models.sudoku_constraint_loss)(logits, spoiled),  # It has no blank.
    ]
    assert np.isnan(losses).tolist() == [True, True] + 3 * [wrong != 0]
    assert np.isfinite(_jit(sudoku_cross_entropy)(logits, solution))
