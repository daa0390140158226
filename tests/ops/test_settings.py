"""Settings of a thread: blocks may end in any order, and leave nothing set."""

import asyncio
import itertools
import threading

import jax
import pytest

from jaxgnn import default_implementation, deterministic, verify
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.verify import Setting, setting

# Each setting: how a block sets it, how it is read, and its default.
SETTINGS = {
    "default_implementation": (
        default_implementation,
        lambda: dispatch.requested_implementation(None),
        {"xla": "xla", "ffi": "ffi", "default": None},
    ),
    "deterministic": (
        lambda name: deterministic(name == "xla"),
        dispatch.is_deterministic,
        {"xla": True, "ffi": False, "default": False},
    ),
    "verify": (
        lambda name: verify("strict" if name == "xla" else "warn"),
        setting,
        {"xla": Setting("strict"), "ffi": Setting("warn"), "default": Setting()},
    ),
}
each_setting = pytest.mark.parametrize("name", SETTINGS)


@each_setting
def test_blocks_that_end_in_another_order_leave_the_innermost_and_then_the_default(name):
    block, value, values = SETTINGS[name]
    assert value() == values["default"]
    first, second = block("xla"), block("ffi")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert value() == values["ffi"]
    with block("xla"):
        assert value() == values["xla"]
    assert value() == values["ffi"]
    second.__exit__(None, None, None)
    assert value() == values["default"]


@each_setting
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_tasks_of_asyncio_leave_the_default(name, order):
    block, value, values = SETTINGS[name]

    async def task(number, turns):
        with block(("xla", "ffi", "xla")[number]):
            await turns[number].wait()

    async def all_tasks():
        turns = [asyncio.Event() for _ in order]
        tasks = [asyncio.create_task(task(number, turns)) for number in order]
        await asyncio.sleep(0)
        for number in range(3):
            turns[number].set()
            await tasks[order.index(number)]

    asyncio.run(all_tasks())
    assert value() == values["default"]


@each_setting
def test_generators_and_blocks_that_raise_leave_the_default(name):
    block, value, values = SETTINGS[name]

    def inside():
        with block("xla"):
            yield value()

    first, second = inside(), inside()
    assert [next(first), next(second)] == [values["xla"]] * 2
    first.close()
    second.close()
    with pytest.raises(KeyError), block("xla"):
        raise KeyError
    assert value() == values["default"]


@each_setting
def test_another_thread_has_its_own_setting(name):
    block, value, values = SETTINGS[name]
    seen = []
    with block("xla"):
        thread = threading.Thread(target=lambda: seen.append(value()))
        thread.start()
        thread.join()
        assert value() == values["xla"]
    assert seen == [values["default"]]


@each_setting
def test_a_function_is_traced_once_for_each_value(name):
    block, value, values = SETTINGS[name]
    traced = []

    @jax.jit
    def function(x):
        traced.append(value())
        return x

    for _ in range(2):
        first, second = block("xla"), block("ffi")
        function(1.0)
        first.__enter__()
        function(1.0)
        second.__enter__()
        first.__exit__(None, None, None)
        function(1.0)
        second.__exit__(None, None, None)
        function(1.0)
    expected = [values[key] for key in ("default", "xla", "ffi")]
    # A block may set the default too, which JAX tells from none.
    assert traced[:3] in (expected, expected[:2]) and len(traced) <= 3
