# The format of LMDB's pages, for those who read them. None of this is ours to change.
#
#     page    number u64, transaction u64, pad u16, flags u16, size of what follows u16, end of the free
#             bytes u16; then for each node, in the order of their keys, where it is u16, from here
#     node    low u32, flags u16, size of the key u16, the key, a byte if its size is odd, the data
#     leaf    low is the size of the data. With BIG there are instead a page number u64, a transaction
#             u64 and a count u64: of pages that hold the data behind the header of the first
#     branch  low, with flags above it, is the number of the page below; the first key counts as lowest
#     meta    pages 0 and 1, alternating: magic u32, version u32, address u64, size u64, then the trees of
#             free pages and of names, the last page u64, the transaction u64 that wrote it
#     tree    page size u32 (of the first tree), flags u16, depth u16, four counts u64, its root u64.
#             The tree of names has the other trees as data; a name ends with a zero
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    HEADER_BYTES = 24
    NODE_BYTES = 8
    BRANCH = 0x01
    LEAF = 0x02
    FIXED = 0x20             # a leaf of keys alone, which none of our trees has
    BIG = 0x01
    TREE_BYTES = 48
    NAMES_ROOT_AT = 136      # in a meta page
    LAST_PAGE_AT = 144
    STATE_AT = 152
    META_BYTES = 160
    DEPTH_MAX = 32           # of a tree: LMDB's own limit

cdef struct Node:
    uint32_t low
    uint16_t flags
    uint16_t key_size


cdef inline uint16_t u16(const char *at) noexcept nogil:
    cdef uint16_t n
    memcpy(&n, at, 2)
    return n


cdef inline uint32_t u32(const char *at) noexcept nogil:
    cdef uint32_t n
    memcpy(&n, at, 4)
    return n


cdef inline uint64_t u64(const char *at) noexcept nogil:
    cdef uint64_t n
    memcpy(&n, at, 8)
    return n


cdef inline uint16_t flags_of(const char *page) noexcept nogil:
    return u16(page + 18)


cdef inline uint64_t count_nodes(const char *page, uint64_t page_bytes) noexcept nogil:
    """How many nodes a page has; none when there is no room for so many."""
    cdef uint64_t count = u16(page + 20) >> 1
    return count if HEADER_BYTES + 2 * count <= page_bytes else 0


cdef inline const char *find_node(
    const char *page, uint64_t page_bytes, uint64_t index, Node *node
) noexcept nogil:
    """Where a node is; NULL when it is not all within the page."""
    cdef uint64_t at = HEADER_BYTES + <uint64_t> u16(page + HEADER_BYTES + 2 * index)
    if at + NODE_BYTES > page_bytes:
        return NULL
    memcpy(node, page + at, NODE_BYTES)
    return page + at if at + NODE_BYTES + node.key_size <= page_bytes else NULL


cdef inline uint64_t page_below(const Node *node) noexcept nogil:
    """The number of the page that a branch's node leads to."""
    return <uint64_t> node.flags << 32 | node.low
