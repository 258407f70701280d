# cython: language_level=3, boundscheck=False, wraparound=False
"""The trees of the base tier's file, read where their pages are mapped.

To read one row through LMDB's binding makes objects, and gives up the GIL and takes it again: more
work than the look itself. A read transaction keeps every page of its state as it is, so the way from
a root to a row can be walked here. LMDB alone writes, keeps the transactions and says what is
current; and it is asked whenever something here is not as it should be.

This is the format of LMDB 1.0 (data version 3), on machines of 64 bits, little endian. Elsewhere no
tree is sure, and LMDB is asked for everything.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from ephemera.core._access cimport Slice, compare, slice_of
from ephemera.engines.local._lmdb cimport (
    BIG, BRANCH, DEPTH_MAX, FIXED, HEADER_BYTES, LAST_PAGE_AT, LEAF, META_BYTES, NAMES_ROOT_AT, NODE_BYTES, Node,
    STATE_AT, TREE_BYTES, count_nodes, find_node, flags_of, page_below, u16, u32, u64,
)
from ephemera.engines.local._mapping cimport LINE_BYTES, eph_prefetch
from ephemera.engines.local._branch_cache cimport (
    NO_LINK, PART_BITS, PARTS, BranchCache, middles_in, page_in, part_bytes,
)

import sys

cdef extern from *:
    """
    #define EPH_SEEN() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    """
    void EPH_SEEN() noexcept nogil

cdef enum:
    STEPS_FORESEEN = 3      # of a search, at once
    STEPS_OF_MIDDLES = 2

cdef uint64_t NOWHERE = <uint64_t> -1     # the root of an empty tree
cdef uint32_t MAGIC = 0xBEEFC0DE
cdef uint32_t VERSION = 3
cdef bint IS_FORMAT_OURS = sys.byteorder == "little" and sizeof(void *) == 8


cdef class Tree:
    """The tree of a name, as a read transaction sees it, which this keeps open.

    `mapping` is the file, which has `file_bytes` now. `learned` is the cache of an earlier tree of this
    file and name, and serve this one too if nothing was written since. What `find` finds stays where it is
    until this goes, or the transaction is ended.
    """

    def __init__(
        self, txn, Mapping mapping not None, uint64_t file_bytes, bytes name not None,
        BranchCache learned=None
    ):
        cdef uint64_t names_root = 0
        cdef const char *start = <const char *> mapping.start
        cdef Slice found
        self.txn, self.mapping, self.state = txn, mapping, txn.id()
        self.page_bytes = txn.stat()["psize"]
        if not IS_FORMAT_OURS or file_bytes < 2 * self.page_bytes + META_BYTES:
            return
        # As few as two commits later it is overwritten: then this tree is not sure.
        if not self._read_meta(start + (self.state & 1) * self.page_bytes, &names_root):
            return
        self.pages = min(self.pages, min(file_bytes, <uint64_t> mapping.size) // self.page_bytes)
        if self._find_from(
            names_root, 0, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name) + 1, &found
        ) == PRESENT and found.size == TREE_BYTES:
            self.root = u64(found.start + TREE_BYTES - 8)
            self.is_sure = self.root == NOWHERE or self._has_cache(learned)

    def get(self, bytes key not None):
        """What is stored of a key, or None. Raises ValueError where only LMDB can say."""
        cdef Slice found
        cdef Look look = self.find(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), &found)
        if look == UNSURE:
            raise ValueError("a page is not what it should be")
        return PyBytes_FromStringAndSize(found.start, found.size) if look == PRESENT else None

    def abandon(self) -> None:
        """Look at nothing any more: the transaction was ended, or is that of a fork's parent, to be let go
        and not ended."""
        self.is_sure = False
        self.txn = None

    cdef Look find(self, const char *key, Py_ssize_t size, Slice *value) noexcept:
        """Look for a key; `value` is where its data lies, if it is present."""
        if not self.is_sure:
            return UNSURE
        if self.root == NOWHERE:
            return ABSENT
        cdef int prefetched = 0
        cdef uint64_t number = self._leaf(key, size, &prefetched)
        return self._find_from(number, prefetched, key, size, value)

    cdef uint64_t _leaf(self, const char *key, Py_ssize_t size, int *prefetched) noexcept:
        """The number of the leaf for a key, or of a branch above it that the cache does not reach beyond; and how many
        steps of a search there are on their way from memory."""
        cdef uint64_t link = 0, leads = self.root
        cdef const char *page
        cdef int depth
        for depth in range(DEPTH_MAX):
            leads = self.cache.follow(&link, key, size)
            if middles_in(leads):
                prefetched[0] = STEPS_OF_MIDDLES
                self._prefetch_leaf(leads)
                break
            page = self._page(leads)
            if link == NO_LINK or page == NULL:
                break
            if not flags_of(page) & BRANCH:
                self.cache.note_leaf(link, page, self.page_bytes)
                break
            if not self.cache.learn(link, page, self.page_bytes):
                break
        return page_in(leads)

    cdef void _prefetch_leaf(self, uint64_t leads) noexcept:
        """Have on its way from memory what a search in a leaf begins with: where a page is takes longer to find out
        than what is in it, and the answer serves all of these."""
        cdef const char *page = <const char *> self.mapping.start + page_in(leads) * self.page_bytes
        cdef uint64_t middles = middles_in(leads)
        cdef int i
        eph_prefetch(page)
        eph_prefetch(page + LINE_BYTES)
        for i in range(3):
            eph_prefetch(page + (middles & (PARTS - 1)) * part_bytes(self.page_bytes))
            middles >>= PART_BITS

    cdef bint _has_cache(self, BranchCache learned):
        if learned is not None and learned.state == self.state:
            self.cache = learned
            return True
        self.cache = BranchCache()
        return self.cache.begin(self.state, self.root)

    cdef bint _read_meta(self, const char *page, uint64_t *names_root) noexcept:
        cdef char meta[META_BYTES]
        memcpy(meta, page, META_BYTES)
        EPH_SEEN()
        if (
            u32(meta + HEADER_BYTES) != MAGIC
            or u32(meta + HEADER_BYTES + 4) != VERSION
            or u64(meta + STATE_AT) != self.state
            or u64(page + STATE_AT) != self.state
        ):
            return False
        names_root[0] = u64(meta + NAMES_ROOT_AT)
        self.pages = u64(meta + LAST_PAGE_AT) + 1
        return True

    cdef Look _find_from(
        self, uint64_t number, int prefetched, const char *key, Py_ssize_t size, Slice *value
    ) noexcept:
        """Look for a key from this page on, where some steps of a search are `prefetched`."""
        cdef const char *page
        cdef const char *at
        cdef Node node
        cdef uint16_t flags
        cdef int found, depth
        for depth in range(DEPTH_MAX):
            page = self._page(number)
            if page == NULL:
                return UNSURE
            flags = flags_of(page)
            if flags & FIXED or not flags & (BRANCH | LEAF):
                return UNSURE
            found = _search(
                page, self.page_bytes, (flags & BRANCH) != 0, prefetched, key, size, &at, &node
            )
            if found <= 0:
                return ABSENT if found == 0 else UNSURE
            if flags & LEAF:
                return self._data(page, at, &node, value)
            number, prefetched = page_below(&node), 0
        return UNSURE

    cdef Look _data(
        self, const char *page, const char *at, const Node *node, Slice *value
    ) noexcept:
        """Where the data of a leaf's node is."""
        cdef const char *end = page + self.page_bytes
        at += NODE_BYTES + node.key_size + (node.key_size & 1)
        value.size = node.low
        if node.flags & BIG:
            if at + 8 > end:
                return UNSURE
            page = self._page(u64(at))
            if page == NULL:
                return UNSURE
            at, end = page + HEADER_BYTES, <const char *> self.mapping.start + self.pages * self.page_bytes
        if at > end or value.size > end - at:
            return UNSURE
        value.start = at
        return PRESENT

    cdef const char *_page(self, uint64_t number) noexcept:
        """Where a page is; NULL when there is none of this number in this state."""
        cdef const char *page
        if number >= self.pages:
            return NULL
        page = <const char *> self.mapping.start + number * self.page_bytes
        eph_prefetch(page + LINE_BYTES)     # most pages say there where their nodes are
        return page if u64(page) == number and u64(page + 8) <= self.state else NULL


cdef class Walk:
    """The rows of a tree one after the other, from the first that is not below `bound`; in reverse, from the
    last that is. Where they lie, and until the tree is abandoned.

    Whether their keys are in order is for the caller to see: a page may be damaged.
    """

    def __init__(self, Tree tree not None, bytes bound not None, *, bint is_reverse):
        cdef Slice place = slice_of(bound)
        self.tree, self.is_reverse, self.depth = tree, is_reverse, -1
        if tree.is_sure and tree.root != NOWHERE:
            self.is_lost = self._descend(tree.root, &place) == UNSURE

    def __iter__(self):
        return self

    def __next__(self):
        """Key and data. Raises ValueError where only LMDB can say."""
        cdef Slice key, value
        cdef Look look = self.step(&key, &value)
        if look == UNSURE:
            raise ValueError("a page is not what it should be")
        if look == ABSENT:
            raise StopIteration
        return key.start[:key.size], value.start[:value.size]

    cdef Look step(self, Slice *key, Slice *value) noexcept:
        """The next row, if it is PRESENT. After UNSURE, LMDB must say what comes next."""
        cdef Node node
        cdef Look look
        cdef const char *at
        if self.is_lost or not self.tree.is_sure:
            return UNSURE
        if self.depth < 0:
            return ABSENT
        if not 0 <= self.at[self.depth] < self.counts[self.depth]:
            look = self._turn_page()
            if look != PRESENT:
                return look
        at = find_node(
            self.pages[self.depth], self.tree.page_bytes, <uint64_t> self.at[self.depth], &node
        )
        if at == NULL:
            return UNSURE
        self.at[self.depth] += -1 if self.is_reverse else 1
        key.start, key.size = at + NODE_BYTES, node.key_size
        return self.tree._data(self.pages[self.depth], at, &node, value)

    cdef Look _turn_page(self) noexcept:
        """Go up as far as the pages are at their ends, and down to the next leaf."""
        cdef Node node
        cdef int step = -1 if self.is_reverse else 1
        while not 0 <= self.at[self.depth] < self.counts[self.depth]:
            self.depth -= 1
            if self.depth < 0:
                return ABSENT
            self.at[self.depth] += step
        if find_node(
            self.pages[self.depth], self.tree.page_bytes, <uint64_t> self.at[self.depth], &node
        ) == NULL:
            return UNSURE
        return self._descend(page_below(&node), NULL)

    cdef Look _descend(self, uint64_t number, const Slice *bound) noexcept:
        """From the page of this number to a leaf: where `bound` leads, or else to the nearest row."""
        cdef const char *page
        cdef Node node
        cdef uint16_t flags
        cdef int64_t at
        while self.depth + 1 < DEPTH_MAX:
            page = self.tree._page(number)
            flags = 0 if page == NULL else flags_of(page)
            if flags & FIXED or not flags & (BRANCH | LEAF):
                return UNSURE
            self.depth += 1
            self.pages[self.depth] = page
            self.counts[self.depth] = count_nodes(page, self.tree.page_bytes)
            at = self.counts[self.depth] - 1 if self.is_reverse else 0
            if bound != NULL:
                at = _place_of(page, self.tree.page_bytes, (flags & BRANCH) != 0, bound[0])
                if self.is_reverse and flags & LEAF:
                    at -= 1
            self.at[self.depth] = at
            if self.counts[self.depth] == 0 or at < -1:
                return UNSURE
            if flags & LEAF:
                return PRESENT
            if find_node(page, self.tree.page_bytes, <uint64_t> at, &node) == NULL:
                return UNSURE
            number = page_below(&node)
        return UNSURE


cdef int64_t _place_of(const char *page, uint64_t page_bytes, bint is_branch, Slice key) noexcept nogil:
    """The first node of a leaf that is not below a key, or in a branch the one that leads to it; less than
    -1 when the page is damaged."""
    cdef int64_t low = is_branch, high = count_nodes(page, page_bytes), middle
    cdef int order
    cdef const char *at
    cdef Node node
    while low < high:
        middle = (low + high) >> 1
        at = find_node(page, page_bytes, middle, &node)
        if at == NULL:
            return -2
        order = compare(Slice(at + NODE_BYTES, node.key_size), key)
        if order < 0 or (is_branch and order == 0):
            low = middle + 1
        else:
            high = middle
    return low - is_branch


cdef inline int _search(
    const char *page, uint64_t page_bytes, bint is_branch, int prefetched,
    const char *key, Py_ssize_t size, const char **at, Node *node
) noexcept nogil:
    """Find the node of a key, or in a branch the one that leads to it: 1 when it is there, 0 when it is
    not, -1 when the page is damaged."""
    cdef uint64_t count = count_nodes(page, page_bytes)
    cdef uint64_t low = is_branch, high = count, middle
    cdef int order
    if count == 0:
        return -1
    while low < high:
        if prefetched == 0:
            _prefetch(page, low, high)
            prefetched = STEPS_FORESEEN
        prefetched -= 1
        middle = (low + high) >> 1
        at[0] = find_node(page, page_bytes, middle, node)
        if at[0] == NULL:
            return -1
        order = memcmp(key, at[0] + NODE_BYTES, min(size, <Py_ssize_t> node.key_size))
        if order == 0:
            if size == node.key_size:
                return 1
            order = -1 if size < node.key_size else 1
        if order < 0:
            high = middle
        else:
            low = middle + 1
    if not is_branch:
        return 0
    at[0] = find_node(page, page_bytes, low - 1, node)
    return -1 if at[0] == NULL else 1


cdef inline void _prefetch(const char *page, uint64_t low, uint64_t high) noexcept nogil:
    """Have the nodes on their way from memory that the next three steps of a search may look at."""
    cdef uint64_t eighth, index
    for eighth in range(<uint64_t> 1, <uint64_t> 8):
        index = low + (eighth * (high - low) >> 3)
        eph_prefetch(page + HEADER_BYTES + u16(page + HEADER_BYTES + 2 * index))
