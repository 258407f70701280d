# cython: language_level=3, boundscheck=False, wraparound=False
"""Where the branches of one tree lead, kept beside its pages.

In a large tree the branches above the leaves are thousands of pages, scattered over the file: each of
them is a wait for memory, and more for where in memory it is. What a search needs of a branch is little,
and is kept here close together: for each of its nodes the eight bytes of the key that follow those which
all its keys share (the sample), and the page that it leads to. A branch is learned when a search first
comes to it, and of a state that no longer changes.

    branch  page number u64, size of the shared bytes u32, size of the keys u32 if all have the same, else 0;
            the first sample of each eight; the shared bytes; then from the next line of memory on a sample u64
            for each node, in lines of eight, and a link u64 for each node, too
    link    the number of the page below and, once that was seen to be a leaf, from COUNT_AT on where its middle
            nodes lie; or, with CACHED, where the branch is that was learned of it, and how many nodes that has

A sample is in big endian, filled with zeros, so that samples that differ tell the order of their keys; the first
node is the lowest, and its sample 0. Samples that are equal tell only where they have all of their keys, and these
are of one size. Where they do not tell, the branch's page must say.

Cached branches are far away, too, in a large tree. A search waits twice for one: for the first lines, which a link
tells the size of, and then for one line of samples and one of links. Whatever is in a line is compared without a branch
of the processor's, which could only guess.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy
from posix.mman cimport madvise
from posix.stdlib cimport posix_memalign

from ephemera.engines.local._lmdb cimport (
    DEPTH_MAX, HEADER_BYTES, NODE_BYTES, Node, count_nodes, find_node, page_below, u16, u64,
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
    ROOM_MAX = 16 * 1024 * 1024     # of some 8,000 branches; those beyond it are read from their pages
    COUNT_MAX = 0xFFFF
    MIDDLES_FROM = 8                # nodes of a leaf: with fewer there is nothing to prefetch
    LINE = 8                        # samples or links in a line of memory
    UNDECIDED = -1

cdef uint64_t CACHED = <uint64_t> 1 << 63

cdef struct CachedBranch:
    uint64_t page
    uint32_t shared
    uint32_t key_size


cdef class BranchCache:
    """The cache of one tree in one state, for all who read that. Everything is at an offset from `start`,
    which moves as there are more."""

    def __dealloc__(self):
        free(self.start)

    cdef bint begin(self, uint64_t state, uint64_t root) noexcept:
        """Note the page of a state's root, as the link at 0; whether there was room."""
        if root != page_in(root) or not self._make_room(8):
            return False
        memcpy(self.start, &root, 8)
        self.state, self.size = state, 8
        return True

    cdef uint64_t follow(self, uint64_t *link, const char *key, Py_ssize_t size) noexcept:
        """Where the cache leads to from `link`, which becomes the last one; with NO_LINK where the samples
        do not tell, and a search must go on in that page."""
        cdef const CachedBranch *branch
        cdef const char *at
        cdef uint64_t count, leads = u64(self.start + link[0])
        cdef int64_t chosen
        cdef int depth = 0
        while leads & CACHED:
            branch = <const CachedBranch *> (self.start + page_in(leads))
            count = leads >> COUNT_AT & COUNT_MAX
            chosen = _choose(branch, count, key, size)
            depth += 1
            if chosen == UNDECIDED or depth == DEPTH_MAX:
                link[0] = NO_LINK
                return branch.page
            at = <const char *> (_links_of(branch, count) + chosen)
            link[0] = at - self.start
            leads = u64(at)
        return leads

    cdef void note_leaf(self, uint64_t link, const char *page, uint64_t page_bytes) noexcept:
        """Keep where the nodes lie that a search in this leaf, which `link` leads to, looks at first."""
        cdef uint64_t count = count_nodes(page, page_bytes), half = count >> 1
        cdef uint64_t leads = u64(self.start + link)
        if count >= MIDDLES_FROM:
            leads |= (
                _part_of(page, page_bytes, half)
                | _part_of(page, page_bytes, half >> 1) << PART_BITS
                | _part_of(page, page_bytes, (half + 1 + count) >> 1) << 2 * PART_BITS
            ) << COUNT_AT
            memcpy(self.start + link, &leads, 8)

    cdef bint learn(self, uint64_t link, const char *page, uint64_t page_bytes) noexcept:
        """Keep what a branch's page says, which `link` leads to; whether there was room, and all is in order."""
        cdef uint64_t count = count_nodes(page, page_bytes), at = _in_lines(self.size)
        cdef uint64_t leads = at | count << COUNT_AT | CACHED
        cdef uint64_t shared, size
        cdef CachedBranch *branch
        if self.is_full or not 2 <= count <= COUNT_MAX or not _share(page, page_bytes, count, &shared):
            return False
        size = _head_bytes(count, shared) + 2 * 8 * LINE * _lines(count)
        if not self._make_room(at + size):
            return False
        branch = <CachedBranch *> (self.start + at)
        branch.page, branch.shared = u64(page), <uint32_t> shared
        if not _fill(branch, count, page, page_bytes):
            return False
        self.size = at + size
        memcpy(self.start + link, &leads, 8)
        return True

    cdef bint _make_room(self, uint64_t size) noexcept:
        """Have room for so much in all."""
        cdef uint64_t room = max(self.room, <uint64_t> ROOM_FIRST)
        cdef char *start
        while room < size:
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


cdef inline uint64_t _in_lines(uint64_t size) noexcept nogil:
    return (size + LINE_BYTES - 1) & ~<uint64_t> (LINE_BYTES - 1)


cdef inline uint64_t _lines(uint64_t count) noexcept nogil:
    return (count + LINE - 1) // LINE


cdef inline uint64_t *_firsts_of(const CachedBranch *branch) noexcept nogil:
    """The first sample of each line of them."""
    return <uint64_t *> (branch + 1)


cdef inline char *_shared_of(const CachedBranch *branch, uint64_t count) noexcept nogil:
    return <char *> (_firsts_of(branch) + _lines(count))


cdef inline uint64_t _head_bytes(uint64_t count, uint64_t shared) noexcept nogil:
    return _in_lines(sizeof(CachedBranch) + 8 * _lines(count) + shared)


cdef inline uint64_t *_samples_of(const CachedBranch *branch, uint64_t count) noexcept nogil:
    return <uint64_t *> (<char *> branch + _head_bytes(count, branch.shared))


cdef inline uint64_t *_links_of(const CachedBranch *branch, uint64_t count) noexcept nogil:
    return _samples_of(branch, count) + LINE * _lines(count)


cdef inline uint64_t _part_of(const char *page, uint64_t page_bytes, uint64_t index) noexcept nogil:
    """In which part of a page a node begins."""
    cdef uint64_t at = HEADER_BYTES + <uint64_t> u16(page + HEADER_BYTES + 2 * index)
    return at // part_bytes(page_bytes) & (PARTS - 1)


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
    const CachedBranch *branch, uint64_t count, const char *key, Py_ssize_t size
) noexcept nogil:
    """The node that leads to a key, or UNDECIDED."""
    cdef const char *shared = _shared_of(branch, count)
    cdef const uint64_t *samples
    cdef uint64_t wanted, line, chosen
    cdef int order
    eph_prefetch(branch)
    eph_prefetch(<const char *> branch + LINE_BYTES)
    eph_prefetch(shared)
    order = memcmp(key, shared, min(<uint64_t> size, <uint64_t> branch.shared))
    if order < 0 or (order == 0 and <uint64_t> size < branch.shared):
        return 0
    if order > 0:
        return count - 1
    wanted = _sample(key + branch.shared, size - branch.shared)
    line = LINE * (_count_up_to(_firsts_of(branch), _lines(count), wanted) - 1)
    eph_prefetch(_links_of(branch, count) + line)
    samples = _samples_of(branch, count)
    chosen = line + _count_up_to(samples + line, min(count - line, <uint64_t> LINE), wanted) - 1
    if samples[chosen] == wanted and chosen > 0 and not _has_whole(branch, size):
        return UNDECIDED
    return chosen


cdef inline uint64_t _count_up_to(const uint64_t *samples, uint64_t count, uint64_t wanted) noexcept nogil:
    """How many samples are not above this one. The first, of the lowest node, is not."""
    cdef uint64_t i, n = 0
    for i in range(count):
        n += samples[i] <= wanted
    return n


cdef inline bint _has_whole(const CachedBranch *branch, uint64_t size) noexcept nogil:
    """Whether the samples have all that is not shared of the branch's keys and of one of this size."""
    return size == branch.key_size and size <= branch.shared + 8


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


cdef bint _fill(CachedBranch *branch, uint64_t count, const char *page, uint64_t page_bytes) noexcept nogil:
    """Write a branch's samples and links; False where the keys are not in their order."""
    cdef uint64_t *samples = _samples_of(branch, count)
    cdef uint64_t *links = _links_of(branch, count)
    cdef char *shared = _shared_of(branch, count)
    cdef const char *at
    cdef Node node
    cdef uint64_t i
    samples[0] = 0
    for i in range(count):
        at = find_node(page, page_bytes, i, &node)
        if at == NULL or page_below(&node) != page_in(page_below(&node)):
            return False
        links[i] = page_below(&node)
        if i == 0:
            continue
        at += NODE_BYTES
        if node.key_size < branch.shared:
            return False
        if i == 1:
            branch.key_size = node.key_size
            memcpy(shared, at, branch.shared)
        elif memcmp(at, shared, branch.shared) != 0:
            return False
        if node.key_size != branch.key_size:
            branch.key_size = 0
        samples[i] = _sample(at + branch.shared, node.key_size - branch.shared)
        if samples[i] < samples[i - 1]:
            return False
    for i in range(_lines(count)):
        _firsts_of(branch)[i] = samples[LINE * i]
    return True
