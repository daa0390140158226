"""Settings of a thread that are part of the key of ``jax.jit``'s cache."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(eq=False)
class _Block:
    """A ``with`` block, and whether it has not ended yet."""

    context: Any
    is_open: bool = True


class ThreadSetting[Value]:
    """A value that ``with`` blocks of a thread set.

    JAX keeps it by thread, since its caches look it up without calling Python. Tasks of asyncio
    and generators of a thread share it, and their blocks may end in another order than they began.
    """

    def __init__(self, default: Value):
        self._context = jax.make_user_context(default_value=default)
        self._of_thread = threading.local()

    @property
    def value(self) -> Value:
        """The value of the innermost block of this thread that is open."""
        return self._context.value

    def nested(self, value: Value) -> contextlib.AbstractContextManager[Any]:
        """Sets it for a block that ends before all blocks around it, as those of the library do."""
        return self._context(value)

    @contextlib.contextmanager
    def block(self, value: Value) -> Iterator[None]:
        """Sets it for a block of a user.

        A block that ends before one that began in it leaves the value of the inner block, which
        restores the value before both when it ends.
        """
        blocks = self._blocks()
        block = _Block(self._context(value))
        block.context.__enter__()
        blocks.append(block)
        try:
            yield
        finally:
            block.is_open = False
            while blocks and not blocks[-1].is_open:
                blocks.pop().context.__exit__(None, None, None)

    def _blocks(self) -> list[_Block]:
        """The blocks of this thread that are open, or have one around them or in them that is."""
        if not hasattr(self._of_thread, "blocks"):
            self._of_thread.blocks = []
        return self._of_thread.blocks
