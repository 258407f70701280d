# cython: language_level=3, cdivision=True
"""The clock readings themselves, and the steady clock over a word that processes may share."""
from libc.stdint cimport int64_t

cdef extern from "<time.h>" nogil:
    int clock_gettime(int clock, timespec *out)
    int CLOCK_REALTIME
    int CLOCK_MONOTONIC

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>
    /* A clock that also counts the time that the machine slept. */
    #if defined(CLOCK_BOOTTIME)
    #define EPHEMERA_BOOT_CLOCK CLOCK_BOOTTIME
    #else
    #define EPHEMERA_BOOT_CLOCK CLOCK_MONOTONIC
    #endif
    /* The wall clock as of the last tick, a few milliseconds behind: a fifth of the cost. */
    #if defined(CLOCK_REALTIME_COARSE)
    #define EPHEMERA_TICK_CLOCK CLOCK_REALTIME_COARSE
    #else
    #define EPHEMERA_TICK_CLOCK CLOCK_REALTIME
    #endif
    static inline int64_t eph_load(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline int eph_swap(int64_t *at, int64_t was, int64_t to) {
        return __atomic_compare_exchange_n(at, &was, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    """
    int EPHEMERA_BOOT_CLOCK
    int EPHEMERA_TICK_CLOCK
    int64_t eph_load(const int64_t *at) nogil
    bint eph_swap(int64_t *at, int64_t was, int64_t to) nogil

STEP_MS_MAX = 24 * 60 * 60 * 1000
cdef int64_t _STEP_MS_MAX = STEP_MS_MAX


cdef inline int64_t _read_ms(int clock) noexcept nogil:
    cdef timespec t
    clock_gettime(clock, &t)
    return <int64_t> t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef void _after(timespec *out, int clock, long ms) noexcept nogil:
    clock_gettime(clock, out)
    out.tv_nsec += ms % 1000 * 1000000
    out.tv_sec += ms // 1000 + out.tv_nsec // 1000000000
    out.tv_nsec %= 1000000000


cdef void monotonic_after(timespec *out, long ms) noexcept nogil:
    _after(out, CLOCK_MONOTONIC, ms)


cdef void wall_after(timespec *out, long ms) noexcept nogil:
    _after(out, CLOCK_REALTIME, ms)


def wall_ms() -> int:
    """The wall clock, which people and time servers set."""
    return _read_ms(CLOCK_REALTIME)


cpdef int64_t elapsed_ns() noexcept nogil:
    """A stopwatch reading for work budgets; differences alone have a meaning."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec


def boot_ms() -> int:
    """Milliseconds since the machine started, sleep included; nobody can set it."""
    return _read_ms(EPHEMERA_BOOT_CLOCK)


cdef class SteadyClock:
    """`now = max(wall clock, steady clock)`, where the steady clock never runs backwards.

    One number is all its state: the offset, the largest difference between wall clock and boot-time
    clock that was ever believed. It only grows, by a compare-and-swap, so any number of
    threads and processes may share the word that holds it. `read_wall` and `read_boot` replace the
    two readings in tests.
    """

    def __init__(self, *, read_wall=None, read_boot=None):
        self.read_wall = read_wall
        self.read_boot = read_boot
        self.is_system = read_wall is None and read_boot is None
        self.offset = &self.own_offset
        cdef int64_t wall = self._wall()
        self.own_offset = wall - self._boot()

    cdef inline int64_t _wall(self) except? -1:
        return _read_ms(CLOCK_REALTIME) if self.read_wall is None else self.read_wall()

    cdef inline int64_t _boot(self) except? -1:
        return _read_ms(EPHEMERA_BOOT_CLOCK) if self.read_boot is None else self.read_boot()

    def now_ms(self) -> int:
        """The instant of this operation in UTC milliseconds."""
        return self.read_ms()

    cdef int64_t read_ms(self) except? -1:
        cdef int64_t wall, boot, offset
        # A wall clock a tick behind makes the difference too small. It tells a step forward all the
        # same, and only then, or in the tick's own millisecond, is the exact one worth its price. And
        # once in a millisecond is enough.
        if self.is_system:
            boot = _read_ms(EPHEMERA_BOOT_CLOCK)
            if boot == self.compared_ms:
                return boot + eph_load(self.offset)
            wall = _read_ms(EPHEMERA_TICK_CLOCK)
            offset = eph_load(self.offset)
            if wall - boot <= offset:
                self.compared_ms = boot
                return boot + offset
        # The wall clock first: a pause between the two readings makes the difference too small, and
        # that is not believed. The other way round it would be too large, for good.
        wall = self._wall()
        boot = self._boot()
        offset = eph_load(self.offset)
        if wall - boot > offset:
            offset = self._believe(wall - boot, offset)
        return boot + offset

    cdef int64_t _believe(self, int64_t seen, int64_t offset) noexcept:
        while seen > offset:
            if seen - offset > _STEP_MS_MAX:
                self.ignores_wall = True
                return offset
            if eph_swap(self.offset, offset, seen):
                break
            offset = eph_load(self.offset)
        self.ignores_wall = False
        return eph_load(self.offset)

    def resync(self) -> None:
        """Believe the wall clock, however far ahead it is. Never steps back."""
        cdef int64_t seen = self._wall()
        seen -= self._boot()
        cdef int64_t offset = eph_load(self.offset)
        while seen > offset and not eph_swap(self.offset, offset, seen):
            offset = eph_load(self.offset)
        self.ignores_wall = False

    def never_before(self, int64_t instant_ms) -> None:
        """Let time go on from `instant_ms` if the clocks stand before it."""
        cdef int64_t floor = instant_ms - self._boot()
        cdef int64_t offset = eph_load(self.offset)
        while floor > offset and not eph_swap(self.offset, offset, floor):
            offset = eph_load(self.offset)

    def share(self, memory, Py_ssize_t at, *, bint is_first) -> None:
        """Keep the offset in these eight bytes, which other processes map too.

        The first of them sets the word; later ones take it as it is.
        """
        cdef char[::1] view = memory
        if at < 0 or at % 8 or at + 8 > view.shape[0]:
            raise ValueError(f"no room for the offset at {at}")
        cdef int64_t *word = <int64_t *> &view[at]
        if is_first:
            word[0] = self.own_offset
        self.offset = word
        self.memory = memory

    def unshare(self) -> None:
        """Go on alone from where the shared word stands."""
        self.own_offset = eph_load(self.offset)
        self.offset = &self.own_offset
        self.memory = None


cdef class Now:
    """Any clock, as compiled code asks it: the system's without a call of Python."""

    def __init__(self, clock):
        self.steady = clock if type(clock) is SteadyClock else None
        self.is_compiled = self.steady is not None and self.steady.is_system
        self.now_ms = clock.now_ms

    cdef int64_t ms(self) except? -1:
        return self.now_ms() if self.steady is None else self.steady.read_ms()
