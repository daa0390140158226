"""Programs of GPU kernels are exported once, shared by equal calls, and read from the disk."""

import contextlib
import functools
import os

import jax
import jax.numpy as jnp
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.ops.core import dispatch, kernel_programs
from tests.ops._calls import CYCLES

X = jax.ShapeDtypeStruct((CYCLES.num_edges, 4), jnp.float32)


@pytest.fixture
def exports(monkeypatch):
    """The programs that are exported, as on a GPU; none of them is compiled."""
    made, export = [], kernel_programs._export

    def count(jaxpr):
        made.append(export(jaxpr))
        return made[-1]

    monkeypatch.setattr(kernel_programs, "_kept", {})
    monkeypatch.setattr(kernel_programs, "_export", count)
    monkeypatch.setattr(kernel_programs, "_compile_in_background", lambda program: None)
    monkeypatch.setattr(kernel_programs, "are_used", lambda jaxpr: True)
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    return made


def _softmaxes(times):
    def run(x):
        for _ in range(times):
            x = ops.segment_softmax(CYCLES, x)
        return x

    return run


def _lowered(run, *args):
    return jax.jit(run).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.lowers
def test_equal_calls_share_a_program_and_other_shapes_have_their_own(exports):
    text = _lowered(_softmaxes(3), X)
    assert len(exports) == 1
    assert text.count("call @call_exported_kernels") == 3
    _lowered(_softmaxes(1), X)
    assert len(exports) == 1
    _lowered(jax.vmap(_softmaxes(1)), jax.ShapeDtypeStruct((2, *X.shape), X.dtype))
    assert len(exports) == 2
    _lowered(jax.grad(lambda x: jnp.sum(_softmaxes(1)(x) ** 2)), X)
    assert len(exports) == 3


@pytest.mark.lowers
def test_another_process_reads_the_program_and_lowers_the_same_text(exports, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_programs, "_path", tmp_path.joinpath)
    first = _lowered(_softmaxes(2), X)
    (file,) = tmp_path.iterdir()
    for data, expected in ((file.read_bytes(), 1), (file.read_bytes()[:-9], 2), (b"", 3)):
        file.write_bytes(data)  # whole, shortened, empty
        kernel_programs._kept.clear()
        assert _lowered(_softmaxes(2), X) == first
        assert len(exports) == expected
    assert os.listdir(tmp_path) == [file.name]


def test_a_disk_that_can_not_be_written_is_no_error(exports, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernel_programs, "_path", (tmp_path / "file").joinpath)
    assert "call_exported_kernels" in _lowered(_softmaxes(1), X)


def test_static_arguments_are_part_of_what_a_program_is_found_by(exports):
    for reduce in ("max", "min", "max"):
        _lowered(lambda x, reduce=reduce: ops.aggregate(CYCLES, x, reduce), X)
    assert len(exports) == 2


@pytest.mark.parametrize(
    "setting",
    [jaxgnn.deterministic(), jax.default_matmul_precision("tensorfloat32"), jax.enable_x64(True)],
    ids=["deterministic", "precision", "x64"],
)
def test_settings_that_kernels_read_are_part_of_what_a_program_is_found_by(setting, exports):
    _lowered(_softmaxes(1), X)
    with setting:
        _lowered(_softmaxes(1), X)
    assert len(exports) == 2


def test_programs_are_kept_on_a_local_disk_where_jax_keeps_its_own(tmp_path):
    assert kernel_programs._path("key") is None
    with jax_settings(jax_compilation_cache_dir=str(tmp_path)):
        assert kernel_programs._path("key") == tmp_path / "jaxgnn-kernels" / "key"
        with jax_settings(jax_enable_compilation_cache=False):
            assert kernel_programs._path("key") is None
    with jax_settings(jax_compilation_cache_dir="gs://bucket"):
        assert kernel_programs._path("key") is None


@contextlib.contextmanager
def jax_settings(**settings):
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def _identity(function, *static):
    return kernel_programs.identity_of(function, *static)


def test_a_function_without_a_name_of_its_own_has_no_identity():
    def closure():
        return exports

    named = [jnp.sin, functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=1)]
    assert len({_identity(function, 1) for function in named} - {None}) == 3
    assert _identity(jnp.sin, 1) != _identity(jnp.sin, 2)
    assert [_identity(f) for f in (closure, lambda x: x)] == [None, None]
    assert _identity(jnp.sin, object()) is None


def test_programs_are_exported_on_a_gpu_alone_and_on_no_mesh(monkeypatch):
    jaxpr = jax.make_jaxpr(jnp.sin)(1.0)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert not kernel_programs.are_used(jaxpr)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert kernel_programs.are_used(jaxpr)
    assert not kernel_programs.are_used(jax.make_jaxpr(lambda: CYCLES.indptr + 1)())

    def inside(x):
        assert not kernel_programs.are_used(jax.make_jaxpr(jnp.sin)(x))
        return x

    mesh = jax.make_mesh((1,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("a")
    jax.shard_map(inside, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones(2))
    monkeypatch.setenv("JAXGNN_KERNEL_PROGRAMS", "0")
    assert not kernel_programs.are_used(jaxpr)
