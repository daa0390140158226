"""Learnt potentials, from the command line to the dynamics."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flax import nnx

from experiments.molecules.baseline import PairPotential, species_energies
from experiments.molecules.config import NAMES, TrainConfig
from experiments.molecules.data import Batches, load, split_of
from experiments.molecules.dynamics import calmest, run_dynamics
from experiments.molecules.errors import Errors, Prediction
from experiments.molecules.setup import Loss, force_scale, potential_of
from experiments.molecules.train import train, trivial_predictions
from jaxgnn import datasets, models


def _config(folder, **options):
    given = {
        "structures": 16,
        "model": "schnet",
        "num_layers": 1,
        "features": 8,
        "batch_size": 2,
        "steps": 4,
        "eval_every": 2,
        "checkpoint_every": 2,
        "dynamics": 3,
        "run": folder / "run",
        "progress": False,
    }
    return TrainConfig(**(given | options))


def _batches(config, data=None):
    data = load(config) if data is None else data
    return Batches(data, split_of(config, len(data)), config.radius(), config.batch_size, 0)


def _shuffled(data):
    """The structures with the forces and the energies of others."""
    rng = np.random.default_rng(0)
    forces = rng.permutation(data.forces.ravel()).reshape(-1, 3)
    return replace(data, forces=forces, energies=rng.permutation(data.energies))


def _write_extxyz(path, data):
    with path.open("w") as file:
        for at in range(len(data)):
            one = data[at]
            lattice = "" if one["cell"] is None else f'Lattice="{_words(one["cell"])}" '
            file.write(f"{len(one['species'])}\n{lattice}energy={one['energy']} ")
            file.write("Properties=species:S:1:pos:R:3:forces:R:3\n")
            for place, force in zip(one["positions"], one["forces"], strict=True):
                file.write(f"{data.elements[0]} {_words(place)} {_words(force)}\n")
    return path


def _words(values):
    return " ".join(map(repr, np.ravel(values).tolist()))


def test_a_run_compiles_once_and_prints_errors_beside_methods_without_a_network(tmp_path, capsys):
    config = _config(tmp_path)
    outcome = train(config)
    out = capsys.readouterr().out
    assert "compilations: training step 1, prediction 1" in out
    assert (
        f"test: energy {outcome.test.energy:.1f} meV/atom" in out and "total energy drifts" in out
    )
    result = json.loads((config.run / "result.json").read_text())
    assert list(result["errors"]) == ["energies of species", "pair potential", "SchNet"]
    page = (config.run / "report.html").read_text()
    assert page.count("<img") == 2 and "pair potential" in page


@pytest.mark.long
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_potential_learns_forces_and_does_not_if_they_are_shuffled(tmp_path, shuffled):
    data = datasets.silicon(num=24, repeats=1, seed=1)
    path = _write_extxyz(tmp_path / "data.extxyz", _shuffled(data) if shuffled else data)
    config = _config(tmp_path, data=path, cutoff=4.0, features=16, steps=150, eval_every=0)
    outcome = train(replace(config, learning_rate=0.01, dynamics=0))
    zero, found = outcome.errors["energies of species"].forces, outcome.test.forces
    assert (found > 0.9 * zero) if shuffled else (found < 0.5 * zero)


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_pair_potential_is_exact_for_pairs_and_not_if_forces_are_shuffled(tmp_path, shuffled):
    config = _config(tmp_path, system="argon", structures=24, test=0.25)
    data = load(config)
    batches = _batches(config, _shuffled(data) if shuffled else data)
    found = trivial_predictions(config, batches)
    errors = {name: Errors.of(rows) for name, rows in found.items()}
    pairs, zero = errors["pair potential"], errors["energies of species"]
    assert zero.forces > 20 and zero.energy > 10
    if shuffled:
        assert pairs.forces > 0.9 * zero.forces
    else:
        assert pairs.forces < 0.01 * zero.forces and pairs.energy < 0.01 * zero.energy


def test_forces_of_the_pair_potential_are_differences_of_its_energies():
    rng = np.random.default_rng(3)
    cell = 5 * np.eye(3) + rng.normal(scale=0.3, size=(3, 3))
    species = np.array([0, 2, 2, 1, 0])

    def sample(x):
        labels = {"energy": 1.0, "forces": rng.normal(size=(5, 3))}
        return models.atomic_sample(x, species, 4.0, cell=cell, **labels)

    x = rng.uniform(0, 5, (5, 3)).astype(np.float32)
    potential = PairPotential([sample(rng.uniform(0, 5, (5, 3))) for _ in range(9)], 3, 4.0, 1.0)
    direction = rng.normal(size=x.shape)
    up, down = (potential(sample(x + sign * 1e-3 * direction))[0] for sign in (1, -1))
    slope = -np.sum(potential(sample(x))[1] * direction)
    np.testing.assert_allclose((up - down) / 2e-3, slope, rtol=0.02)


def test_energies_of_species_are_those_of_lone_atoms(tmp_path):
    path = tmp_path / "data.extxyz"
    structures = ("H H", "O", "O H H", "H H H")
    with path.open("w") as file:
        for words in (structure.split() for structure in structures):
            energy = sum({"H": -1.5, "O": -4.0}[word] for word in words)
            file.write(f"{len(words)}\nenergy={energy} Properties=species:S:1:pos:R:3\n")
            file.writelines(f"{word} {place} 0 0\n" for place, word in enumerate(words))
    found = species_energies(datasets.read_extxyz(path), np.arange(4))
    np.testing.assert_allclose(found, [-1.5, -4.0])
    expected = "train: --data must be structures that all have forces, got .*, where structure"
    with pytest.raises(ValueError, match=f"{expected} 0, 1, 2, 3 of 4 has none"):
        load(_config(tmp_path, data=path))
    whole = "1\nenergy=-2 Properties=species:S:1:pos:R:3:forces:R:3\nH 1 2 3 0 0 0\n"
    path.write_text(whole + "1\nenergy=-2 Properties=species:S:1:pos:R:3\nH 1 2 3\n" + whole)
    with pytest.raises(ValueError, match=f"{expected} 1 of 3 has none"):
        load(_config(tmp_path, data=path))
    path.write_text("1\nE=-2 Properties=species:S:1:F:R:3:pos:R:3\nH 1 2 3 0 0 0\n")
    read = load(_config(tmp_path, data=path, energy_key="E", forces_key="F"))
    assert read.energies.tolist() == [-2] and read.forces.tolist() == [[1, 2, 3]]


def test_errors_are_per_atom_and_per_component_in_thousandths():
    one = Prediction(1.0, np.zeros((2, 3)), 1.5, np.full((2, 3), 0.001))
    other = Prediction(0.0, np.zeros((1, 3)), 0.0, np.zeros((1, 3)))
    errors = Errors.of([one, other])
    assert errors.energy == pytest.approx(250 / np.sqrt(2)) and errors.energy_mean == 125
    assert errors.forces == pytest.approx(np.sqrt(2 / 3)) and errors.forces_mean == pytest.approx(
        2 / 3
    )


def test_batches_have_one_shape_and_the_loss_does_not_count_padding(tmp_path):
    config = _config(tmp_path, batch_size=3)
    batches = _batches(config)
    parts = [*map(batches, range(1, 9)), *batches.part(batches.split.test)]
    assert {batch.node_mask.shape + batch.graph.indices.shape for batch in parts} == {
        (batches.shape[0], batches.shape[1])
    }
    drawn = [batches.order(0), batches.order(1)]
    assert sorted(drawn[0]) == sorted(drawn[1]) and drawn[0].tolist() != drawn[1].tolist()

    class Zero(nnx.Module):
        def __call__(self, batch):
            return 0 * batch.nodes["positions"][: batch.num_graphs, 0]

    batch = parts[-1]
    loss, _ = Loss(2.0, 10.0)(Zero(), batch, nnx.Rngs(0))
    sizes = batch.num_nodes_of_each[batch.graph_mask]
    per_atom = batch.globals["energy"][batch.graph_mask] / sizes
    forces = batch.nodes["forces"][batch.node_mask]
    expected = 10 * np.mean(per_atom**2) / 4 + np.mean(forces**2) / 4
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("model", NAMES)
def test_each_potential_starts_at_the_energies_of_species(tmp_path, model):
    config = _config(tmp_path, model=model, features=4)
    batches = _batches(config)
    potential = potential_of(config, batches)
    mean = species_energies(batches.dataset, batches.split.train)
    np.testing.assert_allclose(potential.species_shift[...], mean, rtol=1e-6)
    np.testing.assert_allclose(potential.species_scale[...], force_scale(batches), rtol=1e-6)
    loss = nnx.eval_shape(lambda m: Loss(1.0, 1.0)(m, batches(1), nnx.Rngs(0))[0], potential)
    assert loss.shape == () and loss.dtype == np.float32


def test_parts_share_no_structure_and_too_few_structures_are_refused(tmp_path):
    config = _config(tmp_path)
    split = split_of(config, 20)
    assert [len(part) for part in split] == [16, 2, 2]
    assert sorted(np.concatenate(split)) == list(range(20))
    with pytest.raises(ValueError, match=r"train: --data must be enough structures .*, got 2"):
        split_of(config, 2)


class Springs(nnx.Module):
    """Springs between neighbours, which vanish beyond a cutoff."""

    def __call__(self, batch):
        from jaxgnn import nn, ops

        distances = models.atomic_edges(batch).distances[:, None]
        energies = ops.aggregate(batch.graph, np.float32(0.5) * (distances - 4.0) ** 4, "sum")
        return nn.pool(energies, batch, "sum")[:, 0]


def test_dynamics_keeps_the_energy_of_a_conservative_potential():
    data = datasets.argon(num=3, repeats=1, clusters=0, seed=1)
    still = calmest(data, np.arange(3))
    assert np.abs(data[still]["forces"]).mean() == min(
        np.abs(data[at]["forces"]).mean() for at in range(3)
    )
    options = {"cutoff": 3.5, "temperature": 50.0, "seed": 0}
    run = run_dynamics(Springs(), data, still, steps=60, **options)
    assert run.num_atoms == 4 and len(run.total) == 61
    assert run.kinetic[0] == pytest.approx(1.5 * 8.617e-5 * 50, rel=0.7)
    assert abs(run.drift) < 0.02 * run.exchanged and run.spread < 0.05 * run.exchanged


BAD = {
    "--steps": ({"steps": 0}, "--steps must be at least 1, got 0"),
    "--cutoff": ({"cutoff": 0.0}, "--cutoff must be a positive number, got 0.0"),
    "--test": ({"test": 1.0}, r"--test must be in \(0, 1\), got 1.0"),
    "--forces-key": (
        {"forces_key": "REF_forces"},
        "--forces-key must be left out without --data of an extxyz file, got REF_forces",
    ),
    "both": (
        {"test": 0.5, "validation": 0.5},
        "--validation and --test must be below 1 together, got 0.5 and 0.5",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named_as_they_are_typed_before_anything_is_written(name, tmp_path):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=f"train: {message}"):
        train(_config(tmp_path, **options))
    assert not list(tmp_path.iterdir())
