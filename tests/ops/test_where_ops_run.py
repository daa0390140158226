"""The page of installation says where each op runs how; every op can be lowered for a TPU.

``python -m tests.ops.test_where_ops_run`` writes the table of the page.
"""

import sys
from pathlib import Path

import jax
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.registry import OPS
from pallas_kernels import chip, simt, tensor_cores
from pallas_kernels.chip import Chip
from tests.ops._calls import COUPLED, EAGER, HARMONICS, OF_PATHS, ON_A_GPU, RING, _random

PAGE = Path(__file__).parent.parent.parent / "docs" / "start" / "install.md"
BEGIN, END = (
    "<!-- ops by device: python -m tests.ops.test_where_ops_run writes them -->\n",
    "<!-- ops by device end -->\n",
)
GPUS = {
    "A100, L4, RTX 4090": ("A100", "RTX4090"),
    "H100, H200": ("H100", "H200"),
    "B200, RTX 5090": ("B200", "RTX5090"),
}
CALLS = ON_A_GPU | {
    "tensor_product_sum": lambda ops: COUPLED(RING, _random(4, 6), HARMONICS[:4], OF_PATHS[:4])
}
PLAIN = "plain JAX"


class _Launched(Exception):
    """A Pallas kernel is reached."""


def _runs(name: str, implementation: dispatch.Name) -> bool:
    """Whether an implementation of an op runs on the GPU of the patches."""

    def call(call):
        return call(ops)

    try:
        with jaxgnn.default_implementation(implementation):
            jax.jit(call, static_argnums=0).trace(CALLS[name])
    except NotImplementedError:
        return False
    except _Launched:
        return True
    return True


def _on(name: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """How an op runs on a GPU: the kinds of its kernels, or plain JAX."""

    def launch(*args, **options):
        raise _Launched

    with monkeypatch.context() as patch:
        patch.setattr(chip, "_current", lambda: Chip.named(gpu))
        patch.setattr(dispatch, "current_platform", lambda: "cuda")
        patch.setattr(simt, "launch", launch)
        patch.setattr(tensor_cores, "launch", launch)
        dispatch.no_mosaic_gpu.cache_clear()
        kinds = {"Pallas": _runs(name, "pallas"), "CUDA": _runs(name, "ffi")}
    dispatch.no_mosaic_gpu.cache_clear()
    return ", ".join(kind for kind, runs in kinds.items() if runs) or PLAIN


def _table(monkeypatch: pytest.MonkeyPatch) -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    for op in OPS:
        has_cpu = "cpu" in op.native or op.native_of is not None
        cells = ["C++" if has_cpu else PLAIN]
        for chips in GPUS.values():
            kinds = {_on(op.name, gpu, monkeypatch) if op.name in CALLS else PLAIN for gpu in chips}
            (kind,) = kinds  # The GPUs of a column are alike.
            cells.append(kind)
        rows.setdefault((*cells, PLAIN), []).append(f"`{op.name}`")
    header = ["op", "CPU", *GPUS, "TPU"]
    lines = [header, ["---"] * len(header), *([", ".join(names), *c] for c, names in rows.items())]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def test_the_page_of_installation_says_where_each_op_runs(monkeypatch):
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == _table(monkeypatch)


@pytest.mark.lowers
@pytest.mark.costly(4)
@pytest.mark.parametrize("name", EAGER)
def test_every_op_is_plain_jax_on_a_tpu(name):
    for run, arrays in EAGER[name].values():
        exported = jax.export.export(jax.jit(lambda a, run=run: run(a, None)), platforms=["tpu"])
        module = exported(arrays).mlir_module()
        assert "custom_call @jaxgnn" not in module and "mosaic" not in module


if __name__ == "__main__":
    head, _, rest = PAGE.read_text().partition(BEGIN)
    with pytest.MonkeyPatch.context() as patches:
        PAGE.write_text(head + BEGIN + _table(patches) + END + rest.partition(END)[2])
    sys.exit()
