# cython: language_level=3, boundscheck=False, wraparound=False
"""Where the branches of one tree lead, kept beside its pages.

In a large tree the branches above the leaves are thousands of pages, scattered over the file: each of
them is a wait for memory, and more for where in memory it is. What a search needs of a branch is little,
and is kept here close together: for each of its nodes the eight bytes of the key that follow those which
all its keys share (the sample), and the page that it leads to. A branch is learned when a search first
comes to it, and of a state that no longer changes.

    board   page number u64, size of the shared bytes u64; a sample u64 for each node but the first, which is
            the lowest; a sign u64 for each node; the shared bytes, filled up to eight
    sign    the number of the page below, or, with BOARD, where the board is that was learned of it, and
            from COUNT_AT on how many nodes that has

A sample is in big endian, filled with zeros, so that samples that differ tell the order of their keys.
Those that are equal do not: then the branch's page must say.

Boards are far away, too, in a large tree. A sign says how long the next one is, so that all of it that a search
begins with can be asked for at once; and the signs are asked for with the last samples before them.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy
from posix.mman cimport madvise
from posix.stdlib cimport posix_memalign

from ephemera.engines.local._lmdb cimport (
    DEPTH_MAX, NODE_BYTES, Node, count_nodes, find_node, page_below, u64,
)
from ephemera.engines.local._mapping cimport LINE_BYTES, eph_prefetch

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE
    #define EPH_LARGE_PAGES MADV_HUGEPAGE
    #else
    #define EPH_LARGE_PAGES -1
    #endif
    """
    int EPH_LARGE_PAGES

cdef enum:
    LARGE_PAGE_BYTES = 2 * 1024 * 1024
    ROOM_FIRST = 4 * 1024
    ROOM_MAX = 16 * 1024 * 1024     # of some 9,000 branches; those beyond it are read from their pages
    COUNT_AT = 40                   # the bits of a sign from there on, up to BOARD
    COUNT_MAX = 0xFFFF
    FEW = 16                        # samples that are asked for together
    UNTOLD = -1

cdef uint64_t BOARD = <uint64_t> 1 << 63
cdef uint64_t OFFSET = (<uint64_t> 1 << COUNT_AT) - 1

cdef struct Board:
    uint64_t page
    uint64_t shared


cdef class Signs:
    """The signs of one tree in one state, for all who read that. Everything is at an offset from `start`,
    which moves as there are more."""

    def __dealloc__(self):
        free(self.start)

    cdef bint begin(self, uint64_t state, uint64_t root) noexcept:
        """Note the page of a state's root, as the sign at 0; whether there was room."""
        if root & BOARD or not self._make_room(8):
            return False
        memcpy(self.start, &root, 8)
        self.state, self.size = state, 8
        return True

    cdef uint64_t follow(self, uint64_t *sign, const char *key, Py_ssize_t size) noexcept:
        """The page that the signs lead to from `sign`, which becomes the last one; or NO_SIGN where the samples
        do not tell, and a search must go on in that page."""
        cdef const Board *board
        cdef const char *at
        cdef uint64_t count, leads = u64(self.start + sign[0])
        cdef int64_t chosen
        cdef int depth = 0
        while leads & BOARD:
            board = <const Board *> (self.start + (leads & OFFSET))
            count = leads >> COUNT_AT & COUNT_MAX
            chosen = _choose(board, count, key, size)
            depth += 1
            if chosen == UNTOLD or depth == DEPTH_MAX:
                sign[0] = NO_SIGN
                return board.page
            at = _signs_of(board, count) + 8 * chosen
            sign[0] = at - self.start
            leads = u64(at)
        return leads

    cdef bint learn(self, uint64_t sign, const char *page, uint64_t page_bytes) noexcept:
        """Keep what a branch's page says, which `sign` leads to; whether there was room, and all is in order."""
        cdef uint64_t count = count_nodes(page, page_bytes), at = self.size
        cdef uint64_t leads = at | count << COUNT_AT | BOARD
        cdef uint64_t shared, size
        cdef Board *board
        if self.is_full or not 2 <= count <= COUNT_MAX or not _share(page, page_bytes, count, &shared):
            return False
        size = sizeof(Board) + 8 * (count - 1) + 8 * count + _filled(shared)
        if not self._make_room(size):
            return False
        board = <Board *> (self.start + at)
        board.page, board.shared = u64(page), shared
        if not _fill(board, count, page, page_bytes):
            return False
        self.size += size
        memcpy(self.start + sign, &leads, 8)
        return True

    cdef bint _make_room(self, uint64_t size) noexcept:
        cdef uint64_t room = max(self.room, <uint64_t> ROOM_FIRST)
        cdef char *start
        while room < self.size + size:
            room *= 2
        if room == self.room:
            return True
        start = _allocate(room) if room <= ROOM_MAX else NULL
        if start == NULL:
            self.is_full = True
            return False
        if self.size:
            memcpy(start, self.start, self.size)
        free(self.start)
        self.start, self.room = start, room
        return True


cdef char *_allocate(uint64_t room) noexcept nogil:
    """So much memory, in large pages if it is worth them; or NULL."""
    cdef void *start = NULL
    cdef bint is_large = room >= LARGE_PAGE_BYTES
    if posix_memalign(&start, LARGE_PAGE_BYTES if is_large else LINE_BYTES, room) != 0:
        return NULL
    if is_large:
        madvise(start, room, EPH_LARGE_PAGES)
    return <char *> start


cdef inline uint64_t _filled(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t> 7


cdef inline uint64_t *_samples_of(const Board *board) noexcept nogil:
    """The sample of a node at its index; there is none at 0."""
    return <uint64_t *> (board + 1) - 1


cdef inline char *_signs_of(const Board *board, uint64_t count) noexcept nogil:
    return <char *> (_samples_of(board) + count)


cdef inline char *_shared_of(const Board *board, uint64_t count) noexcept nogil:
    return _signs_of(board, count) + 8 * count


cdef inline uint64_t _sample(const char *at, uint64_t size) noexcept nogil:
    cdef uint64_t sample = 0, i
    if size >= 8:
        return _swapped(u64(at))
    for i in range(size):
        sample |= <uint64_t> <unsigned char> at[i] << (56 - 8 * i)
    return sample


cdef extern from *:
    uint64_t _swapped "__builtin_bswap64"(uint64_t n) noexcept nogil


cdef inline int64_t _choose(
    const Board *board, uint64_t count, const char *key, Py_ssize_t size
) noexcept nogil:
    """The node that leads to a key, or UNTOLD."""
    cdef const uint64_t *samples = _samples_of(board)
    cdef const char *shared = _shared_of(board, count)
    cdef uint64_t low = 1, high = count, wanted, eighth
    cdef int order
    eph_prefetch(board)
    eph_prefetch(shared)
    for eighth in range(<uint64_t> 1, <uint64_t> 8):
        eph_prefetch(samples + (eighth * count >> 3))
    order = memcmp(key, shared, min(<uint64_t> size, board.shared))
    if order < 0 or (order == 0 and <uint64_t> size < board.shared):
        return 0
    if order > 0:
        return count - 1
    wanted = _sample(key + board.shared, size - board.shared)
    while high - low > FEW:
        _halve(samples, wanted, &low, &high)
    _foresee(samples + low, samples + high)
    _foresee(samples + low + count - 1, samples + high + count)
    while low < high:
        _halve(samples, wanted, &low, &high)
    return UNTOLD if low > 1 and samples[low - 1] == wanted else low - 1


cdef inline void _halve(
    const uint64_t *samples, uint64_t wanted, uint64_t *low, uint64_t *high
) noexcept nogil:
    cdef uint64_t middle = (low[0] + high[0]) >> 1
    if samples[middle] <= wanted:
        low[0] = middle + 1
    else:
        high[0] = middle


cdef inline void _foresee(const uint64_t *at, const uint64_t *end) noexcept nogil:
    """Fetch a few words, which may be in three lines."""
    eph_prefetch(at)
    eph_prefetch(at + (end - at) // 2)
    eph_prefetch(end - 1)


cdef bint _share(
    const char *page, uint64_t page_bytes, uint64_t count, uint64_t *shared
) noexcept nogil:
    """How many first bytes the first and the last key of a branch have in common."""
    cdef Node first, last
    cdef const char *a = find_node(page, page_bytes, 1, &first)
    cdef const char *b = find_node(page, page_bytes, count - 1, &last)
    cdef uint64_t most, n = 0
    if a == NULL or b == NULL:
        return False
    most = min(first.key_size, last.key_size)
    while n < most and a[NODE_BYTES + n] == b[NODE_BYTES + n]:
        n += 1
    shared[0] = n
    return True


cdef bint _fill(Board *board, uint64_t count, const char *page, uint64_t page_bytes) noexcept nogil:
    """Write a board's samples and signs; False where the keys are not in their order."""
    cdef uint64_t *samples = _samples_of(board)
    cdef char *signs = _signs_of(board, count)
    cdef char *shared = _shared_of(board, count)
    cdef const char *at
    cdef Node node
    cdef uint64_t i, below
    for i in range(count):
        at = find_node(page, page_bytes, i, &node)
        if at == NULL:
            return False
        below = page_below(&node)
        memcpy(signs + 8 * i, &below, 8)
        if i == 0:
            continue
        at += NODE_BYTES
        if node.key_size < board.shared:
            return False
        if i == 1:
            memcpy(shared, at, board.shared)
        elif memcmp(at, shared, board.shared) != 0:
            return False
        samples[i] = _sample(at + board.shared, node.key_size - board.shared)
        if i > 1 and samples[i] < samples[i - 1]:
            return False
    return True
