"""Results of a function, computed ahead by threads, in the order of its arguments."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Longest time in seconds that the end of the process waits for a thread that still computes.
_PATIENCE = 0.5


class Prefetched[Result](Iterator[Result]):
    """An iterator over ``function(item)``, which threads compute before they are asked for.

    Results come in the order of the items. At most ``depth`` of them are computed or waiting. An
    exception in a thread is raised, with its traceback, where its result would be returned, and
    ends the iteration. The threads end when the iterator is exhausted, closed or dropped, after
    the item that they compute.

    Args:
      function: called in a thread with one item.
      items: read lazily, one item at a time.
      threads: number of threads.
      depth: most results that are computed or waiting.
    """

    def __init__[Item](
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        threads: int,
        depth: int,
    ):
        self._shared = _Shared(function, iter(items), depth)
        # They hold no reference to the iterator, so that it can be dropped.
        workers = [
            threading.Thread(target=self._shared.work, name=f"jaxgnn-loader-{i}", daemon=True)
            for i in range(threads)
        ]
        # Also runs at the end of the process, where a daemon thread must not compute any more.
        self._stop = weakref.finalize(self, _stop, self._shared, workers)
        for worker in workers:
            worker.start()

    def __reduce__(self) -> Any:
        raise TypeError(
            "sampling: batches that threads make ahead can not be copied or pickled; iterate over "
            "a loader where they are used"
        )

    def __next__(self) -> Result:
        try:
            return self._shared.next()
        except Exception:  # a Ctrl-C ends this wait, but not the iteration
            self.close()
            raise

    def close(self) -> None:
        """Ends the threads; further results are dropped."""
        self._shared.stop()


@dataclass
class _Failure:
    error: BaseException


class _End:
    pass


@dataclass
class _Shared:
    """State that the iterator and its threads share; ``changed`` guards all of it.

    A fork of the process has none of the threads, and ``changed`` may be locked in it for ever.
    """

    function: Callable[[Any], Any]
    items: Iterator[Any]
    depth: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    results: dict[int, Any] = field(default_factory=dict)
    taken: int = 0
    returned: int = 0
    stopped: bool = False
    broken: _Failure | None = None  # of a thread itself, which then makes no results
    process: int = field(default_factory=os.getpid)

    def work(self) -> None:
        """Computes results until there are no more items."""
        try:
            while (job := self._take()) is not None:
                place, item = job
                try:
                    result = self.function(item)
                except BaseException as error:
                    result = _Failure(error)
                self._put(place, result)
                del item, job, result
        except BaseException as error:  # out of memory between two items, say
            self._put(None, _Failure(error))

    def next(self) -> Any:
        """Waits for the next result in order."""
        if os.getpid() != self.process:
            raise RuntimeError(
                f"sampling: threads of process {self.process} make these batches ahead, and its "
                f"fork {os.getpid()} has none; iterate over the loader again in the fork"
            )
        with self.changed:
            self.changed.notify_all()  # an interrupt may have kept the call before from it
            self.changed.wait_for(self._is_answered)
            if self.stopped:
                raise StopIteration
            result = self.results.get(self.returned, self.broken)
            self.returned += 1  # until here an interrupt leaves the result to the next call
            self.results.pop(self.returned - 1, None)
            self.changed.notify_all()
        if isinstance(result, _Failure):
            raise result.error
        if isinstance(result, _End):
            raise StopIteration
        return result

    def stop(self) -> None:
        """Lets threads and waiting consumers end."""
        if os.getpid() != self.process:
            return
        with self.changed:
            self.stopped = True
            self.results.clear()
            self.changed.notify_all()

    def _is_answered(self) -> bool:
        return self.stopped or self.returned in self.results or self.broken is not None

    def _take(self) -> tuple[int, Any] | None:
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.taken - self.returned < self.depth)
            if self.stopped:
                return None
            place = self.taken
            try:
                item = next(self.items)
            except StopIteration:
                self.results.setdefault(place, _End())
                self.changed.notify_all()
                return None
            except BaseException as error:
                self.results.setdefault(place, _Failure(error))
                self.changed.notify_all()
                return None
            self.taken += 1
            return place, item

    def _put(self, place: int | None, result: Any) -> None:
        """Keeps a result; None as the place of the failure of a thread."""
        with self.changed:
            if place is None:
                self.broken = result
            elif not self.stopped:
                self.results[place] = result
            self.changed.notify_all()


def _stop(shared: _Shared, workers: list[threading.Thread]) -> None:
    shared.stop()
    for worker in workers:
        if worker is not threading.current_thread():
            worker.join(_PATIENCE / len(workers))
