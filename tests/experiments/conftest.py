"""Settings for the tests of this folder."""

import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests._settings import COMPILED_QUICKLY, jax_settings


@pytest.fixture(scope="module")
def share_compiled_programs(tmp_path_factory):
    """Compiles a program that several tests run once, and quickly: most of their time."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compilation_cache")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    with jax_settings(settings | COMPILED_QUICKLY):
        compilation_cache.reset_cache()
        yield
    compilation_cache.reset_cache()
