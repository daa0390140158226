"""What warps of the emulator share: memory of a block, mbarriers, and turns to run.

Clocks are those of ``_numpy_warp``: what each warp knows of what the others have done.
"""

from __future__ import annotations

import threading

import numpy as np

from pallas_kernels.simt.warp import LANES


class BlockMemory:
    """An array that each block has in shared memory, one block after another.

    Of each byte it is known who wrote and read it, and when, by the clocks of the warps.

    Attributes:
      bytes: of all blocks.
      size: bytes of a block.
      under_way: what is to be written by a copy, or was sent.
    """

    def __init__(self, warp, size):
        total = warp.count // warp.warps * size
        self.bytes, self.size, self._warp = np.full(total, 0xFF, np.uint8), size, warp
        self.under_way = np.zeros(total, bool)
        # The writer's thread, or -1 for what was sent; of which clock, -1 for none; and its time.
        self._writer, self._clock, self._written = np.full((3, total), -1)
        # When each warp of the cluster read a byte last, and the first and last thread of then.
        self._read, self._first, self._last = np.zeros((3, warp.peers, total), np.int32)

    def read(self, places, threads):
        """Bytes of each thread, [threads, bytes]."""
        self._check_writer(places, threads, "read before its writer was waited for")
        threads = np.broadcast_to(threads[:, None], places.shape)
        now = self._warp.now(threads // LANES)
        at = threads // LANES % self._warp.peers, places
        is_new = self._read[at] < now
        self._first[at] = np.where(is_new, 2**30, self._first[at])
        self._last[at] = np.where(is_new, -1, self._last[at])
        self._read[at] = now
        np.minimum.at(self._first, at, threads)
        np.maximum.at(self._last, at, threads)
        return self.bytes[places]

    def write(self, places, threads, data):
        """Stores ``data``, [threads, bytes]."""
        self._check_writer(places, threads, "written before another's write was waited for")
        warps, threads = threads // LANES, threads[:, None]
        same_warp = (
            np.arange(self._warp.peers)[:, None, None] == (warps % self._warp.peers)[:, None]
        )
        alone = (self._first[:, places] >= threads) & (self._last[:, places] <= threads)
        self._check_readers(
            places, self._warp.clocks[warps], self._warp.now(warps), same_warp, alone
        )
        now = self._warp.now(warps)[:, None]
        self.bytes[places], self._writer[places], self._written[places] = data, threads, now
        self._clock[places] = warps[:, None] % self._warp.peers

    def receive(self, places, data, clocks, clock, time):
        """Stores what a warp has sent, knowing ``clocks``; ``clock`` counts what it sends."""
        known = (self._clock[places] == -1) | (
            self._written[places] <= _at(clocks, self._clock[places])
        )
        assert known.all(), "sent over what was written"
        self._check_readers(places, clocks)
        self.under_way[places] = False
        self.bytes[places], self._writer[places], self._written[places] = data, -1, time
        self._clock[places] = clock

    def written_by_lanes(self, places):
        """Whether anything there was."""
        return ((self._clock[places] >= 0) & (self._clock[places] < self._warp.peers)).any()

    def _check_writer(self, places, threads, message):
        assert not self.under_way[places].any(), "a copy or something sent is under way"
        warps, clock, written = threads // LANES, self._clock[places], self._written[places]
        same_warp = clock == warps[:, None] % self._warp.peers
        known = written <= _at(self._warp.clocks[warps], clock)
        known = np.where(same_warp, written < self._warp.now(warps)[:, None], known)
        assert ((clock == -1) | (self._writer[places] == threads[:, None]) | known).all(), message

    def _check_readers(self, places, clocks, now=0, same_warp=False, alone=False):
        read = self._read[:, places]
        seen = read <= clocks[:, : len(read)].T[:, :, None]
        known = np.where(same_warp, (read < np.reshape(now, (-1, 1))) | alone, seen)
        assert ((read == 0) | known).all(), "written before another's use was waited for"

    def check_the_end(self):
        """No block ends before it knows of what was sent to it."""
        sent = np.flatnonzero(self._clock >= self._warp.peers)
        known = self._warp.clocks.reshape(-1, self._warp.warps, 2 * self._warp.peers).max(1)
        known = known[sent // self.size, self._clock[sent]]
        assert (self._written[sent] <= known).all(), "ended before what was sent had come"


def _at(clocks, numbers):
    """Of each row of clocks."""
    return np.take_along_axis(clocks, np.maximum(numbers, 0), 1)


class Signal:
    """An mbarrier.

    Attributes:
      maker: the warp that made it.
      times: arrivals of a phase.
      missing: of this one.
      nbytes: that were announced and have not come, or have come and were not announced.
      over: clocks of those who arrived, for each phase that is over.
      clocks: of those who arrived in this phase.
    """

    def __init__(self, maker, times, clocks):
        self.maker, self.times, self.missing = maker, times, times
        self.nbytes = 0
        self.clocks, self.over = np.zeros(clocks, np.int32), []

    @property
    def phase(self):
        """How many are over."""
        return len(self.over)

    def change(self, arrivals, nbytes, clocks):
        assert arrivals <= self.missing, "given too often"
        self.missing, self.nbytes = self.missing - arrivals, self.nbytes + nbytes
        self.clocks = np.maximum(self.clocks, clocks)
        if not self.missing and not self.nbytes:
            self.missing = self.times
            self.over.append(self.clocks)
            self.clocks = np.zeros_like(self.clocks)


class Schedule:
    """Runs what is side by side: one at a time until it waits, then any other that can go on.

    What is sent comes at any time after it was sent. The order is random.

    Attributes:
      messages: what is on its way.
    """

    def __init__(self, seed):
        self._random, self.messages = np.random.default_rng(seed), []
        self._main, self._current, self._error = threading.Semaphore(0), None, None

    def wait(self, condition):
        """Others run, or what was sent arrives, until the condition holds."""
        agent = self._current
        if agent is None:
            while not condition():
                assert self.messages, "waits for what never comes"
                self._deliver()
        elif not condition():
            agent.condition = condition
            self._main.release()
            agent.turn.acquire()
            if self._error:
                raise SystemExit

    def _deliver(self):
        self.messages.pop(self._random.integers(len(self.messages)))()

    def run(self, bodies):
        """All bodies."""
        assert self._current is None, "roles within roles"
        agents = [_Agent(self, body) for body in bodies]
        for agent in agents:
            agent.thread.start()
        while agents:
            ready = [agent for agent in agents if agent.condition()]
            choices = len(ready) + len(self.messages)
            if not choices:
                self._error = AssertionError("all wait for one another")
            if self._error:
                for agent in agents:  # they end
                    self._turn(agent)
                raise self._error
            if (number := self._random.integers(choices)) < len(ready):
                self._turn(ready[number])
                agents = [agent for agent in agents if not agent.over]
            else:
                self._deliver()

    def _turn(self, agent):
        self._current = agent
        agent.turn.release()
        self._main.acquire()
        self._current = None

    def go(self, agent, body):
        """In the agent's thread."""
        agent.turn.acquire()
        try:
            if not self._error:
                with np.errstate(all="ignore"):
                    body()
        except SystemExit:
            pass
        except Exception as error:
            self._error = error
        agent.over = True
        self._main.release()


class _Agent:
    def __init__(self, schedule, body):
        self.condition, self.turn, self.over = lambda: True, threading.Semaphore(0), False
        self.thread = threading.Thread(target=schedule.go, args=(self, body), daemon=True)
