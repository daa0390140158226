"""Divides the cases of the tests into the two tiers of ``make test`` and ``make test-more``.

The first tier is what a new user runs: the first case of each quick test, all cases of the tests
marked ``every``, which are about every op, layer, model, loader or reader, and of each file at
least one case. The second tier is the rest. ``tests/durations.json`` says which tests are quick.
"""

import collections
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
# CPU seconds of the first case of a test: longer ones belong to the second tier, shorter ones are
# not recorded, and a test of the first tier that exceeds the last is named in a warning.
LONGEST, SHORTEST_RECORDED, WARNED_OF = 0.6, 0.1, 5.0
SECOND_TIER = ("again", "costly", "long")


def name_of_test(item: pytest.Item) -> str:
    """The node id of an item without its parameters."""
    return item.nodeid.partition("[")[0]


def cases_of_tests(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Groups the cases of each test, in the order of collection."""
    cases: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        cases[name_of_test(item)].append(item)
    return cases


def first_tier(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> set[pytest.Item]:
    """Chooses the cases of ``make test``.

    Args:
      items: all collected cases.
      seconds: CPU seconds of the first case of a test, by its name; tests that are missing are
        quick.

    Returns:
      The chosen cases; of each file outside of ``tests/experiments`` at least one.
    """
    chosen: set[pytest.Item] = set()
    quickest: dict[str, pytest.Item] = {}

    def cost(case: pytest.Item) -> tuple[bool, float]:
        return _is_of_second_tier(case), seconds.get(name_of_test(case), 0.0)

    for name, cases in cases_of_tests(items).items():
        file = name.partition("::")[0]
        if _is_marked(cases[0], "every"):
            chosen.update(cases)
        elif cost(cases[0]) <= (False, LONGEST):
            chosen.add(cases[0])
        quickest[file] = min(quickest.get(file, cases[0]), cases[0], key=cost)
    shown = {item.nodeid.partition("::")[0] for item in chosen}
    chosen.update(
        item
        for file, item in quickest.items()
        if file not in shown and "experiments" not in Path(file).parts
    )
    return chosen


def recorded_seconds() -> dict[str, float]:
    """Reads the CPU seconds of tests; of those that are missing the time is short."""
    files = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return {f"{file}::{test}": s for file, tests in files.items() for test, s in tests.items()}


class Stopwatch:
    """Measures the CPU seconds of every case, in all processes that share the tests.

    The time of a process on the CPU, which other processes do not lengthen, includes the threads
    that compile. Each worker sends its cases to the process that started it.
    """

    def __init__(self, config: pytest.Config):
        self.config = config
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.process_time() - start, 2)

    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["seconds"] = self.seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.seconds.update(getattr(node, "workeroutput", {}).get("seconds", {}))

    def pytest_terminal_summary(self, terminalreporter):
        """Names tests of the first tier that are too slow for it, and writes what was asked for."""
        if self.config.getoption("--cases") == "quick":
            for name, seconds in sorted(self.seconds.items()):
                if seconds > WARNED_OF:
                    terminalreporter.write_line(
                        f"warning: {name} took {seconds:.1f} CPU seconds, more than {WARNED_OF:g}: "
                        "mark it costly, or record it by --record-durations"
                    )
        if self.config.getoption("--record-durations"):
            record(self.seconds)


def record(seconds: Mapping[str, float]) -> None:
    """Writes ``tests/durations.json``: of the tests that were run the new time, of others the old.

    Args:
      seconds: CPU seconds of cases, by node id; the first case of a test stands for the test.
    """
    first: dict[str, float] = {}
    for nodeid, value in seconds.items():
        first.setdefault(nodeid.partition("[")[0], value)
    all_seconds = {**recorded_seconds(), **first}
    files: dict[str, dict[str, float]] = {}
    for name, value in sorted(all_seconds.items()):
        file, _, test = name.partition("::")
        if value >= SHORTEST_RECORDED:
            files.setdefault(file, {})[test] = value
    DURATIONS.write_text(json.dumps(files, indent=1) + "\n")


def _is_of_second_tier(item: pytest.Item) -> bool:
    return any(_is_marked(item, mark) for mark in SECOND_TIER)


def _is_marked(item: pytest.Item, mark: str) -> bool:
    return item.get_closest_marker(mark) is not None
