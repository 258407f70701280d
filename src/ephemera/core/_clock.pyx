# cython: language_level=3, cdivision=True
"""The clock readings themselves, and the steady clock over a word that processes may share."""
from libc.stdint cimport INT64_MAX, int64_t

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
    static inline int64_t eph_load(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline int eph_swap(int64_t *at, int64_t was, int64_t to) {
        return __atomic_compare_exchange_n(at, &was, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    """
    int EPHEMERA_BOOT_CLOCK
    int64_t eph_load(const int64_t *at) nogil
    bint eph_swap(int64_t *at, int64_t was, int64_t to) nogil

STEP_MS_MAX = 24 * 60 * 60 * 1000
cdef int64_t _STEP_US_MAX = STEP_MS_MAX * 1000
# Far beyond the last deadline there is, and its microseconds fit the word.
cdef int64_t _INSTANT_MS_MAX = INT64_MAX // 2000


cdef inline int64_t _read_ns(int clock) noexcept nogil:
    cdef timespec t
    clock_gettime(clock, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec


cdef void _after(timespec *out, int clock, long ms) noexcept nogil:
    clock_gettime(clock, out)
    out.tv_nsec += ms % 1000 * 1000000
    out.tv_sec += ms // 1000 + out.tv_nsec // 1000000000
    out.tv_nsec %= 1000000000


cdef void monotonic_after(timespec *out, long ms) noexcept nogil:
    _after(out, CLOCK_MONOTONIC, ms)


cdef void wall_after(timespec *out, long ms) noexcept nogil:
    _after(out, CLOCK_REALTIME, ms)


def wall_ns() -> int:
    """Return the wall clock in UTC nanoseconds; people and time servers set it."""
    return _read_ns(CLOCK_REALTIME)


def wall_ms() -> int:
    """Return the wall clock in UTC milliseconds."""
    return _read_ns(CLOCK_REALTIME) // 1000000


cpdef int64_t elapsed_ns() noexcept nogil:
    """A stopwatch reading for work budgets; differences alone have a meaning."""
    return _read_ns(CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Return the nanoseconds since the machine started, sleep included; nobody can set it."""
    return _read_ns(EPHEMERA_BOOT_CLOCK)


cdef class SteadyClock:
    """`now = max(wall clock, steady clock)`, where the steady clock never runs backwards.

    One number is all its state: the offset in microseconds, the largest difference between wall
    clock and boot-time clock that was ever believed. It only grows, by a compare-and-swap, so any
    number of threads and processes may share the word that holds it. `read_wall` and `read_boot`
    replace the two readings, which are nanoseconds, in tests.
    """

    def __init__(self, *, read_wall=None, read_boot=None):
        self.read_wall = read_wall
        self.read_boot = read_boot
        self.is_system = read_wall is None and read_boot is None
        self.offset = &self.own_offset
        cdef int64_t boot_ns
        self.own_offset = self._difference_us(&boot_ns)

    cdef inline int64_t _wall_ns(self) except? -1:
        return _read_ns(CLOCK_REALTIME) if self.read_wall is None else self.read_wall()

    cdef inline int64_t _boot_ns(self) except? -1:
        return _read_ns(EPHEMERA_BOOT_CLOCK) if self.read_boot is None else self.read_boot()

    cdef int64_t _difference_us(self, int64_t *boot_ns) except? -1:
        """Read both clocks; return how far the wall clock is ahead of the boot-time clock."""
        # The wall clock first: a pause between the two readings makes the difference too small, and
        # the next reading corrects that. The other way round it would be too large, for good.
        cdef int64_t wall_ns = self._wall_ns()
        boot_ns[0] = self._boot_ns()
        # Rounded up: rounded down, the clock could be a microsecond behind the wall clock, and a
        # remaining TTL a millisecond larger than the one that was given.
        return (wall_ns - boot_ns[0] + 999) // 1000

    def now_ms(self) -> int:
        """Return the instant of this operation in UTC milliseconds."""
        return self.read_ms()

    def now_us(self) -> int:
        """Return the same instant in UTC microseconds."""
        return self.read_us()

    cdef int64_t read_ms(self) except? -1:
        cdef int64_t boot_us
        # The offset changes only when the wall clock is set: comparing the two clocks once in a
        # millisecond is enough, and spares a reading otherwise.
        if self.is_system:
            boot_us = _read_ns(EPHEMERA_BOOT_CLOCK) // 1000
            if boot_us < self.compare_from_us:
                return (boot_us + eph_load(self.offset)) // 1000
        return self.read_us() // 1000

    cdef int64_t read_us(self) except? -1:
        cdef int64_t boot_ns
        cdef int64_t seen = self._difference_us(&boot_ns)
        cdef int64_t offset = eph_load(self.offset)
        if seen > offset:
            offset = self._believe(seen, offset)
        self.compare_from_us = boot_ns // 1000 + 1000
        return boot_ns // 1000 + offset

    cdef int64_t _believe(self, int64_t seen, int64_t offset) noexcept:
        while seen > offset:
            if seen - offset > _STEP_US_MAX:
                self.ignores_wall = True
                return offset
            if eph_swap(self.offset, offset, seen):
                break
            offset = eph_load(self.offset)
        self.ignores_wall = False
        return eph_load(self.offset)

    cdef void _raise_offset(self, int64_t to) noexcept:
        cdef int64_t offset = eph_load(self.offset)
        while to > offset and not eph_swap(self.offset, offset, to):
            offset = eph_load(self.offset)

    def resync(self) -> None:
        """Believe the wall clock, however far ahead it is. Never steps back."""
        cdef int64_t boot_ns
        self._raise_offset(self._difference_us(&boot_ns))
        self.ignores_wall = False

    def never_before(self, int64_t instant_ms) -> None:
        """Let time go on from `instant_ms` if the clocks stand before it."""
        cdef int64_t instant_us = min(instant_ms, _INSTANT_MS_MAX) * 1000
        self._raise_offset(instant_us - self._boot_ns() // 1000)

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

    def us(self) -> int:
        """Return the instant in UTC microseconds: whole milliseconds where the clock knows no more."""
        return self.now_ms() * 1000 if self.steady is None else self.steady.read_us()
