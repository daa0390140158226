"""Command lines of experiments are read and checked before JAX is imported."""

import errno
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest

from experiments._command import one_line_errors
from experiments.hgnn.config import NodesConfig
from experiments.mlp.config import BenchConfig
from experiments.physics.config import TrainConfig
from jaxgnn import datasets, models, ops

# Command lines of each experiment, each with an error or asking for help.
WRONG = {
    "experiments": ("report nowhere", "report --out x", "report --help"),
    "experiments.maxk": (
        "train --epocks 3",
        "nonsense",
        "train --epochs 0",
        "train --dataset nowhere",
        "train --dataset flickr",
        "compare --seeds -1",
        "compare --epochs 0",
        "sweep --ks 4 4",
        "sweep --ks x",
        "predict",
        "train --process-id 3",
        "train --help",
    ),
    "experiments.attention": (
        "train --model gcn",
        "compare --seeds 1 1",
        "compare --models gat gat",
        "compare --dataset nowhere",
    ),
    "experiments.links": ("train --k 200 --activation maxk", "train --dataset digits --labels x"),
    "experiments.relations": ("train --papers 10", "train --sample 0", "train --layer gcn"),
    "experiments.graphs": (
        "train --dropout 1",
        "compare --readout median",
        "compare --models gin --dropout 1",
        "compare --processes 0",
    ),
    "experiments.physics": (
        "train --steps 0",
        "train --system planets",
        "train --system charges --particles 4",
        "train --seeds 1 1",
        "rollout --run nowhere",
        "draw --frames 1",
    ),
    "experiments.molecules": (
        "train --steps 0",
        "train --model gin",
        "train --data a.cif",
        "train --seeds 1 1",
    ),
    "experiments.mhc": ("train --steps 0", "compare --steps 0", "deep --depths 2 2"),
    "experiments.hgnn": ("lm --experts 0", "nodes --model gcn", "nodes --epochs 0"),
    "experiments.mlp": (
        "bench --networks 10",
        "validate --steps 0",
        "fuse --nodes 1",
        "fuse --search x",
    ),
    "experiments.sudoku": (
        "generate --train 0",
        "train --fewest 81",
        "evaluate --attempts 0",
        "solve 12",
        "solve . --steps 0",
        "export",
        "cost --repeats 0",
        "--help",
    ),
}


def test_errors_and_help_do_not_wait_for_jax():
    lines = {name: [line.split() for line in lines] for name, lines in WRONG.items()}
    code = (
        "import contextlib, importlib, io, sys\n"
        f"for name, lines in {lines}.items():\n"
        "    main = importlib.import_module(f'{name}.__main__').main\n"
        "    for line in [[], *lines]:\n"
        "        sys.argv = [name, *line]\n"
        "        try:\n"
        "            with contextlib.redirect_stdout(io.StringIO()):\n"
        "                main()\n"
        "        except SystemExit as end:\n"
        "            assert bool(end.code) is ('--help' not in line), (line, end)\n"
        "        else:\n"
        "            raise AssertionError(line)\n"
        "        late = {'jax', 'flax', 'optax', 'scipy'} & sys.modules.keys()\n"
        "        assert not late, (name, line, late)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("options", "field", "of_library"),
    [
        (TrainConfig, "system", datasets.ParticleSystem),
        (NodesConfig, "model", models.HypergraphKind),
        (BenchConfig, "implementation", ops.Name | None),
    ],
)
def test_choices_that_are_listed_again_are_those_of_the_library(options, field, of_library):
    assert get_args(get_type_hints(options)[field]) == get_args(of_library)


@pytest.mark.parametrize(
    "error, status, message",
    [
        (ValueError("train: --k must be 1"), "error: train: --k must be 1", ""),
        (OSError(errno.ENOSPC, "No space left", "a"), "error: [Errno 28] No space left: 'a'", ""),
        (FileNotFoundError("no file a"), "error: no file a", ""),
        (PermissionError(errno.EACCES, "Permission denied", "a"), "error: [Errno 13] Per", ""),
        (NotImplementedError("no kernel"), "error: no kernel", ""),
        (FloatingPointError("fit: the loss is nan"), "error: fit: the loss is nan", ""),
        (KeyboardInterrupt(), 130, "interrupted; files that were written before are kept\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_expected_end_is_one_line(error, status, message, capsys):
    with pytest.raises(SystemExit) as end, one_line_errors():
        raise error
    code = end.value.code
    assert code == status or str(code).startswith(str(status))
    assert capsys.readouterr().err == message


def test_a_fault_of_the_code_keeps_its_traceback():
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("a")
