# cython: language_level=3
"""Blocks that no interrupt can leave half open.

A signal's handler runs between two instructions of Python, and what it raises may come just after
something was taken and just before the `try` that would give it back. Compiled code has no
such moments: what is entered and left here is entered and left as one step.
"""
import functools
from threading import Lock, RLock

from ephemera.core.errors import StoreBusy

cimport cython

cdef enum:
    WAIT_SLICE_MS = 20

THREAD_PATIENCE = 1.0
"""For so many seconds threads of one process wait for each other at least, whatever `lock_timeout` is: reads do too."""


cdef class _Block:
    """The `with` block of a generator that yields once."""
    cdef object steps

    def __enter__(self):
        return next(self.steps)

    def __exit__(self, kind, error, trace):
        if error is None:
            for _ in self.steps:
                raise RuntimeError("a block yields once")
            return False
        try:
            self.steps.throw(error)
        except BaseException as raised:
            if raised is error:
                return False
            raise
        raise RuntimeError("a block does not hide what was raised in it")


def block(function):
    """What `contextlib.contextmanager` does, without a moment at which the generator would be lost."""

    @functools.wraps(function)
    def begin(*given, **named):
        cdef _Block made = _Block.__new__(_Block)
        made.steps = function(*given, **named)
        return made

    return begin


cdef class Ending:
    """A base for what ends with its `with` block: by `_end`, or by `_give_up` if that is interrupted."""

    def __enter__(self):
        try:
            self._begin()
        except:
            self._give_up()
            raise
        return self

    def __exit__(self, kind, error, trace):
        try:
            self._end(is_well=kind is None)
        except:
            self._give_up()
            raise


@cython.no_gc
cdef class Hold:
    """A lock of `threading`, held from the making of this object to `leave`, or to its end.

    `is_held` is False when it could not be taken within `seconds`.
    """
    cdef object lock
    cdef readonly bint is_held

    def __init__(self, lock, double seconds):
        self.lock = lock
        self.is_held = lock.acquire(timeout=seconds)

    def leave(self) -> None:
        if self.is_held:
            self.is_held = False
            self.lock.release()

    def __dealloc__(self):
        if self.is_held:
            self.lock.release()


cdef class BoundedLock:
    """A reentrant lock among the threads of a process, for `with`: every wait for it ends after `patience` seconds.

    A signal handler that waits for another thread may have interrupted the one that this other thread
    waits for. The bounded wait ends that deadlock: it raises, and the handler returns.
    """
    cdef object lock
    cdef str name
    cdef double patience

    def __init__(self, str name, double lock_timeout):
        self.lock = RLock()
        self.name = name
        self.patience = max(lock_timeout, THREAD_PATIENCE)

    def __enter__(self):
        """Raises StoreBusy when that took too long."""
        cdef double waited = 0
        while not self.lock.acquire(timeout=WAIT_SLICE_MS / 1000.0):
            waited += WAIT_SLICE_MS / 1000.0
            if waited >= self.patience:
                raise StoreBusy(
                    f"another thread of this process holds the {self.name} lock, and did not release it"
                    f" within {self.patience:g} s (lock_timeout)"
                )

    def __exit__(self, kind, error, trace):
        self.lock.release()

    def acquire(self, double timeout=-1) -> bool:
        return self.lock.acquire(timeout=timeout)

    def release(self) -> None:
        self.lock.release()

    def limit_waits(self, double seconds) -> None:
        """Let no wait last longer, also of those that are under way."""
        self.patience = min(self.patience, seconds)

    def fork(self) -> None:
        """In the child of a fork, make the lock anew: its holder is a thread of the parent."""
        self.lock = RLock()


cdef class Bell:
    """Wakes one thread that waits; what rings while nobody does is heard by the next.

    An Event of `threading` does more, and an interrupt inside it leaves its lock taken.
    """
    cdef object silence

    def __init__(self):
        self.silence = Lock()
        self.silence.acquire()

    def ring(self) -> None:
        if self.silence.locked():
            try:
                self.silence.release()
            except RuntimeError:
                pass  # another thread was faster

    def wait(self, double seconds) -> None:
        """Return when it rings, or after so many seconds."""
        self.silence.acquire(timeout=seconds)

    def wait_without(self, lock, double seconds) -> None:
        """Wait without this lock, which the caller has before and after."""
        lock.release()
        try:
            self.silence.acquire(timeout=seconds)
        finally:
            _take(lock)


cdef int _take(lock) except -1:
    """Have a lock when this ends, also where it ends with an interrupt."""
    interrupt = None
    while True:
        try:
            lock.acquire()
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return 0
