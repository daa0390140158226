"""The experiments with multilayer perceptrons, from the command line to the picture."""

import dataclasses
import json
import re
import sys

import jax
import numpy as np
import pytest

from experiments.benchmarks._report import header, line
from experiments.mlp import __main__ as command_line
from experiments.mlp import bench as bench_module
from experiments.mlp import validate as validate_module
from experiments.mlp.bench import bench
from experiments.mlp.config import NETWORKS, BenchConfig, Network, ValidateConfig
from experiments.mlp.data import enlarge, majority_accuracy, neighbour_accuracy
from experiments.mlp.differences import largest_difference
from experiments.mlp.validate import validate
from jaxgnn import ops
from jaxgnn.datasets import digits
from jaxgnn.ops._dense import fused_mlp
from jaxgnn.ops.core import dispatch

QUICK = ValidateConfig(steps=10, progress=False)
KINDS = [(t, d) for t in ("float32", "bfloat16") for d in ("forward", "forward+backward")]


# -- networks and data -------------------------------------------------------------------------


def test_the_nine_networks_are_those_of_the_published_benchmark():
    assert len(set(NETWORKS)) == 9
    first, last = NETWORKS[0], NETWORKS[-1]
    assert (first.name(), first.batch_size) == ("784-256x2-10", 64)
    assert first.features() == (784, 256, 256, 10)
    assert (last.name(), last.batch_size) == ("1024-4096x6-1000", 512)
    assert last.features() == (1024, *[4096] * 6, 1000)
    assert first.reduced() == Network(98, 32, 2, 10, 8)
    assert last.reduced() == Network(128, 512, 6, 125, 64)


def test_digits_are_enlarged_three_times_with_a_margin_of_two():
    images = np.arange(128.0).reshape(2, 64)
    large = enlarge(images).reshape(2, 28, 28)
    np.testing.assert_array_equal(large[:, 3:-2:3, 3:-2:3], images.reshape(2, 8, 8))
    np.testing.assert_array_equal(large[1, 2:5, 5:8], np.full((3, 3), 65.0))
    inside = np.zeros((28, 28), bool)
    inside[2:-2, 2:-2] = True
    assert not large[:, ~inside].any()


# -- bench -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """The folder and the rows of one quick run."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_module, "_REDUCED_TIMING", {"repeats": 3, "batch_ms": 0.0})
        return folder, bench(BenchConfig(scale="reduced", networks=(1, 3), run=folder))


@pytest.mark.again("tests/test_documented_commands.py")
def test_bench_times_every_dtype_and_direction_and_draws(benched):
    folder, rows = benched
    assert list(dict.fromkeys((row["dtype"], row["direction"]) for row in rows)) == KINDS
    for row in rows:
        assert 0 < row["ours_low_ms"] <= row["ours_ms"] <= row["ours_high_ms"]
        assert row["speedup_over_xla"] == pytest.approx(row["xla_ms"] / row["ours_ms"])
        ends = [row[f"speedup_{end}_over_xla"] for end in ("low", "high")]
        assert ends[0] <= row["speedup_over_xla"] <= ends[1]
    products = 98 * 32 + 32 * 32 + 32 * 10
    assert rows[0]["gflop"] == pytest.approx(2 * 8 * products / 1e9)
    assert (folder / f"bench_{jax.default_backend()}.png").stat().st_size > 5000
    written = [json.loads(text) for text in (folder / "bench.jsonl").read_text().splitlines()]
    assert [row["ours_ms"] for row in written] == [row["ours_ms"] for row in rows]
    assert all(row["device"] and row["jax"] == jax.__version__ for row in written)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="reason: a GPU has kernels of ours")
def test_bench_names_equal_programs_and_leaves_them_out_of_the_mean(benched, tmp_path, capsys):
    _, rows = benched
    same = {(row["dtype"], row["direction"]) for row in rows if row["same_program_as_xla"]}
    assert same == {("float32", "forward")}  # the gradient of relu is written in another way
    table = bench_module._columns("cpu")
    assert "same program" in line(rows[0], table)
    assert "of torch" not in header(table) and "kernels" not in header(table)
    assert bench_module._summary(rows[:2], "speedup_over", "xla") == (
        "2 of 2 networks are the same program"
    )
    told = [{**rows[0], **_ratio(2.0, 1.5, 2.5)}, {**rows[0], **_ratio(0.5, 0.2, 1.1)}]
    assert bench_module._summary([*told, rows[0]], "speedup_over", "xla") == (
        "1.00x, the geometric mean, from 0.50x to 2.00x; 1 of 2 not told apart; "
        "1 of 3 networks are the same program and are left out"
    )


def _ratio(ratio, low, high):
    values = {"speedup": ratio, "speedup_low": low, "speedup_high": high, "same_program": False}
    return {f"{k}_{'as' if k == 'same_program' else 'over'}_xla": v for k, v in values.items()}


def test_bench_tells_how_far_results_are_apart(benched, monkeypatch, tmp_path, capsys):
    _, rows = benched
    for row in rows:
        # The plain code rounds twice a layer; and in the gradient a relu may open or close.
        forward = {"float32": 1e-5, "bfloat16": 0.2}[row["dtype"]]
        if row["direction"] == "forward":
            assert 0 <= row["max_abs_diff_xla"] < forward
    original = bench_module._LAYERS.plain
    other = type(bench_module._LAYERS)("fused_mlp", "relu")
    object.__setattr__(other, "plain", lambda _, arrays: (original(_, arrays)[0] + 0.5, None))
    monkeypatch.setattr(bench_module, "_LAYERS", other)
    monkeypatch.setattr(bench_module, "_REDUCED_TIMING", {"repeats": 3, "batch_ms": 0.0})
    options = {"dtypes": ("float32",), "directions": ("forward",), "networks": (1,)}
    (row,) = bench(BenchConfig("reduced", run=tmp_path, **options))
    assert row["max_abs_diff_xla"] == pytest.approx(0.5, rel=1e-4)
    assert "5.0e-01" in capsys.readouterr().out


def test_bench_says_why_an_implementation_does_not_run(tmp_path):
    config = BenchConfig("reduced", networks=(1,), implementation="ffi", run=tmp_path / "run")
    with pytest.raises(NotImplementedError, match=r"fused_mlp\[ffi\]: needs one of"):
        bench(config)
    assert not config.run.exists()


@pytest.mark.parametrize("number", [0, 10])
def test_bench_names_a_bad_network(number, tmp_path):
    with pytest.raises(ValueError, match=rf"--networks must be in 1\.\.9, got {number}"):
        bench(BenchConfig(networks=(number,), run=tmp_path))
    with pytest.raises(ValueError, match="bench: --dtypes must be at least one, got none"):
        bench(BenchConfig(dtypes=(), run=tmp_path))


def test_a_nan_anywhere_is_an_infinite_difference():
    one, nan = np.ones(3), np.array([1.0, np.nan, 1.0])
    assert largest_difference([one, one], [one, one + 0.25]) == 0.25
    assert largest_difference([one, nan, one], [one] * 3) == np.inf
    assert largest_difference((one, one), [one, nan]) == np.inf


# -- validate ----------------------------------------------------------------------------------


def test_validate_passes_and_prints_the_differences(capsys):
    differences = validate(dataclasses.replace(QUICK, seeds=(0, 1)))
    assert set(differences) == {
        f"{op} from {reference}"
        for op in ("fused_mlp", "fused_linear")
        for reference in ("plain JAX", "float64")
    }
    largest = max(max(each.values()) for each in differences.values())
    assert 0 < largest < 1e-5
    printed = capsys.readouterr().out
    assert f"max abs diff: {largest:.1e} (tolerance 1e-05)" in printed
    assert "STRICT, fused_linear: " in printed
    for name in ("784-256-256-10", "nearest training image", "most frequent digit"):
        assert re.search(rf"^{name} +[\d.]+ ± [\d.]+ \(2\)$", printed, re.M), printed


def test_the_largest_difference_of_all_seeds_counts():
    of_seeds = [{"a": {"x": 1.0, "y": 4.0}}, {"a": {"x": np.inf, "y": 2.0}}]
    assert validate_module._largest(of_seeds) == {"a": {"x": np.inf, "y": 4.0}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": ()}, "--seeds must be at least one seed, got none"),
        ({"seeds": (1, 2, 1)}, "--seeds must be each seed once, got 1 twice"),
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
        ({"learning_rate": 0.0}, r"--learning-rate must be more than 0, got 0\.0"),
        ({"tolerance": float("nan")}, "--tolerance must be more than 0, got nan"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_validate_names_the_option_at_fault(wrong, message):
    with pytest.raises(ValueError, match=f"^validate: {message}$"):
        validate(dataclasses.replace(QUICK, **wrong))


def test_trivial_accuracies_by_hand():
    train, test = np.array([0, 1, 2, 3]), np.array([4, 5, 6])
    points = np.array([[0.0], [1.0], [5.0], [6.0], [0.2], [4.0], [5.4]])
    data = dataclasses.replace(
        digits(), features=points, labels=np.array([7, 7, 7, 3, 7, 3, 7]), train=train, test=test
    )
    assert majority_accuracy(data) == pytest.approx(2 / 3)
    assert neighbour_accuracy(data) == pytest.approx(2 / 3)


def _install(monkeypatch, name: str, change):
    """A fast path for this platform that is the reference, changed."""
    kernel = getattr(fused_mlp, name)
    platform = dispatch.current_platform()
    run = kernel.implementations["xla"].runs[platform]
    fast = dispatch.Implementation({platform: lambda *a, **options: change(run(*a, **options))})
    monkeypatch.setitem(kernel.implementations, "ffi", fast)
    monkeypatch.setitem(kernel.preference, platform, ("ffi", "xla"))


def test_validate_fails_if_a_fast_path_is_wrong(monkeypatch, capsys):
    _install(monkeypatch, "FUSED_MLP", lambda y: y + 1e-3)
    with pytest.raises(ops.VerificationError, match=r"the largest difference, 1\.0e-03, is more"):
        validate(QUICK)
    assert "max abs diff: 1.0e-03" in capsys.readouterr().out


@pytest.mark.again("test_validate_fails_if_a_fast_path_is_wrong")
def test_validate_fails_in_the_strict_mode_if_a_small_gradient_is_wrong(monkeypatch, capsys):
    change = 1 + 5e-5  # of gradients that are less than a tenth
    _install(monkeypatch, "FUSED_MLP", lambda y: y)
    _install(monkeypatch, "BACKWARD", lambda g: jax.tree.map(lambda array: change * array, g))
    with pytest.raises(ops.VerificationError, match=r"STRICT: .*fused_mlp.backward\[ffi\]"):
        validate(QUICK)


@pytest.mark.again("test_validate_passes_and_prints_the_differences")
def test_validate_says_whether_the_strict_mode_compared_anything(monkeypatch, capsys):
    _install(monkeypatch, "FUSED_MLP", lambda y: y)
    validate(QUICK)
    assert "STRICT, fused_mlp: agrees with its reference" in capsys.readouterr().out


# -- command line ------------------------------------------------------------------------------


def test_the_command_line_validates(monkeypatch, capsys):
    arguments = ["mlp", "validate", "--steps", "2", "--no-progress"]
    monkeypatch.setattr(sys, "argv", arguments)
    command_line.main()
    assert "max abs diff: " in capsys.readouterr().out


def test_the_command_line_fails_with_one_line(monkeypatch):
    arguments = ["mlp", "validate", "--tolerance", "1e-9", "--steps", "2", "--no-progress"]
    monkeypatch.setattr(sys, "argv", arguments)
    # Python prints such a code on stderr, and exits with 1.
    with pytest.raises(SystemExit, match=r"^error: validate: the largest difference, "):
        command_line.main()
