"""Resuming inside one process: exact at every cut, and refused where it cannot be exact."""

import dataclasses
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxgnn.training import LoopConfig, RunFolder, fit, load_model, read_rows

from .tiny_run import LOOP, Classifier, Config, digest, train


class Cut(Exception):
    """Stands for whatever ended the process."""


def cut_before(last: int):
    def before_step(step: int) -> None:
        if step == last:
            raise Cut

    return before_step


def interrupted(folder, step: int) -> RunFolder:
    """A folder whose run ended before `step`."""
    run = RunFolder(folder, Config())
    with pytest.raises(Cut):
        train(run, Config(), before_step=cut_before(step))
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result and the folder of a run that was left alone."""
    run = RunFolder(tmp_path_factory.mktemp("whole") / "run", Config())
    return train(run, Config()), run


# Checkpoints come after steps 6, 12 and 18, evaluations after 4, 8, 12, 16 and 18: before the
# first checkpoint, right after one, between both, and before the last step.
@pytest.mark.costly
@pytest.mark.parametrize("cuts", [[2], [7], [4, 10, 18]], ids=str)
def test_resumed_run_equals_the_whole_one_bit_for_bit(tmp_path, whole, cuts):
    for step in cuts:
        interrupted(tmp_path / "run", step)
    run = RunFolder(tmp_path / "run", Config())
    result = train(run, Config())
    expected, whole_run = whole
    assert digest(result.model) == digest(expected.model)
    assert digest(result.best_model) == digest(expected.best_model)
    assert result.best == expected.best
    assert result.history == expected.history
    assert run.metrics_path.read_bytes() == whole_run.metrics_path.read_bytes()


def test_a_finished_run_returns_its_result_without_a_step(whole):
    expected, run = whole
    result = train(RunFolder(run.path, Config()), Config(), before_step=cut_before(1))
    assert digest(result.model) == digest(expected.model)
    assert digest(result.best_model) == digest(expected.best_model)
    assert result.history == expected.history
    assert result.ms_per_step == pytest.approx(expected.ms_per_step)


def test_a_longer_run_goes_on_from_a_finished_one(tmp_path, whole):
    expected, _ = whole
    short = Config(loop=dataclasses.replace(LOOP, steps=12))
    train(RunFolder(tmp_path / "run", short), short)
    run = RunFolder(tmp_path / "run", Config(), may_change=["loop.steps"])
    assert digest(train(run, Config()).model) == digest(expected.model)


def test_half_written_log_and_leftover_temporary_checkpoint_do_no_harm(tmp_path, whole):
    run = interrupted(tmp_path / "run", 15)
    for log in (run.metrics_path, run.timing_path):
        with log.open("a") as file:
            file.write('{"step": 15, "lo')
    leftover = run.checkpoints_path / "18.orbax-checkpoint-tmp"
    shutil.copytree(run.checkpoints_path / "12", leftover)
    train(RunFolder(run.path, Config()), Config())
    assert run.metrics_path.read_bytes() == whole[1].metrics_path.read_bytes()
    assert [row["step"] for row in read_rows(run.timing_path)][-1] == 18
    assert not leftover.exists()


def test_an_old_checkpoint_half_deleted_does_no_harm(tmp_path, whole):
    run = interrupted(tmp_path / "run", 15)
    for file in (run.checkpoints_path / "6").rglob("*"):
        if file.is_file():
            file.unlink()
    result = train(RunFolder(run.path, Config()), Config())
    assert digest(result.model) == digest(whole[0].model)


def test_the_newest_checkpoints_are_kept(whole):
    _, run = whole
    assert sorted(folder.name for folder in run.checkpoints_path.iterdir()) == ["12", "18"]


def test_dropout_after_a_resume_draws_what_it_would_have_drawn(tmp_path):
    def drawn(run, before_step):
        def batches(step):
            before_step(step)
            return ()

        def loss(model, batch, rngs):
            return model.weight[...].sum(), {"drawn": rngs.dropout.uniform()}

        config = LoopConfig(steps=9, checkpoint_every=4)
        result = fit(
            Weight(), optax.sgd(0.1), loss, batches, config=config, run=run, progress=False
        )
        return [row["drawn"] for row in result.history]

    run = RunFolder(tmp_path / "run", Config())
    with pytest.raises(Cut):
        drawn(run, cut_before(7))
    assert drawn(run, cut_before(4)) == drawn(None, cut_before(99))


class Weight(nnx.Module):
    def __init__(self, value=None, extra=None):
        self.weight = nnx.Param(jnp.ones(4) if value is None else value)
        self.extra = nnx.data(extra)


def _fit_weight(model, run, **options: Any):
    defaults: dict[str, Any] = {"config": LoopConfig(steps=4), "progress": False, "run": run}
    return fit(
        model,
        optax.adam(0.1),
        lambda model, batch, rngs: (batch * (model.weight[...].astype(jnp.float32) ** 2).sum(), {}),
        lambda step: jnp.float32(1.0),
        **defaults | options,
    )


def test_restored_arrays_keep_dtype_and_placement(tmp_path):
    mesh = jax.make_mesh((len(jax.devices()),), ("nodes",))
    sharding = NamedSharding(mesh, PartitionSpec("nodes"))
    for name, value in {
        "bfloat16": jnp.ones(4, jnp.bfloat16),
        "sharded": jax.device_put(jnp.ones(4), sharding),
        "free": jnp.ones(4),
    }.items():
        run = RunFolder(tmp_path / name, Config())
        before = _fit_weight(Weight(value), run).model.weight[...]
        after = _fit_weight(Weight(value), run).model.weight[...]
        assert np.array_equal(after, before)
        assert after.dtype == value.dtype
        assert after.sharding == value.sharding
        assert after.committed == value.committed


def test_a_checkpoint_that_does_not_fit_is_refused_by_field(tmp_path, whole):
    _, run = whole
    with pytest.raises(
        ValueError, match=r"18/model does not fit: other\.norm\.mean is float32\[16\] the"
    ):
        train(run, Config(), model=Classifier(8, rngs=nnx.Rngs(0)))

    run = RunFolder(tmp_path / "run", Config())
    _fit_weight(Weight(), run)
    with pytest.raises(ValueError, match=r"params\.weight is float32\[4\] there, expected bfloat"):
        _fit_weight(Weight(jnp.ones(4, jnp.bfloat16)), run)
    other = Weight(extra=nnx.Param(jnp.zeros(2)))
    with pytest.raises(ValueError, match=r"params\.extra is absent there, expected float32\[2\]"):
        _fit_weight(other, run)


def test_what_cannot_be_resumed_is_refused(tmp_path):
    run = RunFolder(tmp_path / "run", Config())
    _fit_weight(Weight(), run)
    with pytest.raises(ValueError, match="already holds a run"):
        _fit_weight(Weight(), run, resume=False)
    with pytest.raises(ValueError, match=r"of step 4, beyond config\.steps = 3"):
        _fit_weight(Weight(), run, config=LoopConfig(steps=3))
    rows = run.metrics_path.read_text().splitlines(keepends=True)
    run.metrics_path.write_text("".join(rows[:2]))
    with pytest.raises(ValueError, match="2 rows up to step 4"):
        _fit_weight(Weight(), run)


def test_a_damaged_checkpoint_is_refused_by_folder(tmp_path):
    run = RunFolder(tmp_path / "run", Config())
    _fit_weight(Weight(), run)
    shutil.rmtree(run.checkpoints_path / "4" / "optimizer")
    with pytest.raises(ValueError, match=r"checkpoint .*checkpoints/4 cannot be read"):
        _fit_weight(Weight(), run)


@pytest.mark.parametrize("content", ["{}", "[]", '{"types": {}}', '{"types": [], "info": {}}'])
def test_a_checkpoint_whose_description_is_another_is_refused(tmp_path, content):
    run = RunFolder(tmp_path / "run", Config())
    _fit_weight(Weight(), run)
    (run.checkpoints_path / "4" / "info" / "metadata").write_text(content)
    with pytest.raises(ValueError, match=r"checkpoints/4 cannot be read \(info\)"):
        _fit_weight(Weight(), run)


def test_load_model_finds_the_last_and_the_best_model(whole):
    result, run = whole
    fresh = Classifier(16, rngs=nnx.Rngs(5))
    before = digest(fresh)
    # As while another process is saving.
    unfinished = run.checkpoints_path / "24.orbax-checkpoint-tmp"
    unfinished.mkdir()
    assert digest(load_model(run.path, fresh)) == digest(result.model)
    assert digest(load_model(run.path, fresh, which="best")) == digest(result.best_model)
    assert digest(load_model(run.path, fresh, step=12)) != digest(result.model)
    assert digest(fresh) == before
    assert unfinished.exists() and (run.checkpoints_path / "12").exists()
    unfinished.rmdir()


def test_load_model_says_what_is_missing(tmp_path, whole):
    _, run = whole
    fresh = Classifier(16, rngs=nnx.Rngs(5))
    with pytest.raises(ValueError, match=r"no checkpoint in .*nowhere"):
        load_model(tmp_path / "nowhere", fresh)
    with pytest.raises(ValueError, match=r"no checkpoint of step 3 .*steps there: \[12, 18\]"):
        load_model(run.path, fresh, step=3)
    with pytest.raises(ValueError, match=r"norm\.mean is float32\[16\]"):
        load_model(run.path, Classifier(8, rngs=nnx.Rngs(5)))
    unselected = RunFolder(tmp_path / "run", Config())
    _fit_weight(Weight(), unselected)
    with pytest.raises(ValueError, match="holds no best model"):
        load_model(unselected.path, Weight(), which="best")


def test_checkpoint_files_hold_no_more_than_json_and_arrays(whole):
    _, run = whole
    info = json.loads((run.checkpoints_path / "18" / "info" / "metadata").read_text())
    assert info["types"]["model"]["params.first.kernel"] == "float32[2, 16]"
