# cython: language_level=3, boundscheck=False, wraparound=False
"""Where the branches of one tree lead, kept beside its pages.

In a large tree the branches above the leaves are thousands of pages, scattered over the file: each of
them is a wait for memory, and more for where in memory it is. What a search needs of a branch is little,
and is kept here close together: for each of its nodes the eight bytes of the key that follow those which
all its keys share (the sample), and the page that it leads to. A branch is learned when a search first
comes to it, and of a state that no longer changes.

    board   page number u64, count u32, size of the shared bytes u32, the shared bytes, filled up to eight;
            a sample u64 for each node but the first, which is the lowest; a sign u64 for each node
    sign    the number of the page below, or, with BOARD, where the board is that was learned of it

A sample is in big endian, filled with zeros, so that samples that differ tell the order of their keys.
Those that are equal do not: then the branch's page must say.
"""
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ephemera.engines.local._lmdb cimport (
    DEPTH_MAX, NODE_BYTES, Node, count_nodes, find_node, page_below, u64,
)
from ephemera.engines.local._mapping cimport eph_prefetch

cdef enum:
    ROOM_FIRST = 4 * 1024
    ROOM_MAX = 16 * 1024 * 1024     # of some 9,000 branches; those beyond it are read from their pages
    UNTOLD = -1

cdef uint64_t BOARD = <uint64_t> 1 << 63

cdef struct Board:
    uint64_t page
    uint32_t count
    uint32_t shared


cdef class Signs:
    """The signs of one tree in one state, for all who read that. Everything is at an offset from `start`,
    which moves as there are more."""

    def __dealloc__(self):
        PyMem_RawFree(self.start)

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
        cdef uint64_t leads = u64(self.start + sign[0])
        cdef int64_t chosen
        cdef int depth = 0
        while leads & BOARD:
            board = <const Board *> (self.start + (leads ^ BOARD))
            chosen = _choose(board, key, size)
            depth += 1
            if chosen == UNTOLD or depth == DEPTH_MAX:
                sign[0] = NO_SIGN
                return board.page
            at = _signs_of(board) + 8 * chosen
            sign[0] = at - self.start
            leads = u64(at)
        return leads

    cdef bint learn(self, uint64_t sign, const char *page, uint64_t page_bytes) noexcept:
        """Keep what a branch's page says, which `sign` leads to; whether there was room, and all is in order."""
        cdef uint64_t count = count_nodes(page, page_bytes), at = self.size, leads = at | BOARD
        cdef uint64_t shared, size
        cdef Board *board
        if self.is_full or count < 2 or not _share(page, page_bytes, count, &shared):
            return False
        size = sizeof(Board) + _filled(shared) + 8 * (count - 1) + 8 * count
        if not self._make_room(size):
            return False
        board = <Board *> (self.start + at)
        board.page, board.count, board.shared = u64(page), <uint32_t> count, <uint32_t> shared
        if not _fill(board, page, page_bytes):
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
        start = <char *> PyMem_RawRealloc(self.start, room) if room <= ROOM_MAX else NULL
        if start == NULL:
            self.is_full = True
            return False
        self.start, self.room = start, room
        return True


cdef inline uint64_t _filled(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t> 7


cdef inline char *_shared_of(const Board *board) noexcept nogil:
    return <char *> board + sizeof(Board)


cdef inline uint64_t *_samples_of(const Board *board) noexcept nogil:
    """The sample of a node at its index; there is none at 0."""
    return <uint64_t *> (_shared_of(board) + _filled(board.shared)) - 1


cdef inline char *_signs_of(const Board *board) noexcept nogil:
    return <char *> (_samples_of(board) + board.count)


cdef inline uint64_t _sample(const char *at, uint64_t size) noexcept nogil:
    cdef uint64_t sample = 0, i
    if size >= 8:
        return _swapped(u64(at))
    for i in range(size):
        sample |= <uint64_t> <unsigned char> at[i] << (56 - 8 * i)
    return sample


cdef extern from *:
    uint64_t _swapped "__builtin_bswap64"(uint64_t n) noexcept nogil


cdef inline int64_t _choose(const Board *board, const char *key, Py_ssize_t size) noexcept nogil:
    """The node that leads to a key, or UNTOLD."""
    cdef const uint64_t *samples = _samples_of(board)
    cdef uint64_t low = 1, high = board.count, middle, wanted, eighth
    cdef int order
    for eighth in range(<uint64_t> 1, <uint64_t> 8):
        eph_prefetch(samples + (eighth * high >> 3))
    order = memcmp(key, _shared_of(board), min(<uint64_t> size, <uint64_t> board.shared))
    if order < 0 or (order == 0 and <uint64_t> size < board.shared):
        return 0
    if order > 0:
        return high - 1
    wanted = _sample(key + board.shared, size - board.shared)
    while low < high:
        middle = (low + high) >> 1
        if samples[middle] <= wanted:
            low = middle + 1
        else:
            high = middle
    return UNTOLD if low > 1 and samples[low - 1] == wanted else low - 1


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


cdef bint _fill(Board *board, const char *page, uint64_t page_bytes) noexcept nogil:
    """Write a board's samples and signs; False where the keys are not in their order."""
    cdef uint64_t *samples = _samples_of(board)
    cdef char *signs = _signs_of(board)
    cdef const char *at
    cdef Node node
    cdef uint64_t i, below
    for i in range(board.count):
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
            memcpy(_shared_of(board), at, board.shared)
        elif memcmp(at, _shared_of(board), board.shared) != 0:
            return False
        samples[i] = _sample(at + board.shared, node.key_size - board.shared)
        if i > 1 and samples[i] < samples[i - 1]:
            return False
    return True
