"""An event loop whose time is a number: sleeping is adding to it. Nothing here waits, and nothing comes from outside.

What runs in threads elsewhere runs at once here. Every task belongs to the machine it was started on, so that a machine can die
with all that runs on it. The same program with the same seed runs the same steps in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from braidmq.base.disk_faulty import SimulatedCrash

T = TypeVar("T")

_ONE_MOMENT_S: Final = 1e-9
"""Times that differ by less, as sums of fractions do, are the same."""


class Life:
    """One run of a machine, from start to crash."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(_LIFE.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something on the machine."""
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def end(self) -> None:
        """Everything on the machine stops where it is."""
        self.dead = True
        for task in list(self.tasks):
            task.cancel()


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


def machine_name() -> str:
    """The machine that runs now; empty for none."""
    life = _LIFE.get()
    return "" if life is None else life.name


class SimLoop(asyncio.BaseEventLoop):
    """Timers wait in a heap of tuples, and a turn does no more than run what is due: most of what a simulation does is this."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.faults: list[BaseException] = []
        """What nobody caught."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """By time; those of one moment in the order in which they were set."""
        self._order = itertools.count()
        self._ready: deque[asyncio.Handle]
        self.set_task_factory(_owned_task)
        self.set_exception_handler(self._note_fault)

    def time(self) -> float:
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def _run_once(self) -> None:
        """One turn: with nothing to do now, it is later."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise RuntimeError("nothing is going to happen any more")
            self.now_s = max(self.now_s, timers[0][0])
        due_s = self.now_s + _ONE_MOMENT_S
        while timers and timers[0][0] < due_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as fault:
            done.set_exception(fault)
        return done

    def _write_to_self(self) -> None:
        """Whoever calls from a thread is on this one."""

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if isinstance(fault, SimulatedCrash):
            # Something of a machine that is dead already.
            return
        self.faults.append(fault if isinstance(fault, BaseException) else RuntimeError(context.get("message", "unknown")))


def _owned_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **how: Any
) -> asyncio.Task[T]:
    task: asyncio.Task[T] = asyncio.Task(coro, loop=loop, **how)
    context = how.get("context")
    life = _LIFE.get() if context is None else context.get(_LIFE)
    if life is not None:
        life.tasks[task] = None
        task.add_done_callback(lambda done: life.tasks.pop(done, None))
        if life.dead:
            task.cancel()
    return task


def run(loop: SimLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run a simulation to its end, and leave nothing behind."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
