"""jraph's own tests of segments and of models, through ``jaxgnn.interop`` or of jraph itself.

``python -m tests.interop.jraphs_own`` runs them both ways on the default device, and prints which
of them fail. Some compare float32 to 1e-7, relative, which may be less than one unit in the last
place.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from pathlib import Path
from typing import Literal, get_args

import jax
import jraph

Whose = Literal["jaxgnn", "jraph"]
"""Whose functions are tested."""

# The others are of batches and padding, in which nothing is ours.
FILES: dict[str, list[str] | None] = {
    "utils_test": ["*segment*", "*softmax*"],
    "models_test": None,
}

_FOLDER = Path(str(sys.modules[jraph.segment_sum.__module__].__file__)).parent


def why_missing() -> str | None:
    """What these tests lack here, or None."""
    if importlib.util.find_spec("absl") is None:
        return "needs absl-py"
    if not all((_FOLDER / f"{name}.py").exists() for name in FILES):
        return "needs the tests that wheels of jraph contain"
    return None


def failures(name: str, whose: Whose) -> dict[str, str]:
    """The tests of a file that fail, by name, and the last line of what each says.

    Args:
      name: one of ``FILES``.
      whose: whose functions are tested.
    """
    source = (_FOLDER / f"{name}.py").read_text()
    # JAX has no such module any more; none of these tests uses it.
    source = source.replace("from jax.lib import xla_bridge\n", "")
    if whose == "jaxgnn":
        for module in ("utils", "models", "graph"):
            source = source.replace(
                f"from jraph._src import {module}\n",
                f"from jaxgnn.interop import jraph as {module}\n",
            )
    module = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    loader = unittest.TestLoader()
    loader.testNamePatterns = FILES[name]
    result = unittest.TestResult()
    with jax.numpy_dtype_promotion("standard"):
        loader.loadTestsFromModule(module).run(result)
    if result.testsRun <= 5 or result.skipped:
        raise RuntimeError(f"{name}: {result.testsRun} tests ran, {len(result.skipped)} skipped")
    return {
        test.id().partition(".")[2]: text.strip().splitlines()[-1]
        for test, text in (*result.failures, *result.errors)
    }


def main() -> None:
    """Prints, for each file, which tests fail through which functions."""
    jax.config.update("jax_default_matmul_precision", "highest")
    reason = why_missing()
    if reason is not None:
        raise SystemExit(f"jraphs_own {reason}")
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    for name in FILES:
        failed = {whose: failures(name, whose) for whose in get_args(Whose)}
        print(f"{name}: " + ", ".join(f"{len(failed[whose])} fail of {whose}" for whose in failed))
        for test in sorted({test for tests in failed.values() for test in tests}):
            print(f"  {test}: " + ", ".join(whose for whose in failed if test in failed[whose]))


if __name__ == "__main__":
    main()
