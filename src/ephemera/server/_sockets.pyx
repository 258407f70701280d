# cython: language_level=3, boundscheck=False, wraparound=False
"""Plain sockets, read and answered in one go for all clients of an event-loop tick.

uvloop accepts connections, closes them, and sends what a socket does not take at once. What it would do
for every read and every reply (an object for the bytes, a context, a callback) is most of the time that
a small request takes. So a connection's socket is also watched here, by an epoll of our own that is one
descriptor to the loop: when it is ready, every client that has sent something is read, answered and
written to, and no object is made on the way. Replies go out some at a time: a client program with many
connections that wakes for each of them, and sleeps again, costs more than answering it. None of them waits
for a command that may take long, nor for what others send to its client. For the same reason a server with
many clients, of whom few have sent something, waits a moment for the others before it looks again.

Where there is no epoll, and for TLS, `data_received` does the same with uvloop's own transport.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint64_t

from ephemera.core._clock cimport elapsed_ns
from ephemera.server._direct cimport PendingReply, RequestLoop, ServerCounters

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <sys/socket.h>
    #include <unistd.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #if defined(__linux__)
    #include <sys/epoll.h>
    #include <sys/prctl.h>
    #include <time.h>
    #define EPH_HAS_EPOLL 1
    typedef struct epoll_event eph_event;
    static int eph_epoll_open(void) { return epoll_create1(EPOLL_CLOEXEC); }
    static int eph_epoll_watch(int poll, int fd, int is_end) {
        struct epoll_event event = {.events = is_end ? EPOLLRDHUP : EPOLLIN, .data = {.fd = fd}};
        return epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    }
    static int eph_epoll_leave(int poll, int fd) {
        struct epoll_event event = {0};
        return epoll_ctl(poll, EPOLL_CTL_DEL, fd, &event);
    }
    static int eph_epoll_ready(int poll, eph_event *events, int room) {
        return epoll_wait(poll, events, room, 0);
    }
    static int eph_event_fd(const eph_event *event) { return event->data.fd; }
    /* Whether this thread wakes when it asked to. Else the system adds 50 us, to wake several at once. */
    static int eph_is_punctual(void) {
        static __thread int is_punctual = -1;
        if (is_punctual < 0) is_punctual = !prctl(PR_SET_TIMERSLACK, 1L);
        return is_punctual;
    }
    static void eph_pause(long ns) {
        struct timespec span = {.tv_sec = 0, .tv_nsec = ns};
        nanosleep(&span, 0);
    }
    #else
    #define EPH_HAS_EPOLL 0
    typedef struct { int fd; } eph_event;
    static int eph_epoll_open(void) { errno = ENOSYS; return -1; }
    static int eph_epoll_watch(int poll, int fd, int is_end) { errno = ENOSYS; return -1; }
    static int eph_epoll_leave(int poll, int fd) { errno = ENOSYS; return -1; }
    static int eph_epoll_ready(int poll, eph_event *events, int room) { errno = ENOSYS; return -1; }
    static int eph_event_fd(const eph_event *event) { return event->fd; }
    static int eph_is_punctual(void) { return 0; }
    static void eph_pause(long ns) { }
    #endif
    """
    bint EPH_HAS_EPOLL
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    ctypedef struct eph_event:
        pass
    int eph_epoll_open() nogil
    int eph_epoll_watch(int poll, int fd, bint is_end) nogil
    int eph_epoll_leave(int poll, int fd) nogil
    int eph_epoll_ready(int poll, eph_event *events, int room) nogil
    int eph_event_fd(const eph_event *event) nogil
    bint eph_is_punctual() nogil
    void eph_pause(long ns) nogil
    Py_ssize_t recv(int fd, void *buffer, size_t size, int flags) nogil
    Py_ssize_t send(int fd, const void *data, size_t size, int flags) nogil
    int close(int fd) nogil

IS_AVAILABLE = bool(EPH_HAS_EPOLL)

cdef enum:
    EVENTS_MAX = 256             # clients that are served without another look who else is ready
    TICK_NS_MAX = 300_000        # after so long uvloop serves its other callbacks
    TICK_BYTES_MAX = 64 * 1024   # or after so much input of all clients
    INPUT_BYTES = 256 * 1024     # that one read of a client takes
    REPLIES_TOGETHER = 16        # clients that are written to one after the other
    COMPANY_OF = 128             # how many are served while it is counted how many different ones they are
    COMPANY_MIN = 32             # fewer different ones are not worth waiting for
    PAUSE_NS = 20_000            # how long they are waited for


cdef class Receiving(PendingReply):
    """A session at a transport: what arrives is answered through `write`, or straight to its socket.

    Not so where replies wait for the disk (`holds_replies`), nor while something may be in the transport
    that is still to be sent (`is_behind`).
    """
    cdef public RequestLoop session
    cdef public object write
    cdef public bint holds_replies
    cdef public bint is_behind
    cdef bint has_pending_reply
    cdef bint awaits_end         # and nothing is read
    cdef int fd
    cdef uint64_t counted_in     # the last count of different clients that it was part of

    def __cinit__(self):
        self.fd = -1

    def data_received(self, bytes data not None) -> None:
        """What uvloop has read."""
        self.session.take(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        self._reply(False)

    cdef bint receive(self, char *buffer) except -1:
        """Read once and answer; whether there is a reply to `flush`."""
        cdef Py_ssize_t size
        if self.awaits_end:
            self.broke(0)
            return False
        size = recv(self.fd, buffer, INPUT_BYTES, MSG_DONTWAIT)
        if size > 0:
            self.session.take(buffer, size)
            # What others send to this client from now on is no part of the reply.
            self.session.is_processing = False
            self.has_pending_reply = True
            return True
        if size == 0:
            self.ended()
        elif errno != EAGAIN and errno != EINTR:
            self.broke(errno)
        return False

    def flush_reply(self) -> None:
        """Send the pending reply, if there is one: before anything else goes to this client."""
        self.flush()

    cdef int flush(self) except -1:
        if self.has_pending_reply:
            self.has_pending_reply = False
            self._reply(not self.holds_replies)
        return 0

    cdef int _reply(self, bint is_straight) except -1:
        cdef RequestLoop session = self.session
        cdef Py_ssize_t sent = 0
        if session.is_closing or session.has_waiting:
            self.finish(session.taken())
            return 0
        if is_straight and session.size and self._has_way():
            sent = send(self.fd, session.out, session.size, MSG_DONTWAIT | MSG_NOSIGNAL)
            # What is wrong with the socket, if anything, is the transport's to find out.
            sent = 0 if sent < 0 else sent
        if sent == session.size:
            session.give_back()
        else:
            self.is_behind = True
            self.write(session.taken()[sent:])
        return 0

    cdef bint _has_way(self) except -1:
        return self.fd >= 0 and (not self.is_behind or self.has_caught_up())

    def finish(self, out):
        raise TypeError("finish")

    def has_caught_up(self):
        raise TypeError("has_caught_up")

    def ended(self):
        raise TypeError("ended")

    def broke(self, number):
        raise TypeError("broke")

    def failed(self, error):
        raise TypeError("failed")


cdef class Sockets:
    """The sockets that are watched; `fd` is what the loop watches, and `serve` what it then calls. After
    `tick_ns_max` it looks no more who else is ready.

    `company` is how many different clients the last reads were of. Where many are about, and a second look finds
    few of them, there is a pause for the others; `pauses` counts these.
    """
    cdef readonly int fd
    cdef public int64_t tick_ns_max
    cdef readonly int company
    cdef readonly uint64_t pauses
    cdef ServerCounters counters
    cdef list by_fd              # None where nobody has that number
    cdef char *buffer
    cdef eph_event *events
    cdef uint64_t count          # of different clients: its number, how many it has seen, and of those served
    cdef int counted
    cdef int served

    def __cinit__(self, ServerCounters counters not None):
        self.fd = -1
        self.tick_ns_max = TICK_NS_MAX
        self.count = 1
        self.counters = counters
        self.by_fd = []
        self.buffer = <char *> PyMem_Malloc(INPUT_BYTES)
        self.events = <eph_event *> PyMem_Malloc(EVENTS_MAX * sizeof(eph_event))
        if self.buffer == NULL or self.events == NULL:
            raise MemoryError
        self.fd = eph_epoll_open()
        if self.fd < 0 and IS_AVAILABLE:
            raise OSError(errno, "epoll_create1")

    def __dealloc__(self):
        self.close()
        PyMem_Free(self.buffer)
        PyMem_Free(self.events)

    cpdef void close(self) noexcept:
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    def watch(self, Receiving connection not None, int fd) -> None:
        """Read from this socket from now on, if that is not so already."""
        self._watch(connection, fd, False)

    def await_end(self, Receiving connection not None, int fd) -> None:
        """Read nothing from it, and call it broken when its client ends it."""
        self._watch(connection, fd, True)

    cdef int _watch(self, Receiving connection, int fd, bint awaits_end) except -1:
        if connection.fd == fd and connection.awaits_end == awaits_end:
            return 0
        self.leave(connection)
        if eph_epoll_watch(self.fd, fd, awaits_end):
            raise OSError(errno, "epoll_ctl")
        connection.fd, connection.awaits_end = fd, awaits_end
        self.by_fd += [None] * (fd + 1 - len(self.by_fd))
        self.by_fd[fd] = connection
        return 0

    def leave(self, Receiving connection not None) -> None:
        """Read from it no more; to be called before it is closed, so that no other gets its number."""
        if 0 <= connection.fd < len(self.by_fd) and self.by_fd[connection.fd] is connection:
            self.by_fd[connection.fd] = None
            eph_epoll_leave(self.fd, connection.fd)
        connection.fd = -1

    def serve(self) -> None:
        """Read and answer every client that has sent something, and then who has since."""
        cdef int64_t read_most = self.counters.input_bytes + TICK_BYTES_MAX
        cdef int64_t until_ns = elapsed_ns() + self.tick_ns_max
        cdef bint is_first = True
        cdef int ready
        while True:
            ready = eph_epoll_ready(self.fd, self.events, EVENTS_MAX)
            if ready <= 0:
                break
            self._serve_some(ready)
            if self.counters.input_bytes >= read_most or elapsed_ns() >= until_ns:
                break
            if not is_first and self._has_few(ready) and eph_is_punctual():
                self.pauses += 1
                # Who maintains the store has this time.
                with nogil:
                    eph_pause(PAUSE_NS)
            is_first = False

    cdef int _serve_some(self, int count) except -1:
        cdef int i
        try:
            for i in range(count):
                self._serve_one(eph_event_fd(&self.events[i]))
                if PyList_GET_SIZE(self.counters.pending_replies) >= REPLIES_TOGETHER:
                    self.counters.flush_replies()
        finally:
            self.counters.flush_replies()
        return 0

    cdef inline bint _has_few(self, int ready) noexcept:
        return self.company >= COMPANY_MIN and 4 * ready < self.company

    cdef void _count(self, Receiving connection) noexcept:
        if connection.counted_in != self.count:
            connection.counted_in = self.count
            self.counted += 1
        self.served += 1
        if self.served == COMPANY_OF:
            self.company = self.counted
            self.served = self.counted = 0
            self.count += 1

    cdef int _serve_one(self, int fd) except -1:
        # It may have been left while others before it were answered.
        cdef Receiving connection = self.by_fd[fd]
        if connection is None:
            return 0
        self._count(connection)
        try:
            if connection.receive(self.buffer):
                self.counters.pending_replies.append(connection)
        except Exception as error:
            connection.failed(error)
        return 0
