"""Learnt simulators, from the command line to the picture."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from experiments.physics import draw, rollout, setup
from experiments.physics.config import DrawConfig, RolloutConfig, TrainConfig
from experiments.physics.data import World, on_device, simulate
from experiments.physics.errors import errors_of, trivial_errors
from experiments.physics.train import train
from jaxgnn import datasets
from jaxgnn.training import RunFolder


def _config(folder, **options):
    given = {
        "particles": 9,
        "runs": 4,
        "frames": 12,
        "horizon": 6,
        "num_steps": 1,
        "num_layers": 1,
        "hidden_features": 8,
        "batch_size": 8,
        "steps": 4,
        "eval_every": 2,
        "checkpoint_every": 2,
        "run": folder / "run",
        "progress": False,
    }
    return TrainConfig(**(given | options))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = _config(tmp_path_factory.mktemp("physics"), steps=40, eval_every=20)
    return config.run, train(config)


@pytest.mark.long
def test_a_run_learns_and_writes_errors_beside_methods_without_a_network(trained):
    folder, outcome = trained
    losses = [row["loss"] for row in outcome.history]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    result = json.loads((folder / "result.json").read_text())
    assert list(result["errors"]) == [
        "constant velocity",
        "constant acceleration",
        "no interaction",
        outcome.label,
    ]
    assert result["errors"]["constant velocity"]["one step"] == 1
    page = (folder / "report.html").read_text()
    assert (folder / "curves.png").exists() and "constant acceleration" in page


@pytest.mark.long
def test_a_rollout_compares_new_runs_with_the_simulator(trained, capsys):
    folder, outcome = trained
    rollout.run(RolloutConfig(folder, frames=8, runs=2, particles=16))
    out = capsys.readouterr().out
    assert "Rollouts of 2 new runs of 16 springs" in out and "energy at the start" in out
    saved = np.load(folder / "rollout.npz")
    assert saved["predicted"].shape == saved["simulated"].shape == (2, 8, 16, 2)
    assert outcome.label in out


@pytest.mark.long
def test_a_rollout_of_a_trained_network_is_drawn(trained, tmp_path):
    folder, _ = trained
    draw.run(DrawConfig(folder, frames=3))
    assert _frames(folder / "rollout.gif") == 3
    draw.run(DrawConfig(folder, frames=4, strip=3, out=tmp_path / "strip.png"))
    assert (tmp_path / "strip.png").exists()


def _frames(path):
    with Image.open(path) as picture:
        return picture.n_frames


@pytest.mark.parametrize("system", ["springs", "charges"])
def test_a_film_is_an_animation_or_a_strip(system, tmp_path):
    motion = datasets.particles(system, runs=1, frames=3, num_particles=9)
    film = draw.Film(motion, {"simulator": motion.positions[0], "network": motion.positions[0]})
    draw.animate(film, tmp_path / "film.gif")
    draw.draw_strip(film, tmp_path / "strip.png", 2)
    assert _frames(tmp_path / "film.gif") == 3
    with Image.open(tmp_path / "strip.png") as strip:
        assert strip.size[0] > 400


@pytest.mark.long
def test_charges_are_trained_rolled_out_and_drawn(tmp_path):
    config = _config(tmp_path, system="charges", history=2, dtype="bfloat16")
    train(config)
    rollout.run(RolloutConfig(config.run, system="charges", frames=4, runs=1))
    draw.run(DrawConfig(config.run, frames=2))
    assert _frames(config.run / "rollout.gif") == 2


@pytest.mark.parametrize("system", ["springs", "charges"])
def test_edges_join_the_particles_that_interact(system):
    motion = datasets.particles(system, runs=2, frames=3, num_particles=9, seed=1)
    world, runs = World.of(motion), on_device(motion)
    near = world.neighbours(runs.positions[:, 0], runs.bodies)
    assert near.features.shape[-1] == world.edge_width() and not near.overflow
    x = motion.positions[:, 0].astype(np.float64)
    if system == "springs":
        ends = motion.senders, motion.receivers
        apart = x[:, ends[0]] - x[:, ends[1]]
        np.testing.assert_allclose(near.features[..., :2], apart, atol=1e-5)
        np.testing.assert_allclose(near.features[..., 3], motion.lengths, rtol=1e-6)
        return
    apart = x[:, :, None] - x[:, None]
    apart -= motion.box * np.round(apart / motion.box)
    distances = np.linalg.norm(apart, axis=-1)
    joined = (distances < motion.reach) & ~np.eye(9, dtype=bool)
    real = np.asarray(near.graph.receivers()) < 18
    assert real.sum() == joined.sum()
    found = np.sort(np.asarray(near.features)[real, 2]) * motion.reach
    np.testing.assert_allclose(found, np.sort(distances[joined]), atol=1e-5)


def test_methods_without_a_network_are_exact_where_their_assumption_holds():
    motion = datasets.particles("springs", runs=2, frames=10, num_particles=9)
    times = np.arange(10.0)[:, None, None]
    start, velocity = motion.positions[:, :1], motion.positions[:, 1:2]
    straight = replace(motion, positions=start + 0.1 * times * velocity)
    found = trivial_errors(motion, straight, 5, 3)
    assert found["constant velocity"].distances.max() < 1e-5
    curved = replace(motion, positions=straight.positions + 0.01 * times**2)
    found = trivial_errors(motion, curved, 5, 3)
    assert found["constant acceleration"].distances.max() < 1e-4
    np.testing.assert_allclose(found["constant velocity"].one_step, 1)
    # After k frames a neglected acceleration of 0.02 in both directions is off by k (k + 1) / 2.
    k = np.arange(1, 6)
    expected = 0.02 * np.sqrt(2) * k * (k + 1) / 2
    np.testing.assert_allclose(found["constant velocity"].distances, expected, rtol=1e-3)


def test_the_simulator_itself_has_no_error():
    motion = datasets.particles("charges", runs=2, frames=10, num_particles=9)
    errors = errors_of(motion, motion.positions[:, 3:], motion.positions[:, 3:8], 3)
    assert errors.one_step == 0 and errors.energy == 0 and not errors.distances.any()


def test_missing_neighbours_make_a_rollout_worthless_in_training_and_end_the_others(monkeypatch):
    motion = datasets.particles("charges", runs=2, frames=10, num_particles=9)
    world, runs = World.of(motion), on_device(motion)
    for module in (setup, rollout):
        monkeypatch.setattr(module, "predicted", lambda *_: (motion.positions[:, 3:8], True))
    monkeypatch.setattr(setup, "_one_step", lambda *_, **__: motion.positions[:, 3:])
    errors = setup.network_errors(None, world, motion, runs, 5, 1)
    assert errors.one_step == 0 and np.isnan([errors.energy, *errors.distances]).all()
    trained = rollout.Trained(TrainConfig(), None, motion)
    with pytest.raises(ValueError, match="draw: the predicted positions must be such that no part"):
        rollout.roll_out("draw", trained, world, runs, 5)


def test_parts_are_different_runs_of_the_same_springs(tmp_path):
    parts = simulate(_config(tmp_path, runs=8))
    assert [p.num_runs for p in (parts.train, parts.validation, parts.test)] == [8, 2, 2]
    np.testing.assert_array_equal(parts.train.senders, parts.test.senders)
    every = np.concatenate([p.lengths for p in (parts.train, parts.validation, parts.test)])
    assert len(np.unique(every, axis=0)) == 12


BAD = {
    "--steps": ({"steps": 0}, "--steps must be at least 1, got 0"),
    "--num-steps": ({"num_steps": 0}, "--num-steps must be at least 1, got 0"),
    "--particles": (
        {"system": "charges", "particles": 8},
        "--particles must be at least 9 for charges, got 8",
    ),
    "--horizon": ({"horizon": 10}, "--horizon must be at most 9 with --frames 12, got 10"),
    "--noise": ({"noise": -1.0}, "--noise must be at least 0, got -1.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named_as_they_are_typed_before_anything_is_written(name, tmp_path):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=f"train: {message}"):
        train(_config(tmp_path, **options))
    assert not list(tmp_path.iterdir())


def test_a_rollout_of_something_else_is_refused(tmp_path):
    folder = tmp_path / "run"
    RunFolder(folder, _config(tmp_path)).close()
    with pytest.raises(ValueError, match="load_model: no checkpoint in"):
        rollout.run(RolloutConfig(folder))
    with pytest.raises(ValueError, match=r"rollout: --system must be springs, that of .*, got ch"):
        rollout.run(RolloutConfig(folder, system="charges"))
    with pytest.raises(ValueError, match="rollout: --run must be the folder of a run, which exp"):
        rollout.run(RolloutConfig(tmp_path))
    (tmp_path / "config.json").write_text('{"dataset": "cora"}')
    with pytest.raises(ValueError, match=r"got .*another experiment's"):
        rollout.run(RolloutConfig(tmp_path))
    with pytest.raises(ValueError, match=r"draw: --out must be a file that ends in .gif or .png"):
        draw.run(DrawConfig(folder, out=tmp_path / "film.mp4"))
    with pytest.raises(ValueError, match="draw: --frames must be at least 2, got 1"):
        draw.run(DrawConfig(folder, frames=1))
