"""Command line: ``python -m experiments.mlp bench|validate|fuse``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments.mlp.config import BenchConfig, FuseConfig, ValidateConfig


def bench(config: Annotated[BenchConfig, tyro.conf.arg(name="")]) -> None:
    """Time nine networks against plain JAX and torch, and draw the speed-ups."""
    config.check()
    from experiments.mlp.bench import bench as run_bench

    run_bench(config)


def validate(config: Annotated[ValidateConfig, tyro.conf.arg(name="")]) -> None:
    """Train a network on the digits and compare its fused layers with plain ones."""
    config.check()
    from experiments.mlp.validate import validate as run_validate

    run_validate(config)


def fuse(config: Annotated[FuseConfig, tyro.conf.arg(name="")]) -> None:
    """Rewrite networks of plain JAX by jaxgnn.fuse, and write a table and a page for each."""
    config.check()
    from experiments.mlp.fuse import explain_models

    explain_models(config)


def main() -> None:
    """Runs a command; an invalid option or a too large difference ends it with a one-line error."""
    run_commands("experiments.mlp", bench, validate, fuse)


if __name__ == "__main__":
    main()
