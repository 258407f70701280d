# cython: language_level=3
"""Locks and `with` blocks that are safe against interrupts.

A signal handler runs between two bytecode instructions, so its exception may arrive after a lock was
acquired and before the `try` that would release it. Compiled code runs no handlers: what is acquired
or released here happens as one step.
"""
import functools
from threading import Lock, RLock

from ephemera.core.errors import StoreBusy

cimport cython

cdef enum:
    WAIT_SLICE_MS = 20

THREAD_PATIENCE = 1.0
"""The shortest bound in seconds of a wait among the threads of a process, whatever `lock_timeout` is:
reads wait so too."""


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
    """Do what `contextlib.contextmanager` does, with no moment at which an interrupt loses the generator."""

    @functools.wraps(function)
    def begin(*given, **named):
        cdef _Block made = _Block.__new__(_Block)
        made.steps = function(*given, **named)
        return made

    return begin


cdef class InterruptSafeContext:
    """A base for context managers: `_begin` and `_end`, and `_give_up` where either raises."""

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
cdef class HeldLock:
    """A lock of `threading`, held until `leave` or until this object is gone.

    `is_held` is False when it could not be acquired within `seconds`.
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


cdef class WakeEvent:
    """An auto-reset event: `set` wakes one waiting thread, or the next one that waits.

    An interrupt inside `threading.Event` may leave its lock held; this one has no such moment.
    """
    cdef object unset    # a lock, held while the event is not set

    def __init__(self):
        self.unset = Lock()
        self.unset.acquire()

    def set(self) -> None:
        if self.unset.locked():
            try:
                self.unset.release()
            except RuntimeError:
                pass  # another thread was faster

    def wait(self, double seconds) -> None:
        """Return once the event is set, or after so many seconds."""
        self.unset.acquire(timeout=seconds)

    def wait_without(self, lock, double seconds) -> None:
        """Release a lock that the caller holds, wait, and acquire it again."""
        lock.release()
        try:
            self.unset.acquire(timeout=seconds)
        finally:
            _take(lock)


cdef int _take(lock) except -1:
    """Acquire a lock; an interrupt is raised only once it is held."""
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
