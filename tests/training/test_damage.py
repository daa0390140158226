"""Files that are damaged or can not be written: one line, and never other weights."""

import errno
import json
import random
import resource
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jaxgnn.training import LoopConfig, RunFolder, fit, load_model
from jaxgnn.training._checkpoints import array_digests

from .tiny_run import damaged, digest

# Orbax closes its event loop at an error, while TensorStore still reads other arrays for it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = LoopConfig(4, eval_every=2, checkpoint_every=2, select="mse", ema_decay=0.9)


class Weights(nnx.Module):
    """Random numbers, which orbax can not compress: their bytes are in files of their own."""

    def __init__(self, seed: int = 0):
        self.kernel = nnx.Param(jax.random.normal(jax.random.key(seed), (96, 96)))
        self.half = nnx.Param(jnp.linspace(0, 1, 50, dtype=jnp.bfloat16))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(1))


def _train(folder: Path, config: LoopConfig = CONFIG, **options: Any):
    run = RunFolder(folder, config, may_change=["steps", "checkpoint_every"])
    batches = options.pop("batches", lambda step: jnp.float32(step))

    def loss(model, batch, rngs):
        return (model.kernel[...] ** 2).mean() + (model.half[...] ** 2).mean().astype("f4"), {}

    options = {"evaluate": lambda model: {"mse": 1.0}, "progress": False} | options
    try:
        return fit(Weights(), optax.adam(0.1), loss, batches, config=config, run=run, **options)
    finally:
        run.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    return _train(folder), folder


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_checkpoint_is_refused_or_has_the_same_bits(trained, seed):
    result, folder = trained
    newest = folder / "checkpoints" / "4"
    right = {
        "last": digest(result.model),
        "best": digest(result.best_model),
        "average": digest(result.averaged_model),
    }
    files = sorted(file for file in newest.rglob("*") if file.is_file())
    largest = sorted(files, key=lambda file: file.stat().st_size)[-6:]
    draw, refused = random.Random(seed), 0
    for number in range(16):
        which = draw.choice(sorted(right))
        file = draw.choice(largest if number % 2 else files)
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, draw))
        try:
            loaded = load_model(folder, Weights(3), which=which)
        except ValueError as error:
            assert f"checkpoint {newest} cannot be read" in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert digest(loaded) == right[which], file
        finally:
            file.write_bytes(whole)
    assert refused


def test_a_number_that_was_changed_is_named_by_its_array_also_at_a_resume(trained, tmp_path):
    folder = tmp_path / "run"
    _train(folder)
    newest = folder / "checkpoints" / "4"
    info = newest / "info" / "metadata"
    content = json.loads(info.read_text())

    def damage(item, name):
        # As if a byte of the array had changed: its own checksum is right, and it decodes.
        changed = json.loads(info.read_text())
        changed["digests"][item][name] = "0" * 64
        del changed["sha256"]
        from jaxgnn.training._checkpoints import json_digest

        info.write_text(json.dumps({**changed, "sha256": json_digest(changed)}))

    damage("model", "params.kernel")
    message = r"checkpoint .*/4 cannot be read \(model\): params.kernel is not what was saved"
    advice = "; remove it to resume from step 2"
    with pytest.raises(ValueError, match=f"{message}.*{advice}$"):
        load_model(folder, Weights())
    assert load_model(folder, Weights(), which="best") is not None  # another item
    with pytest.raises(ValueError, match=message):
        _train(folder)
    info.write_text(json.dumps(content))
    damage("optimizer", "0.0.mu.half")
    with pytest.raises(ValueError, match=r"cannot be read \(optimizer\): 0.0.mu.half is not"):
        _train(folder)
    for file in sorted(newest.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    newest.rmdir()
    assert digest(_train(folder).model) == digest(trained[0].model)


@pytest.mark.parametrize("change", ["value", "names", "digest"])
def test_the_values_of_a_checkpoint_have_a_digest_too(trained, change):
    _, folder = trained
    info = folder / "checkpoints" / "4" / "info" / "metadata"
    text = info.read_text()
    content = json.loads(text)
    if change == "value":
        content["info"]["best"]["step"] = 3
    elif change == "names":
        content["digest"] = content.pop("digests")
    else:
        del content["sha256"]
    try:
        info.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"checkpoints/4 cannot be read \(info\): expected"):
            load_model(folder, Weights())
    finally:
        info.write_text(text)


def test_a_checkpoint_of_an_earlier_version_is_read_with_one_warning(tmp_path):
    expected = _train(tmp_path / "run")
    for step in (2, 4):
        info = tmp_path / "run" / "checkpoints" / str(step) / "info" / "metadata"
        content = json.loads(info.read_text())
        info.write_text(json.dumps({name: content[name] for name in ("types", "info")}))
    for read in (
        lambda: load_model(tmp_path / "run", Weights()),
        lambda: _train(tmp_path / "run").model,
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = read()
        assert digest(model) == digest(expected.model)
        (warning,) = caught
        assert "checkpoints/4 was written by a version without checksums" in str(warning.message)


def test_digests_are_of_the_values_and_not_of_their_places():
    mesh = jax.make_mesh((len(jax.devices()),), ("a",))
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    values = jnp.arange(8.0)
    arrays = {"one": values, "two": jax.device_put(values, divided), "other": -values}
    arrays |= {"key": jax.random.key(0), "bits": jnp.ones(8, bool), "empty": jnp.ones((0, 3))}
    digests = array_digests(arrays)
    assert digests["one"] == digests["two"] != digests["other"]
    assert array_digests({"key": jax.random.key(1)})["key"] != digests["key"]
    assert jnp.array_equal(-jnp.zeros(1), jnp.zeros(1))  # but their bits differ
    assert array_digests({"a": -jnp.zeros(1)}) != array_digests({"a": jnp.zeros(1)})


def test_a_full_disk_is_one_line_and_what_was_written_before_is_kept(tmp_path, trained):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def batches(step):
        if step == 4:  # files of more than 20 kB can not be written from here on
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        return jnp.float32(step)

    try:
        with pytest.raises(OSError, match=r"^fit: checkpoint .*/4 can not be written: ") as error:
            _train(tmp_path / "run", batches=batches)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = str(error.value)
    assert message.endswith(f"File too large; last checkpoint: {tmp_path}/run/checkpoints/2")
    assert "\n" not in message and error.value.errno == errno.EFBIG
    assert error.value.__cause__ is None and error.value.__suppress_context__
    assert digest(_train(tmp_path / "run").model) == digest(trained[0].model)


def test_a_log_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    def batches(step):
        if step == 4:
            (tmp_path / "run" / "metrics.jsonl").unlink()
            (tmp_path / "run" / "metrics.jsonl").mkdir()
        return jnp.float32(step)

    with pytest.raises(OSError, match=r"^fit: .*metrics.jsonl'; last checkpoint: .*/2$"):
        _train(tmp_path / "run", batches=batches)
