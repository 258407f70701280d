/* What processes share: atomic words, and a lock that the system hands on when its holder dies.

   On Linux the lock is a robust, process-shared mutex inside the control page. Where there is none
   (macOS; or EPHEMERA_FILE_LOCK, which tests this branch on Linux) it is a file lock: the system frees it with its holder's
   descriptors, and a word in the page that is still set tells the next holder that this one died inside.

   The system reports a death once, to whoever acquires the lock next, for whatever purpose. So acquiring it records the
   death in the lock itself, as `is_inconsistent`, which stays until what the lock protects was recovered. */
#ifndef EPHEMERA_SHARED_H
#define EPHEMERA_SHARED_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t eph_load64(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void eph_store64(uint64_t *at, uint64_t v) { __atomic_store_n(at, v, __ATOMIC_RELEASE); }
static inline int eph_swap64(uint64_t *at, uint64_t was, uint64_t to) {
    return __atomic_compare_exchange_n(at, &was, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
static inline uint64_t eph_add64(uint64_t *at, uint64_t v) { return __atomic_add_fetch(at, v, __ATOMIC_ACQ_REL); }
static inline uint32_t eph_add32(uint32_t *at, int v) { return __atomic_add_fetch(at, (uint32_t)v, __ATOMIC_ACQ_REL); }
static inline uint32_t eph_load32(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void eph_store32(uint32_t *at, uint32_t v) { __atomic_store_n(at, v, __ATOMIC_RELEASE); }

/* Wait while a shared word is `seen`, until somebody wakes it; whether that took longer than so many microseconds. */
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
static int eph_word_wait(uint32_t *word, uint32_t seen, long us) {
    struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, &pause, NULL, 0) && errno == ETIMEDOUT;
}
static void eph_word_wake(uint32_t *word, int count) { syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0); }
#else
static int eph_word_wait(uint32_t *word, uint32_t seen, long us) {
    struct timespec pause = {0, 100000};
    for (; us > 0 && eph_load32(word) == seen; us -= 100) nanosleep(&pause, NULL);
    return us <= 0;
}
static void eph_word_wake(uint32_t *word, int count) { (void)word, (void)count; }
#endif

#if defined(__APPLE__) && !defined(EPHEMERA_FILE_LOCK)
#define EPHEMERA_FILE_LOCK 1
#endif

/* The part of a lock that lives in the control page: 128 bytes are set aside for it. */
typedef struct {
    uint32_t is_held;
    uint32_t is_inconsistent;
    uint32_t owner; /* the pid of the process that acquired the lock last */
#ifndef EPHEMERA_FILE_LOCK
    pthread_mutex_t mutex;
#endif
} eph_lock_page;

/* The part that belongs to one process. */
typedef struct {
    eph_lock_page *page;
    int fd;
    uint32_t pid;
    uint64_t acquisitions; /* how often this process acquired the lock: changed by its holder alone */
#ifdef EPHEMERA_FILE_LOCK
    pthread_mutex_t local;
    pthread_t holder;
    uint32_t has_holder;
    uint32_t is_attached;
    uint32_t has_key;
    pthread_key_t key; /* set in the thread that holds the lock, so that its end is noticed */
#endif
} eph_lock;

/* Results: 0 acquired, EBUSY / ETIMEDOUT not acquired, EDEADLK this thread holds it already, EBADF its file is closed,
   or another errno. */

#ifndef EPHEMERA_FILE_LOCK

static int eph_lock_format(eph_lock_page *page) {
    pthread_mutexattr_t a;
    int rc;
    memset(page, 0, sizeof *page);
    if ((rc = pthread_mutexattr_init(&a))) return rc;
    rc = pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
    if (!rc) rc = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (!rc) rc = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (!rc) rc = pthread_mutex_init(&page->mutex, &a);
    pthread_mutexattr_destroy(&a);
    return rc;
}
static int eph_lock_attach(eph_lock *lock, eph_lock_page *page, int fd) {
    lock->page = page; lock->fd = fd; lock->pid = (uint32_t)getpid(); return 0;
}
static inline void eph_lock_detach(eph_lock *lock) { (void)lock; }
static inline void eph_lock_retire(eph_lock *lock) { pthread_mutex_unlock(&lock->page->mutex); }
/* The death is recorded before the mutex is consistent: until then the system reports it again, should this thread die too. */
static int eph_lock_adopt(eph_lock *lock, int rc) {
    if (rc == EOWNERDEAD) {
        eph_store32(&lock->page->is_inconsistent, 1);
        rc = pthread_mutex_consistent(&lock->page->mutex);
    }
    if (!rc) {
        eph_store32(&lock->page->owner, lock->pid);
        lock->acquisitions++;
    }
    return rc;
}
/* An error-checking mutex answers EBUSY to a second trylock of its holder; the wait tells EDEADLK. */
static inline int eph_lock_try(eph_lock *lock) {
    return eph_lock_adopt(lock, pthread_mutex_trylock(&lock->page->mutex));
}
static int eph_lock_wait(eph_lock *lock, const struct timespec *monotonic_until, const struct timespec *wall_until) {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 30)
    (void)wall_until;
    return eph_lock_adopt(lock, pthread_mutex_clocklock(&lock->page->mutex, CLOCK_MONOTONIC, monotonic_until));
#else
    (void)monotonic_until;
    return eph_lock_adopt(lock, pthread_mutex_timedlock(&lock->page->mutex, wall_until));
#endif
}
/* A trylock that tells its holder EDEADLK: a wait whose time is over as it begins. */
static int eph_lock_try_checked(eph_lock *lock) {
    struct timespec past = {0, 0};
    return eph_lock_wait(lock, &past, &past);
}
static inline void eph_lock_release(eph_lock *lock) { pthread_mutex_unlock(&lock->page->mutex); }

#else

static int eph_lock_format(eph_lock_page *page) { memset(page, 0, sizeof *page); return 0; }
static inline void eph_lock_unlock(eph_lock *lock, int fd) {
    eph_store32(&lock->has_holder, 0);
    if (lock->has_key) pthread_setspecific(lock->key, NULL);
    eph_store32(&lock->page->is_held, 0);
    flock(fd, LOCK_UN);
    pthread_mutex_unlock(&lock->local);
}
static inline void eph_lock_release(eph_lock *lock) { eph_lock_unlock(lock, lock->fd); }
/* Runs as a thread ends that still holds the lock: what a robust mutex does. The system would keep the file's lock for
   as long as the process lives. */
static void eph_lock_thread_ended(void *held) {
    eph_lock *lock = held;
    if (!eph_load32(&lock->has_holder) || !pthread_equal(lock->holder, pthread_self())) return;
    eph_store32(&lock->page->is_inconsistent, 1);
    eph_lock_release(lock);
}
/* As the holder: release the lock for the last time, since its descriptor is about to be closed. */
static void eph_lock_retire(eph_lock *lock) {
    int fd = lock->fd;
    lock->fd = -1;
    eph_lock_unlock(lock, fd);
}
/* Forget the descriptor and what was held by it: in the child of a fork, or as the memory of the lock goes. */
static void eph_lock_detach(eph_lock *lock) {
    if (!lock->is_attached) return;
    lock->is_attached = 0;
    lock->fd = -1;
    if (lock->has_key) pthread_key_delete(lock->key);
}
/* In the child of a fork the mutex may be locked by a thread that does not exist there, so it is made anew. */
static int eph_lock_attach(eph_lock *lock, eph_lock_page *page, int fd) {
    pthread_mutexattr_t a;
    int rc;
    eph_lock_detach(lock);
    lock->page = page; lock->fd = fd; lock->pid = (uint32_t)getpid(); lock->has_holder = 0;
    lock->is_attached = 1;
    /* A process has a few hundred keys: without one, the end of a thread inside is noticed when the process ends. */
    lock->has_key = !pthread_key_create(&lock->key, eph_lock_thread_ended);
    if ((rc = pthread_mutexattr_init(&a))) return rc;
    rc = pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
    if (!rc) rc = pthread_mutex_init(&lock->local, &a);
    pthread_mutexattr_destroy(&a);
    return rc;
}
static int eph_lock_try(eph_lock *lock) {
    int rc = pthread_mutex_trylock(&lock->local);
    if (rc) return eph_load32(&lock->has_holder) && pthread_equal(lock->holder, pthread_self()) ? EDEADLK : rc;
    if (flock(lock->fd, LOCK_EX | LOCK_NB)) {
        rc = errno == EWOULDBLOCK ? EBUSY : errno;
        pthread_mutex_unlock(&lock->local);
        return rc;
    }
    if (eph_load32(&lock->page->is_held)) eph_store32(&lock->page->is_inconsistent, 1);
    eph_store32(&lock->page->is_held, 1);
    eph_store32(&lock->page->owner, lock->pid);
    lock->acquisitions++;
    lock->holder = pthread_self();
    eph_store32(&lock->has_holder, 1);
    if (lock->has_key) pthread_setspecific(lock->key, lock);
    return 0;
}
static int eph_lock_try_checked(eph_lock *lock) { return eph_lock_try(lock); }
/* One pause at a time; the caller counts them. */
static int eph_lock_wait(eph_lock *lock, const struct timespec *monotonic_until, const struct timespec *wall_until) {
    struct timespec pause = {0, 200000};
    int rc, rounds;
    (void)monotonic_until; (void)wall_until;
    for (rounds = 0; rounds < 250; rounds++) {
        if ((rc = eph_lock_try(lock)) != EBUSY) return rc;
        nanosleep(&pause, NULL);
    }
    return ETIMEDOUT;
}

#endif
#endif
