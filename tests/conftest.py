"""Settings for every test."""

import jax
import pytest

# Four devices, so that shard_map has something to shard over; only before JAX starts.
jax.config.update("jax_num_cpu_devices", 4)
# A GPU would multiply float32 matrices in TF32.
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_addoption(parser):
    parser.addoption(
        "--first-cases",
        action="store_true",
        help="of a test with parameters only the first case, unless it says that something lowers",
    )


@pytest.hookimpl(trylast=True)  # behind -m
def pytest_collection_modifyitems(config, items):
    if not config.getoption("--first-cases"):
        return
    seen, kept, dropped = set(), [], []
    for item in items:
        test, *_ = item.nodeid.split("[")
        # What a release of JAX lowers to, or refuses, differs from case to case.
        is_kept = test not in seen or "lower" in test
        (kept if is_kept else dropped).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=dropped)
    items[:] = kept
