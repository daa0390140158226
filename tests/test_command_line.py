"""The command: where its input comes from, and what it says where its output can not go."""

import errno
import io
import os
import re
import subprocess
import sys

import jax
import pytest

import jaxgnn
from jaxgnn import _command_line, _info
from jaxgnn.datasets import sudoku
from jaxgnn.ops.core.registry import OPS
from jaxgnn.pretrained import SudokuAnswer, _sudoku

SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
ANSWER = f"{sudoku.to_grid(sudoku.parse(SOLUTION))}\nsolved at step 1 (0 restarts, 0.50 s)\n"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Boards are given back: a network is no part of what is tested here."""

    class Solver:
        def solve(self, puzzle, effort):
            board = sudoku.load(puzzle) if isinstance(puzzle, str) else puzzle
            return SudokuAnswer(board, board, True, 1, 0, 0.5, ())

    monkeypatch.setattr("jaxgnn.pretrained.sudoku_solver", lambda weights: Solver())


def run(*arguments):
    """Runs the command and returns the status or the message with which it exits."""
    with pytest.raises(SystemExit) as end:
        _command_line.main(arguments)
    return end.value.code


def test_a_board_is_read_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(sudoku.to_grid(sudoku.parse(SOLUTION))))
    _command_line.main(["sudoku", "-"])
    assert capsys.readouterr().out == ANSWER
    monkeypatch.setattr("sys.stdin", io.StringIO(SOLUTION[1:]))
    assert run("sudoku", "-").startswith("jaxgnn sudoku: standard input must be ")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8"))
    assert run("sudoku", "-").startswith("jaxgnn sudoku: standard input must be ")
    monkeypatch.setattr("sys.stdin", None)
    assert "must be 81 cells, got 0" in run("sudoku", "-")


def test_a_board_is_read_from_a_pipe_and_no_device_is_read_without_end(capsys):
    reading, writing = os.pipe()
    os.write(writing, SOLUTION.encode())
    os.close(writing)
    _command_line.main(["sudoku", f"/dev/fd/{reading}"])
    os.close(reading)
    assert capsys.readouterr().out == ANSWER
    assert run("sudoku", "/dev/zero").startswith("jaxgnn sudoku: puzzle /dev/zero must be ")


def test_steps_are_digits(capsys):
    assert run("sudoku", SOLUTION, "--steps", "1_0") == 2
    assert "--steps: expected a whole number, got '1_0'" in capsys.readouterr().err
    assert run("sudoku", SOLUTION, "--steps", "0") == (
        "jaxgnn sudoku: --steps must be at least 1, got 0"
    )


BAD = {
    "letters": (["12x"], "puzzle must be digits, '.' or '0', got 'x' at cell 3"),
    "no file": (["none.txt"], "puzzle must be digits, .*no file has that name"),
    "length": ([SOLUTION[1:]], "puzzle must be 81 cells, got 80"),
    "conflict": (["55" + 79 * "."], "puzzle must obey the rules, but 5 stands twice in row 1, at"),
    "weights": ([SOLUTION, "--weights", "none"], "--weights must be a file that exists, got none"),
    "steps": ([SOLUTION, "--steps", "-3"], "--steps must be at least 1, got -3"),
    "bytes": (["1\udcff"], "puzzle must be digits, .* got '.udcff' at cell 2"),
    "two solutions": ([81 * "."], "puzzle must have exactly one solution, but it has more than"),
    "no solution": (
        ["12345678." + 8 * "." + "9" + 63 * "."],
        "puzzle must have exactly one solution, but it has no solution",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_an_error_names_the_command_and_what_was_typed(name):
    arguments, message = BAD[name]
    assert re.match(f"jaxgnn sudoku: {message}", run("sudoku", *arguments))


def test_errors_of_the_command_line_do_not_wait_for_jax():
    code = (
        "import sys\n"
        "from jaxgnn import _command_line\n"
        "for arguments in [['12'], ['55' + 79 * '.'], [81 * '.', '--steps', '0'], ['-'], ['/none'],"
        " [81 * '.', '--weights', '/none'], ['--steps', 'x', '.'], ['--help']]:\n"
        "    try:\n"
        "        _command_line.main(['sudoku', *arguments])\n"
        "    except SystemExit as end:\n"
        "        assert bool(end.code) is (arguments != ['--help']), arguments\n"
        "assert 'jax' not in sys.modules and 'flax' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_info_says_in_five_lines_what_runs_here_and_what_to_install(capsys, monkeypatch):
    _command_line.main(["info"])
    versions, devices, kernels, plain, install = capsys.readouterr().out.splitlines()
    assert versions.startswith(f"jaxgnn {jaxgnn.__version__}, Python") and "jaxlib" in versions
    assert devices == f"devices: {jax.device_count()} x cpu (cpu)"
    fast, slow = re.findall(r"\w+", kernels), re.findall(r"\w+", plain)
    assert all((op.name in fast) != (op.name in slow) for op in OPS)
    assert {"spmm", "hypergraph_conv"} <= set(fast) and "fused_mlp" in slow
    assert "(kernels for NVIDIA GPUs)" in plain and install == "to install: nothing"
    monkeypatch.setattr(_info._ffi, "library_path", lambda platform: None)
    assert _info.summary().endswith("C++ compiler, then jaxgnn again without JAXGNN_PURE_PYTHON")


def test_info_names_a_gpu_that_jax_does_not_use(monkeypatch, tmp_path):
    monkeypatch.setattr(_info, "_DRIVER", tmp_path)
    assert "cuda13" not in _info.summary()
    (tmp_path / "0000:01:00.0").mkdir()
    assert "to install: 'jaxgnn[cuda13]', because JAX" in _info.summary()


def test_experiments_run_from_any_folder(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    _command_line.main(["experiments", "maxk", "train", "--help"])
    assert "usage: python -m experiments.maxk train" in capfd.readouterr().out
    assert run("experiments", "nonesuch") == 2
    monkeypatch.setattr(_command_line, "_folder_of_experiments", lambda: None)
    assert "has no experiments" in run("experiments", "maxk")


class Unwritable(io.StringIO):
    """Takes text, but can not write it."""

    def __init__(self, code):
        super().__init__()
        self._code = code

    def flush(self):
        if self.getvalue():
            raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize("arguments", [("sudoku", SOLUTION), ("info",), ("--help",)], ids=str)
def test_output_that_can_not_be_written_ends_the_command_with_a_line(arguments, monkeypatch):
    monkeypatch.setattr("sys.stdout", Unwritable(errno.ENOSPC))
    assert run(*arguments) == "jaxgnn: standard output: No space left on device"
    monkeypatch.setattr("sys.stdout", Unwritable(errno.EPIPE))
    assert run(*arguments) == 1
    monkeypatch.setattr("sys.stdout", None)
    assert arguments == ("--help",) or _command_line.main(arguments) is None


def test_a_process_says_no_more_where_its_output_has_no_place():
    command = [sys.executable, "-m", "jaxgnn", "info"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTHONUNBUFFERED", None)
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "w") as full:
        expected = {
            writing: "",
            full.fileno(): "jaxgnn: standard output: No space left on device\n",
        }
        processes = {
            output: subprocess.Popen(
                command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment
            )
            for output in expected
        }
        os.close(writing)
        for output, process in processes.items():
            _, complaint = process.communicate(timeout=120)
            assert (process.returncode, complaint) == (1, expected[output])


def test_ctrl_c_ends_the_command_with_a_line(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(_command_line, "_run", interrupted)
    assert run("info") == 130
    assert capsys.readouterr().err == "jaxgnn: interrupted\n"


def test_ctrl_c_waits_for_the_end_of_an_experiment(monkeypatch):
    class Process:
        ends = iter([KeyboardInterrupt, KeyboardInterrupt, 130])

        def wait(self):
            end = next(self.ends)
            if end is KeyboardInterrupt:
                raise end
            return end

    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: Process())
    assert run("experiments", "maxk", "train") == 130
    Process.ends = iter([-15])  # killed by SIGTERM
    assert run("experiments", "maxk", "train") == 143


def test_weights_that_are_none_are_named_without_a_hint_to_load_them_unsafely(
    monkeypatch, tmp_path
):
    monkeypatch.setattr("jaxgnn.pretrained.sudoku_solver", _sudoku.sudoku_solver)
    for content in (b"junk", b"PK\3\4junk", b"\x93NUMPY\1\0junk", b"\x80\4]."):
        (tmp_path / "junk.npz").write_bytes(content)
        message = run("sudoku", SOLUTION, "--weights", str(tmp_path / "junk.npz"))
        assert message.startswith(f"jaxgnn sudoku: {tmp_path / 'junk.npz'}: expected an .npz file")
        assert "pickle" not in message
