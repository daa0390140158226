"""Settings for the tests of this folder."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope="session")
def compilation_cache_folder(tmp_path_factory):
    """Where JAX may keep compiled programs while these tests run."""
    return tmp_path_factory.mktemp("compilation_cache")


@pytest.fixture(autouse=True, scope="package")
def share_compiled_programs(compilation_cache_folder):
    """Compiles the same small program once instead of in every test: half of their time."""
    settings = {
        "jax_compilation_cache_dir": str(compilation_cache_folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
