"""JAX settings that hold for some of the tests."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

# LLVM's optimisations take longer than small programs run. What XLA does to a program before them,
# fusion for one, is as ever.
COMPILED_QUICKLY = {"jax_disable_most_optimizations": True}


@contextlib.contextmanager
def jax_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Runs a block with other settings."""
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
