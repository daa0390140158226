"""The Sudoku experiments, from the command line to answers."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.sudoku import __main__ as command_line
from experiments.sudoku.chosen import chosen_network, load_run
from experiments.sudoku.config import (
    CostConfig,
    EvaluateConfig,
    ExportConfig,
    SolveConfig,
    TrainConfig,
)
from experiments.sudoku.cost import cost
from experiments.sudoku.data import (
    Pool,
    draw,
    fewest_givens,
    held_out,
    make_data,
    read,
    without,
    write,
)
from experiments.sudoku.evaluate import evaluate, read_puzzles
from experiments.sudoku.measure import measure
from experiments.sudoku.networks import make_network, training_loss
from experiments.sudoku.recipes import _RECIPES, recipe
from experiments.sudoku.solve import export, solve
from experiments.sudoku.train import train, train_seeds
from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.pretrained import load_weights
from jaxgnn.training import read_rows


@pytest.fixture(scope="module")
def data():
    return make_data(400, 2, seed=3)


def _config(folder, **options):
    defaults = {
        "features": 12,
        "num_steps": 3,
        "test_steps": 5,
        "warm_up": 0,
        "fewest": 36,
        "curriculum": 0.1,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "steps": 60,
        "evaluations": 3,
        "eval_puzzles": 30,
        "run": folder / "run",
        "progress": False,
    }
    return TrainConfig(**(defaults | options))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """The options and the outcome of a run that was stopped behind its first step, and went on."""
    config = _config(tmp_path_factory.mktemp("trained"))
    stopped = train(dataclasses.replace(config, stop_after=1e-9), data)
    assert not stopped.finished and stopped.steps == 1 and not stopped.solved
    return config, train(config, data)


def test_training_learns_the_rules_of_sudoku(trained):
    _, outcome = trained
    first, last = outcome.history[:5], outcome.history[-5:]
    assert np.mean([row["loss"] for row in first]) > 1.5
    assert np.mean([row["loss"] for row in last]) < 0.7
    cells = [row["36-givens cells"] for row in outcome.history if "36-givens cells" in row]
    assert len(cells) == 3 and cells[-1] > 0.5  # a guess is right once in nine times
    assert outcome.finished and outcome.steps == 60 and outcome.curves.stat().st_size > 10_000
    assert {"cell accuracy", "puzzle accuracy"} <= last[-1].keys()


@pytest.mark.long
def test_minutes_become_steps_once_and_stay_with_the_run(data, tmp_path):
    config = _config(
        tmp_path, steps=None, minutes=1e-9, features=2, num_steps=1, test_steps=1, eval_puzzles=2
    )
    outcome = train(config, data)
    budget = json.loads((config.run / "budget.json").read_text())
    assert outcome.finished and outcome.steps == budget["steps"] == 1
    assert budget["seconds_per_step"] > 0
    kept = budget | {"seconds_per_step": 123.0}
    (config.run / "budget.json").write_text(json.dumps(kept))
    assert train(config, data).finished
    assert json.loads((config.run / "budget.json").read_text()) == kept


def test_puzzles_held_out_are_in_no_training_set(data):
    assert len(data.minimal) == 6 and len(data.mixed) == 30
    assert sorted(set(data.minimal.givens)) == [22, 23, 24]
    assert sorted(set(data.mixed.givens)) == list(range(20, 35))
    mixed = Puzzles(
        np.concatenate([data.train.puzzles, data.minimal.puzzles[2:4]]),
        np.concatenate([data.train.solutions, data.minimal.solutions[2:4]]),
    )
    kept = without(mixed, data.minimal, data.mixed)
    np.testing.assert_array_equal(kept.puzzles, data.train.puzzles)
    assert len(without(data.minimal, data.minimal)) == 0
    other = make_data(20, 1, seed=4)
    assert len(without(other.minimal, data.minimal)) == len(other.minimal)


def test_training_puzzles_come_hardest_first_and_files_come_back(data, tmp_path):
    guesses = sudoku.difficulty(data.train.puzzles).guesses
    assert (np.diff(guesses) <= 0).all() and guesses[0] > 0
    write(data, tmp_path / "data")
    again = read(tmp_path / "data")
    for name in ("train", "minimal", "mixed"):
        np.testing.assert_array_equal(getattr(again, name).puzzles, getattr(data, name).puzzles)
    (tmp_path / "data" / "mixed.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"mixed\.csv"):
        read(tmp_path / "data")


@pytest.mark.parametrize("fewest, most", [(45.0, 34), (29.5, 34), (10.0, 34)])
def test_batches_have_givens_between_the_bounds_of_the_curriculum(data, fewest, most):
    settings = dataclasses.replace(recipe("palm"), batch_size=400, most=most)
    pool = Pool(
        jnp.asarray(data.train.puzzles), jnp.asarray(data.train.solutions), jnp.float32(fewest)
    )
    puzzles, solutions = map(
        np.asarray, jax.jit(lambda key: draw(key, pool, settings))(jax.random.key(0))
    )
    givens = np.count_nonzero(puzzles, axis=1)
    most = max(most, int(fewest))
    assert givens.max() == most and (puzzles == np.where(puzzles > 0, solutions, 0)).all()
    if fewest > 28:
        assert givens.min() == int(fewest)
    else:  # minimal puzzles stay as they are
        share = np.mean(givens <= 28)
        assert givens.min() < 24 and abs(share - 19 / 25) < 0.1
    found, solved = sudoku.solve(puzzles[:20].astype(np.int8))
    assert (found == 1).all()
    np.testing.assert_array_equal(solved[:, 0], solutions[:20])


def test_the_curriculum_falls_and_hard_puzzles_are_drawn_more_often(data):
    settings = dataclasses.replace(recipe("candidate"), batch_size=4000, hard=2.0, fewest=10)
    bounds = [fewest_givens(settings, step, 1000) for step in (1, 51, 101, 1000)]
    assert bounds == [45, 27.5, 10, 10]
    pool = Pool(jnp.asarray(data.train.puzzles), jnp.asarray(data.train.solutions), jnp.float32(10))
    _, solutions = jax.jit(lambda key: draw(key, pool, settings))(jax.random.key(1))
    half = data.train.solutions[: len(data.train) // 2]
    known = {row.tobytes() for row in half}
    share = np.mean([row.tobytes() in known for row in np.asarray(solutions, np.int8)])
    assert abs(share - np.sqrt(0.5)) < 0.04


def test_recipes_are_measured_on_what_they_train_on(data):
    assert held_out(data, recipe("candidate")).keys() == {"minimal", "mixed"}
    (easy,) = held_out(data, recipe("tiny")).values()
    assert easy.givens.min() == 30 and easy.givens.max() == 34
    with pytest.raises(ValueError, match="--recipe must be one of tiny, candidate"):
        recipe("huge")  # type: ignore[arg-type]


@pytest.mark.costly
@pytest.mark.parametrize("name", _RECIPES)
def test_every_recipe_has_a_loss_in_its_dtype(data, name):
    settings = dataclasses.replace(recipe(name), batch_size=2, features=8)
    pool = Pool(jnp.asarray(data.train.puzzles), jnp.asarray(data.train.solutions), jnp.float32(30))
    model = make_network(settings)
    # Flax's LayerNorm promotes bfloat16 implicitly.
    with jax.numpy_dtype_promotion("standard" if name == "seed" else "strict"):
        loss, metrics = nnx.eval_shape(
            lambda model: training_loss(model, pool, nnx.Rngs(0), settings), model
        )
    assert loss.shape == () and loss.dtype == jnp.float32
    assert metrics.keys() == {"cell accuracy", "puzzle accuracy"}


def test_broken_files_of_a_run_are_named(data, tmp_path):
    config = _config(tmp_path, minutes=0.001, steps=None)
    config.run.mkdir()
    (config.run / "budget.json").write_text('{"steps": "many"}')
    with pytest.raises(ValueError, match=r"budget\.json: expected numbers for steps and seconds"):
        train(config, data)
    (config.run / "budget.json").write_text("")
    with pytest.raises(ValueError, match=r"budget\.json: not JSON: an empty file"):
        train(config, data)
    for content, message in {
        "": "not JSON: an empty file",
        "[]": "expected an object, the configuration of the run, got",
        '{"depth": 3}': r"not of a run of experiments\.sudoku: \['depth'\]",
    }.items():
        (config.run / "config.json").write_text(content)
        with pytest.raises(ValueError, match=rf"config\.json: {message}"):
            load_run(config.run)


class Scripted(nnx.Module):
    """Right about a puzzle at steps from its first given digit on, but for a slip at the fourth."""

    def __init__(self, solutions):
        self.solutions = nnx.Variable(jnp.asarray(solutions, jnp.int32))

    def __call__(self, puzzles, *, num_steps):
        step = jnp.arange(1, num_steps + 1)[:, None]
        first = self.solutions[...][:, 0]
        right = (step >= first) & (step != 4)
        boards = jnp.where(right[..., None], self.solutions[...], self.solutions[...] % 9 + 1)
        return (boards[..., None] == jnp.arange(1, 10)).astype(jnp.float32)


def test_puzzles_are_counted_that_some_step_solves_and_cells_of_the_last_step(data):
    puzzles = data.mixed
    first = puzzles.solutions[:, 0]
    found = measure(Scripted(puzzles.solutions), puzzles, 6, len(puzzles))
    np.testing.assert_array_equal(found.solved, first <= 6)
    blank = 81 - puzzles.givens
    np.testing.assert_array_equal(found.blank, blank)
    np.testing.assert_array_equal(found.wrong, np.where(first <= 6, 0, blank))
    at_four = measure(Scripted(puzzles.solutions), puzzles, 4, len(puzzles))
    assert (at_four.wrong == at_four.blank).all()
    np.testing.assert_array_equal(at_four.solved, first <= 3)


class Broken(nnx.Module):
    """Right about everything, but that logits of one cell of the first board are not finite."""

    def __init__(self, solutions, cell):
        self.solutions = nnx.Variable(jnp.asarray(solutions, jnp.int32))
        self.cell = cell

    def __call__(self, puzzles, *, num_steps, rngs=None):
        logits = jax.nn.one_hot(self.solutions[...] - 1, 9).at[0, self.cell].set(jnp.nan)
        return jnp.stack([logits] * num_steps)


def test_puzzles_have_no_score_where_the_network_is_nan_or_the_solution_is_none(data):
    puzzles, blank = data.mixed, int(np.flatnonzero(data.mixed.puzzles[0] == 0)[0])
    given = int(np.flatnonzero(puzzles.puzzles[0])[0])
    others = np.arange(len(puzzles)) > 0

    def scores(found):
        return found.cells, found.solved_part

    def measured(cell, solutions=puzzles.solutions):
        model = Broken(puzzles.solutions, cell)
        return measure(model, Puzzles(puzzles.puzzles, solutions), 2, len(puzzles))

    found = measured(blank)
    assert np.isnan(scores(found)).all() and scores(found[others]) == (1, 1)
    assert not found.solved[0] and found.lost[0] and not found.lost[others].any()
    # What a given cell says does not count, and neither does one without a known solution.
    assert scores(measured(given)) == (1, 1)
    solutions = puzzles.solutions.copy()
    solutions[0, blank] = 0
    unknown = measured(blank, solutions)
    assert scores(unknown) == (1, 1) and unknown.blank[0] == found.blank[0] - 1
    solutions[0, blank] = 10
    assert np.isnan(scores(measured(given, solutions))).all()


def test_the_scores_of_a_training_step_are_nan_where_the_network_is(data):
    settings = dataclasses.replace(recipe("candidate"), batch_size=2, features=8, num_steps=2)
    pool = Pool(jnp.asarray(data.train.puzzles), jnp.asarray(data.train.solutions), jnp.float32(30))
    model = make_network(settings)
    loss_of = nnx.jit(lambda model: training_loss(model, pool, nnx.Rngs(0), settings))
    assert all(0 <= score <= 1 for score in loss_of(model)[1].values())
    nnx.update(model, jax.tree.map(lambda p: p * jnp.nan, nnx.state(model, nnx.Param)))
    loss, scores = loss_of(model)
    assert np.isnan([loss, *scores.values()]).all()


@pytest.mark.long
def test_measuring_in_batches_changes_nothing(trained, data):
    file = export(ExportConfig(trained[0].run))
    assert file == trained[0].run / "weights.npz", "and not the one that comes with the library"
    model = load_weights(file)
    whole = measure(model, data.mixed, 3, 30)
    parts = measure(model, data.mixed, 3, 8)
    for field in dataclasses.fields(whole):
        np.testing.assert_array_equal(getattr(whole, field.name), getattr(parts, field.name))


# A few steps, since networks of these tests have hardly learnt anything.
SHORT = {"steps": 12, "attempt_steps": 5, "attempts": 2, "progress": False}


@pytest.mark.again("test_solve_and_evaluate_use_the_same_network_and_name_it")
def test_evaluation_has_rows_by_givens_and_by_difficulty_beside_trivial_methods(
    trained, data, tmp_path, capsys
):
    config, _ = trained
    write(data, tmp_path / "data")
    options = {"run": config.run, "data": tmp_path / "data", "out": tmp_path / "out"}
    rows = evaluate(EvaluateConfig(**options, **SHORT, seeds=(0, 3)))
    assert {row.kind for row in rows} == {"minimal", "mixed"}
    for kind, puzzles in (("minimal", data.minimal), ("mixed", data.mixed)):
        own = {row.level: row for row in rows if row.kind == kind}
        levels = {f"{givens} givens" for givens in puzzles.givens}
        assert levels <= own.keys() and own["all"].count == 2 * len(puzzles)
        for part in (levels, own.keys() - levels - {"all"}):
            assert sum(own[level].count for level in part) == 2 * len(puzzles)
        assert all(row.first <= row.solved <= 1 and row.search == 1 for row in own.values())
        assert own["all"].singles == np.mean(sudoku.difficulty(puzzles.puzzles).open == 0)
        # 5 steps, then twice 3 of the 7 that are left
        assert max(row.most_restarts for row in own.values()) == 2
    table = capsys.readouterr().out
    assert f"CandidateNetwork of {config.run}" in table and "5 steps an attempt, 12 for" in table
    assert "20 givens" in table and "singles" in table and "mean ± deviation" in table
    saved = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert saved["seeds"] == [0, 3] and len(saved["rows"]) == len(rows)
    assert (tmp_path / "out" / "evaluation.png").stat().st_size > 10_000


def test_published_puzzles_have_one_solution_and_the_givens_that_they_are_said_to_have():
    folder = Path(command_line.__file__).parent / "known"
    seventeen, hardest = (read_puzzles(folder / f"{n}.txt") for n in ("seventeen", "hardest"))
    assert len(seventeen) == 100 and (seventeen.givens == 17).all()
    assert len(np.unique(seventeen.puzzles, axis=0)) == 100
    assert hardest.givens.tolist() == [23, 21, 21, 21, 23]
    # No single can be found in most of them, and a search has to guess often.
    assert sudoku.difficulty(hardest.puzzles).guesses.min() > 20


def test_solve_and_evaluate_use_the_same_network_and_name_it(trained, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = trained[0].run
    shipped = chosen_network("solve", None, None)
    assert shipped.name == "CandidateNetwork, the weights that come with jaxgnn"
    assert chosen_network("solve", run, None).name == f"CandidateNetwork of {run} (12 wide)"
    monkeypatch.setattr("experiments.sudoku.chosen.sudoku_weights", lambda: tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError, match="and no run in runs/sudoku/tiny: train one"):
        chosen_network("evaluate", None, None)
    (tmp_path / "runs" / "sudoku").mkdir(parents=True)
    (tmp_path / "runs" / "sudoku" / "tiny").symlink_to(run)
    assert chosen_network("evaluate", None, None).name == (
        "CandidateNetwork of runs/sudoku/tiny (12 wide)"
    )


@pytest.mark.again("test_training_learns_the_rules_of_sudoku")
def test_several_seeds_are_runs_of_their_own_with_mean_and_deviation(data, tmp_path, capsys):
    config = _config(
        tmp_path, features=2, num_steps=1, test_steps=1, steps=1, evaluations=1, eval_puzzles=2
    )
    folder = tmp_path / "data"
    write(data, folder)
    outcomes = train_seeds(dataclasses.replace(config, data=folder, seeds=(0, 5)))
    first, second = (outcome.history[0]["loss"] for outcome in outcomes)
    assert first != second and outcomes[1].report == config.run / "seed-5" / "report.html"
    printed = capsys.readouterr().out
    assert "0.00 ± 0.00 (2)" in printed and "singles %" in printed
    page = outcomes[0].report.read_text()
    assert "Sudoku, CandidateNetwork (tiny), seed 0" in page and "search %" in page
    with pytest.raises(ValueError, match="train: --seeds must be each seed once, got 5 twice"):
        train_seeds(dataclasses.replace(config, seeds=(5, 5)))


@pytest.mark.long
def test_a_run_may_begin_with_the_weights_of_another_and_keeps_their_log(trained, data, tmp_path):
    config, outcome = trained
    weights = export(ExportConfig(config.run, tmp_path / "first.npz"))
    again = dataclasses.replace(config, run=tmp_path / "again", initial=weights, steps=1)
    first = train(again, data).history[0]
    assert first["loss"] < 0.6 * outcome.history[0]["loss"]
    export(ExportConfig(again.run, tmp_path / "second.npz"))
    about, *_ = read_rows(tmp_path / "second_training.jsonl")
    earlier = (tmp_path / "first_training.jsonl").read_text().splitlines()
    assert about["earlier"] == [json.loads(line) for line in earlier]
    with pytest.raises(ValueError, match="--initial must be weights of the recipe's CandidateNet"):
        train(dataclasses.replace(again, features=6, run=tmp_path / "wide"), data)
    assert not (tmp_path / "wide").exists()


@pytest.mark.parametrize("kind", ["pairs", "lines"])
def test_evaluation_reads_published_files(trained, data, tmp_path, kind):
    file = tmp_path / "some.txt"
    if kind == "pairs":
        sudoku.write_palm(file, data.mixed[:4])
    else:
        file.write_text("\n".join(map(sudoku.to_line, data.mixed.puzzles[:4])))
    config = EvaluateConfig(run=trained[0].run, puzzles=file, out=tmp_path, **SHORT)
    rows = evaluate(config)
    assert rows[0].kind == "some.txt" and rows[0].count == 4


def test_a_saved_run_answers_and_is_exported_with_its_log(trained, data, tmp_path, capsys):
    config, outcome = trained
    puzzle, solution = data.mixed.puzzles[14], data.mixed.solutions[14]  # 34 givens
    file = export(ExportConfig(config.run, tmp_path / "small.npz"))
    capsys.readouterr()
    for given in (puzzle, solution):
        answers = [
            solve(SolveConfig(sudoku.to_line(given), steps=6, attempt_steps=6, **source))
            for source in ({"run": config.run}, {"weights": file})
        ]
        np.testing.assert_array_equal(*(answer.board for answer in answers))
        right = np.array_equal(answers[0].board, solution)
        assert [answer.solved for answer in answers] == [right, right]
        printed = capsys.readouterr().out
        assert printed.count("solved at step" if right else "not solved (0 restarts") == 2
        assert printed.count("network: CandidateNetwork") == 2
        assert printed.count(sudoku.to_grid(answers[0].board)) == 2
    about, *rows = read_rows(tmp_path / "small_training.jsonl")
    assert about["config"]["features"] == 12 and "run" not in about["config"]
    assert about["result"]["36-givens puzzles"] == outcome.solved["36-givens"]
    assert [row["step"] for row in rows] == [1, 20, 40, 60]
    with pytest.raises(ValueError, match=r"--out must be a file with the ending \.npz"):
        export(ExportConfig(config.run, tmp_path / "small.txt"))


@pytest.mark.long
def test_memory_grows_with_steps_unless_states_are_made_again_or_no_gradient_passes(tmp_path):
    table = cost(CostConfig(steps=(16, 64), batches=(2,), features=4, repeats=1, out=tmp_path))
    megabytes = {(row.recompute_every, row.steps, row.warm_up): row.megabytes for row in table}
    more = {kept: megabytes[kept, 64, 0] - megabytes[kept, 16, 0] for kept in (None, 1, "auto")}
    assert more[None] > 4 * more[1] > 0
    assert abs(more["auto"]) < 0.2 * more[1], "but for the logits of each step, it is the same"
    warm, cold = megabytes[None, 16, 48], megabytes[None, 16, 0]
    assert abs(warm - cold) < 0.1 * cold, "48 steps without gradients keep nothing"
    assert json.loads((tmp_path / "cost-tiny.json").read_text())[0]["ms"] > 0


EASY = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
BAD = {
    "steps and minutes": (
        ["train", "--steps", "3", "--minutes", "1"],
        "train: --minutes must be left out",
    ),
    "hard": (["train", "--hard", "0.5"], "train: --hard must be at least 1"),
    "warm-up": (["train", "--recipe", "seed", "--warm-up", "3"], "train: --warm-up must be 0"),
    "curriculum": (["train", "--curriculum", "2"], "train: --curriculum must be from 0 to 1"),
    "batch": (["train", "--batch-size", "0"], "train: --batch-size must be at least 1"),
    "features": (["train", "--features", "0"], "train: --features must be at least 1"),
    "num steps": (["train", "--num-steps", "0"], "train: --num-steps must be at least 1"),
    "average": (["train", "--ema-decay", "1"], "train: --ema-decay must be from 0 to below 1"),
    "rate": (["train", "--learning-rate", "0"], "train: --learning-rate must be positive"),
    "fewest": (["train", "--fewest", "60"], "train: --fewest must be at most 45"),
    "seeds": (["train", "--seeds", "1", "1"], "train: --seeds must be each seed once"),
    "stop": (["train", "--stop-after", "0"], "train: --stop-after must be positive"),
    "data": (["train", "--data", "missing"], "minimal.csv"),
    "run": (["evaluate", "--run", "missing"], "evaluate: --run must be the folder of a run"),
    "both": (
        ["solve", EASY, "--run", "a", "--weights", "b"],
        "solve: --weights must be left out where --run is given",
    ),
    "weights": (["solve", EASY, "--weights", "missing.npz"], "no file missing.npz"),
    "effort": (["solve", "1", "--attempts", "0"], "solve: --attempts must be at least 1"),
    "export": (["export", "--run", "missing"], "export: --run must be the folder of a run"),
    "count": (["generate", "--train", "0"], "generate: --train must be at least 1"),
    "threads": (["generate", "--threads", "0"], "generate: --threads must be at least 1"),
    "evaluate": (["evaluate", "--steps", "0"], "evaluate: --steps must be at least 1"),
    "test": (["evaluate", "--test", "0"], "evaluate: --test must be at least 1"),
    "same seeds": (["evaluate", "--seeds", "2", "2"], "evaluate: --seeds must be each seed once"),
    "cost": (["cost", "--batches", "0"], "cost: --batches must be at least one number"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_end_with_one_line(name, monkeypatch, tmp_path):
    arguments, message = BAD[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sudoku", *arguments])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert str(end.value.code).startswith("error: ") and message in str(end.value.code)
    assert not any(tmp_path.iterdir())


@pytest.mark.costly
@pytest.mark.parametrize(
    "puzzle, message",
    [
        ("55" + 79 * ".", "5 stands twice in row 1, at r1c1, r1c2"),
        (81 * ".", "more than one solution"),
        ("12345678." + 8 * "." + "9" + 63 * ".", "no solution"),
        (80 * ".", "must be 81 cells, got 80"),
        ("a" + 80 * ".", "got 'a' at cell 1"),
    ],
)
def test_solve_says_what_is_wrong_with_a_puzzle(trained, puzzle, message, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sudoku", "solve", puzzle, "--run", str(trained[0].run)])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert str(end.value.code).startswith("error: ") and message in str(end.value.code)


def test_generate_writes_what_train_reads(monkeypatch, tmp_path, capsys):
    arguments = ["generate", "--train", "30", "--test", "1", "--out", str(tmp_path / "made")]
    monkeypatch.setattr("sys.argv", ["sudoku", *arguments])
    command_line.main()
    printed = capsys.readouterr()
    assert "minimal.csv: 3 puzzles, 22 to 24 givens" in printed.out
    assert "minimal puzzles: 0 of 3" in printed.err and "training puzzles: 30 of 30" in printed.err
    assert len(read(tmp_path / "made").train) == 30
