"""Seeds faults, one at a time, in copies of the sources, and checks that the tests find them.

The shortened suite, `make test`, runs a few cases of costly tests. This program shows that they are
enough. Each fault of its tables is a plausible mistake (an index off by one, a missing mask, a
sign, a scale, a race, a transpose, a rounding, a forgotten bias), and the tests listed for it must
fail once it is seeded. ::

    .venv/bin/python -m tools.seeded_faults --clean   # do these tests pass without a fault?
    .venv/bin/python -m tools.seeded_faults           # and fail with one?
    .venv/bin/python -m tools.seeded_faults --record  # the same of a commit, for its release

Native C++ and CUDA sources are not covered, since each fault there would need its own build. The
exit status is 1 if a fault is missed, and 2 if a table is wrong: if code does not occur exactly
once in its place, or tests can not be collected. ``--record`` takes no ``--only``; a run with an
error of the table is not recorded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.seeded_faults import record, table
from tools.seeded_faults.seeding import Fault, WrongFault, seeded

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("jaxgnn", "pallas_kernels", "tests", "experiments", "docs", "pyproject.toml")
PASSED, FAILED = 0, 1  # exit status of pytest
LONGEST_SECONDS = 900


@dataclass(frozen=True)
class Outcome:
    """Result of a run of pytest.

    Attributes:
      status: its exit status; None if it did not end in time.
      seconds: how long it took.
      failure: the first failing test and why.
      output: all of its output.
    """

    status: int | None
    seconds: float
    failure: str
    output: str


# An editable install finds the packages in the checkout before any path is searched, not the seeded
# ones of the copy. Python runs this file of the copy first, also in processes that tests start.
_SITECUSTOMIZE = """
import sys
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
"""
_RUN_IN_COPY = """
import importlib.util, os, sys
sys.path.insert(0, os.getcwd())
for package in ("jaxgnn", "pallas_kernels"):
    origin = importlib.util.find_spec(package).origin
    if not os.path.realpath(origin).startswith(os.path.realpath(os.getcwd()) + os.sep):
        print("seeded_faults: " + package + " comes from " + origin + ", not from the copy")
        sys.exit(70)  # 1 would be that a test has failed
try:
    import pytest
except ImportError as error:
    print("seeded_faults: " + str(error))
    sys.exit(70)
sys.exit(int(pytest.main(sys.argv[1:])))
"""


def main() -> int:
    """Runs the requested part; returns the exit status."""
    options = _options()
    try:
        faults = [fault for fault in table.faults() if options.only in fault.name]
    except WrongFault as error:
        print(f"seeded_faults: {error}")
        return 2
    if not faults:
        print(f"seeded_faults: no fault has {options.only!r} in its name")
        return 2
    problems = [problem for fault in faults if (problem := _problem(fault)) is not None]
    if problems:
        print("\n".join(problems))
        return 2
    try:
        commit = record.recordable_commit(ROOT) if options.record else None
    except record.NoRecord as error:
        print(f"seeded_faults: {error}")
        return 2
    begin = time.perf_counter()
    if options.clean:
        status = _clean(faults, options)
    else:
        status, verdicts = _seed(faults, options)
        if commit is not None and status != 2:
            seconds = time.perf_counter() - begin
            record.write(ROOT, commit, verdicts, options.cases, seconds)
            print(f"{record.FILE} is written: commit it")
    print(f"{time.perf_counter() - begin:.0f} s in all")
    return status


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Do the tests find faults that are seeded?")
    parser.add_argument("--only", default="", metavar="NAME-PART", help="faults with such a name")
    parser.add_argument("--cases", choices=["some", "all"], default="some", help="as of the tests")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--clean", action="store_true", help="the same tests without any fault")
    parser.add_argument("--record", action="store_true", help=f"write {record.FILE}")
    options = parser.parse_args()
    if options.record and (options.only or options.clean):
        parser.error("--record is of all faults: leave out --only and --clean")
    return options


def _problem(fault: Fault) -> str | None:
    """The reason why a fault can not be seeded; None if it can."""
    try:
        seeded(fault, ROOT)
    except WrongFault as error:
        return f"seeded_faults: {error}"
    return None


def _clean(faults: Iterable[Fault], options: argparse.Namespace) -> int:
    """Runs each selection of tests without a fault; returns the exit status."""
    selections = list(dict.fromkeys(fault.tests for fault in faults))

    def run(tests: tuple[str, ...]) -> bool:
        outcome = _outcome(None, tests, options.cases)
        passes = outcome.status == PASSED
        _say("passes" if passes else "FAILS", outcome, " ".join(tests))
        if not passes:
            print(outcome.output, flush=True)
        return passes

    passed = _map_in_threads(run, selections, options.jobs)
    print(f"{sum(passed)} of {len(passed)} selections of tests pass without a fault")
    return 0 if all(passed) else 2


def _seed(faults: list[Fault], options: argparse.Namespace) -> tuple[int, list[record.Verdict]]:
    """Seeds one fault after the other; returns the exit status, and the outcome of each."""

    def run(fault: Fault) -> str:
        outcome = _outcome(fault, fault.tests, options.cases)
        missed = "hole" if fault.hole else "MISSED"
        verdict = "found" if outcome.status == FAILED else missed
        verdict = verdict if outcome.status in (FAILED, PASSED) else "ERROR"
        _say(verdict, outcome, f"{fault.name} ({fault.hole})" if fault.hole else fault.name)
        if verdict == "ERROR":
            print(outcome.output, flush=True)
        return verdict

    verdicts = _map_in_threads(run, faults, options.jobs)
    counts = {each: verdicts.count(each) for each in ("found", "MISSED", "hole", "ERROR")}
    print(
        f"{counts['found']} found, {counts['MISSED']} missed, {counts['hole']} known holes, "
        f"{counts['ERROR']} errors of the table"
    )
    status = 2 if counts["ERROR"] else min(counts["MISSED"], 1)
    return status, [record.Verdict(*pair) for pair in zip(faults, verdicts, strict=True)]


def _map_in_threads[T, R](run: Callable[[T], R], items: Iterable[T], jobs: int) -> list[R]:
    with ThreadPoolExecutor(max_workers=max(jobs, 1)) as pool:
        return list(pool.map(run, items))


def _say(verdict: str, outcome: Outcome, what: str) -> None:
    by = f"\n       by {outcome.failure}" if outcome.failure and verdict == "found" else ""
    print(f"{verdict:6} {outcome.seconds:4.0f} s  {what}{by}", flush=True)


def _outcome(fault: Fault | None, tests: tuple[str, ...], cases: str) -> Outcome:
    """Runs tests in a copy of the sources with a fault."""
    with tempfile.TemporaryDirectory(prefix="seeded_faults_") as name:
        copy = Path(name)
        _copy_sources(copy)
        if fault is not None:
            path, source = seeded(fault, ROOT)
            (copy / path.relative_to(ROOT)).write_text(source)
        return _pytest(copy, tests, cases)


def _copy_sources(copy: Path) -> None:
    """Copies the files that the tests need, and the compiled libraries next to their package.

    Bytecode of the checkout is copied with its sources, so that Python compiles only the file with
    the fault: files keep their time, by which bytecode is found to be of this source.
    """
    for part in COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part)
        else:
            shutil.copy2(source, copy / part)
    (copy / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    for library in _compiled_libraries():
        shutil.copy2(library, copy / "jaxgnn" / "_ffi")


def _compiled_libraries() -> list[Path]:
    from jaxgnn._ffi._library import library_path

    return [path for path in map(library_path, ("cpu", "cuda")) if path is not None]


def _pytest(copy: Path, tests: tuple[str, ...], cases: str) -> Outcome:
    """Runs tests of a copy until the first one fails."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not long"]
    command = [sys.executable, "-c", _RUN_IN_COPY, *options, "--cases", cases, *tests]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=_environment(copy),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, time.perf_counter() - begin, "", "It did not end in time.")
    seconds = time.perf_counter() - begin
    return Outcome(done.returncode, seconds, _first_failure(done.stdout), done.stdout)


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(copy),
        # As in `make test`: kernels that a CPU interprets compile faster.
        "XLA_FLAGS": "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters",
    }


def _first_failure(output: str) -> str:
    """The first failing test and the first line of the reason, as the tests print them at once."""
    failure = re.search(r"^FAILED (.+?) at \w+: (.*)$", output, re.MULTILINE)
    return "" if failure is None else f"{failure[1]}: {failure[2][:100]}"


if __name__ == "__main__":
    sys.exit(main())
