"""The benchmark of a whole equivariant potential."""

import pytest

from experiments.benchmarks._report import read_rows
from experiments.benchmarks.potential import Options, main


def test_another_library_in_the_same_network_has_the_same_energy_forces_and_loss(tmp_path, capsys):
    pytest.importorskip("e3nn_jax", reason="compares with e3nn-jax, which is not installed")
    main(Options(scale="tiny", candidates=("ours", "e3nn"), out=tmp_path))
    rows = read_rows(tmp_path / "potential.jsonl")
    found = [(row["workload"], row["candidate"], row["edges"]) for row in rows]
    assert found == [
        ("silicon-8", "ours", 32),
        ("silicon-8", "e3nn", 32),
        ("training-2", "ours", 64),
        ("training-2", "e3nn", 64),
    ]
    for ours, other, key in ((*rows[:2], "forces_norms"), (*rows[2:], "training_norms")):
        assert other[key] == pytest.approx(ours[key], rel=1e-4) and all(ours[key])
    assert "training-2" in capsys.readouterr().out


def test_a_candidate_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="--candidates must be some of ours"):
        Options(candidates=("allegro",))
