"""Settings for every test."""

import collections
import gc
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests import _tiers
from tests._settings import COMPILED_QUICKLY, jax_settings

# Four devices, so that shard_map has something to shard over; only before JAX starts.
jax.config.update("jax_num_cpu_devices", 4)
# A GPU would multiply float32 matrices in TF32.
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="session")
def compilation_cache_folder(tmp_path_factory):
    """Where JAX keeps compiled programs; of this process alone, since files appear half written."""
    return tmp_path_factory.mktemp("compilation_cache")


@pytest.fixture(autouse=True, scope="session")
def share_compiled_programs(request, compilation_cache_folder):
    """Compiles the same large program once, instead of for every function that happens to be it.

    On a CPU and with all cases; what a GPU runs is always compiled. Few small programs are met
    again, and to write each of them takes a fifth of the time that it compiles. Programs that are
    compiled quickly are read no faster than they are compiled, and few of them are met again.
    """
    if jax.default_backend() != "cpu" or request.config.getoption("--cases") != "all":
        yield
        return
    settings = {
        "jax_compilation_cache_dir": str(compilation_cache_folder),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    with jax_settings(settings):
        compilation_cache.reset_cache()
        yield
    compilation_cache.reset_cache()


@pytest.fixture
def four_devices():
    """To shard over, as a mesh takes them."""
    devices = jax.devices()
    if len(devices) < 4:
        pytest.skip(f"reason: needs 4 devices, got {len(devices)}")
    return np.array(devices[:4])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Compiles quickly what modules compute when they are imported."""
    with jax_settings(COMPILED_QUICKLY if jax.default_backend() == "cpu" else {}):
        return (yield)


@pytest.fixture(autouse=True, scope="module")
def compile_as_for_users_or_quickly(request):
    """With all cases, tests of the ops of a family have the optimisations that users have.

    The others do not, nor does any where there are only a few cases: they are LLVM's, of loops that
    XLA makes, and take more than twice the time. Our native code is compiled as for users anyway.
    """
    top, *rooms = request.path.relative_to(Path(__file__).parent).parent.parts or ("",)
    as_for_users = top == "ops" and rooms and request.config.getoption("--cases") == "all"
    is_quick = not as_for_users and jax.default_backend() == "cpu"
    with jax_settings(COMPILED_QUICKLY if is_quick else {}):
        yield


_CHOICE = pytest.StashKey[str]()
_CASES = {
    "quick": "the first tier: of each quick test the first case, of one marked every all",
    "more": "the second tier: some without quick, and of a test marked again the first case",
    "some": "all cases, of a test marked costly a few, of one also marked lowers one, of one "
    "marked again none",
    "first": "the first case of every test, of one marked lowers all",
    "all": "all cases of every test",
}


def pytest_addoption(parser):
    parser.addoption(
        "--cases",
        choices=list(_CASES),
        default="all",
        help="; ".join(f"{name}: {text}" for name, text in _CASES.items()),
    )
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write the CPU seconds of the tests that ran to tests/durations.json",
    )


class _FailuresAtOnce:
    """Tells of each failure when it comes: a long run may be cut off before its summary."""

    def __init__(self, reporter):
        self.reporter = reporter

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(crash.message if crash else report.longrepr).strip().partition("\n")[0]
            self.reporter.write_line(f"\nFAILED {report.nodeid} at {report.when}: {reason}")


def pytest_configure(config):
    config.pluginmanager.register(_tiers.Stopwatch(config))


def pytest_sessionstart(session):
    plugins = session.config.pluginmanager
    reporter = plugins.get_plugin("terminalreporter")
    if reporter is not None:  # the processes that share the tests have none
        plugins.register(_FailuresAtOnce(reporter))


def pytest_collection_finish():
    """Hides what has been imported and collected from the garbage collector: it stays to the end.

    It is hundreds of thousands of objects, through all of which each full collection would walk.
    The collector looks for garbage a thirtieth as often as usual: programs that are traced are many
    objects which stay, and to walk through them was a twentieth of the time of the tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 100)


def pytest_report_header(config):
    """Prints the choice of cases, also where several processes share the tests."""
    return f"cases: {_CASES[config.getoption('--cases')]}"


def pytest_report_collectionfinish(config):
    """Prints the number of cases that were chosen; a process that collects nothing has none."""
    chosen = config.stash.get(_CHOICE, None)
    return [f"chosen: {chosen}"] if chosen else []


@pytest.hookimpl(trylast=True)  # -m has chosen before
def pytest_collection_modifyitems(config, items):
    option = config.getoption("--cases")
    kept = chosen(option, items)
    left_out = [item for item in items if item not in kept]
    config.hook.pytest_deselected(items=left_out)
    choice = f"{len(kept)} of {len(items)} cases of {len(_tiers.by_test(items))} tests"
    if option == "quick":
        choice += f"; the other {len(left_out)} cases: make test-more, make test-all"
    config.stash[_CHOICE] = choice
    items[:] = [item for item in items if item in kept]


def chosen(option, items):
    """The cases that an option chooses."""
    if option == "quick":
        return _tiers.first_tier(items, _tiers.recorded_seconds())
    if option == "more":
        some = chosen("some", items) | _again(items)
        return some - _tiers.first_tier(items, _tiers.recorded_seconds())
    choose = {"all": list, "some": _differing, "first": _first}[option]
    return {item for cases in _tiers.by_test(items).values() for item in choose(cases)}


def _again(items):
    """The first case of each test that is marked again."""
    marked = [item for item in items if item.get_closest_marker("again") is not None]
    return {cases[0] for cases in _tiers.by_test(marked).values()}


def _first(cases):
    """The first case; all of them where releases of JAX differ: in what lowers, or is refused."""
    return cases if _lowers(cases) else cases[:1]


def _lowers(cases):
    return cases[0].get_closest_marker("lowers") is not None


def _differing(cases):
    """All cases that are not marked again; of a costly test a few, with most values of parameters.

    Of cases that show as many new ones, that comes first whose others have been shown least. Of
    what only lowers there is one: ``_first`` takes all.
    """
    cases = [case for case in cases if case.get_closest_marker("again") is None]
    costly = cases[0].get_closest_marker("costly") if cases else None
    if costly is None or not hasattr(cases[0], "callspec"):
        return cases
    (most,) = (1,) if _lowers(cases) else costly.args or (2,)
    values = {case: _values(case) for case in cases}
    chosen, seen = [], collections.Counter()

    def gain(case):
        return len(values[case] - seen.keys()), -sum(seen[value] for value in values[case])

    for _ in range(min(most, len(cases))):
        chosen.append(max((case for case in cases if case not in chosen), key=gain))
        seen.update(values[chosen[-1]])
    return chosen


def _values(case):
    """The values of a case's parameters by name, those that are no constants by identity."""
    constants = (str, int, float, bool, tuple, type(None))
    return {
        (name, repr(value) if isinstance(value, constants) else id(value))
        for name, value in case.callspec.params.items()
    }
