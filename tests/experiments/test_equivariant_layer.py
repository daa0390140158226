"""The benchmark of a layer of an equivariant potential."""

import pytest

from experiments.benchmarks import equivariant_layer
from experiments.benchmarks._report import read_rows
from experiments.benchmarks.equivariant_layer import Options, main


def test_each_installed_library_has_the_same_energy_and_forces(tmp_path, capsys):
    pytest.importorskip("e3nn_jax", reason="compares with e3nn-jax, which is not installed")
    names = ("ours", "e3nn", "openequivariance")
    main(Options(scale="tiny", candidates=names, out=tmp_path))
    rows = read_rows(tmp_path / "equivariant_layer.jsonl")
    assert [row["candidate"] for row in rows][:2] == ["ours", "e3nn"]
    ours, other = (row["training_norms"] for row in rows[:2])
    assert other == pytest.approx(ours, rel=1e-4) and all(ours)
    assert "openequivariance" in capsys.readouterr().out


def test_another_force_is_an_error_and_bad_options_are_named():
    row = {"forces_norms": [1.0], "training_norms": [2.0]}
    equivariant_layer.check_equal("peer", row, row)
    with pytest.raises(RuntimeError, match="peer has training_norms"):
        equivariant_layer.check_equal("peer", row | {"training_norms": [2.1]}, row)
    with pytest.raises(ValueError, match="--candidates"):
        Options(candidates=("allegro",))
