# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""How often a command took how long: a histogram in nanoseconds with eight buckets a power of two.

`latency-tracking` is on by default, so counting must cost next to nothing: an index from the position of the
highest bit and the three bits below it, and one addition. A bucket is at most an eighth wide.
"""
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t
from libc.string cimport memset

cdef enum:
    FIRST_STEP_BIT = 10          # the steps of LATENCY HISTOGRAM begin with 1,024 ns


cdef inline int64_t _upper_ns(int index) noexcept:
    """The longest that a bucket holds."""
    if index < SUB_BUCKETS:
        return index + 1
    return <int64_t> (SUB_BUCKETS + index % SUB_BUCKETS + 1) << (index // SUB_BUCKETS - 1)


cdef class Histogram:
    """The durations of one command's calls.

    >>> taken = Histogram()
    >>> for micros in (1, 3, 4, 100):
    ...     taken.add(micros * 1000)
    >>> taken.calls, taken.cumulative(), taken.percentile_us(50)
    (4, {1: 1, 4: 3, 132: 4}, 3.072)
    """

    def __dealloc__(self):
        PyMem_Free(self.counts)

    cdef bint allocate(self) noexcept:
        """Make room for the counts, and return whether there is memory for them."""
        self.counts = <int64_t *> PyMem_Calloc(BUCKETS, sizeof(int64_t))
        return self.counts != NULL

    def add(self, int64_t ns) -> None:
        count_duration(self, ns)

    def reset(self) -> None:
        if self.counts != NULL:
            memset(self.counts, 0, BUCKETS * sizeof(int64_t))

    @property
    def calls(self) -> int:
        cdef int64_t total = 0
        cdef int index
        for index in range(BUCKETS if self.counts != NULL else 0):
            total += self.counts[index]
        return total

    def cumulative(self) -> dict[int, int]:
        """How many calls took at most so many microseconds, for each power of two at which there are more.

        The microseconds are those that Redis shows: the end of its own bucket, which is 1/128 wide.
        """
        cdef int64_t total = 0, shown = 0, step_ns = 1 << FIRST_STEP_BIT
        cdef int index
        steps = {}
        for index in range(BUCKETS if self.counts != NULL else 0):
            total += self.counts[index]
            if _upper_ns(index) == step_ns:
                if total > shown:
                    steps[(step_ns + (step_ns >> 7) - 1) // 1000] = total
                    shown = total
                step_ns <<= 1
        if total > shown:
            steps[_upper_ns(BUCKETS - 1) // 1000] = total
        return steps

    def percentile_us(self, double percent) -> float:
        """The microseconds that so many percent of the calls did not exceed; 0 without calls."""
        cdef double wanted = self.calls * percent / 100
        cdef int64_t total = 0
        cdef int index
        for index in range(BUCKETS if self.counts != NULL else 0):
            total += self.counts[index]
            if total and total >= wanted:
                return _upper_ns(index) / 1000.0
        return 0.0
