/* Kills its own process at the n-th change that a thread makes while it holds the writer lock.

   A breakpoint stops the thread where it acquires a mutex; from there until it releases the writer lock the processor
   traps after every instruction (the trap flag of x86-64). What a killed process leaves is its
   shared memory and the effects of its system calls; so a change is an instruction after which either differs, and
   deaths at all of them stand for deaths at all instructions. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define TRAP_FLAG 0x100
#define TID_MASK 0x3fffffff
#define REGIONS 2
#define REGION_BYTES_MAX 16384

static struct { const char *start; size_t size; char before[REGION_BYTES_MAX]; } regions[REGIONS];
static const uint32_t *futex;
static uint32_t tid;
static long fatal, changes;
static volatile int was_held;

#define BREAKPOINT 0xcc
static volatile unsigned char *entry;
static unsigned char original;

static int has_changed(void) {
    int found = 0;
    for (int i = 0; i < REGIONS; i++)
        if (memcmp(regions[i].start, regions[i].before, regions[i].size)) {
            memcpy(regions[i].before, regions[i].start, regions[i].size);
            found = 1;
        }
    return found;
}

static void on_trap(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *last = (const unsigned char *)registers[REG_RIP] - 2;
    (void)number, (void)info;
    if (registers[REG_RIP] == (greg_t)entry + 1 && *entry == BREAKPOINT) {
        *entry = original;
        registers[REG_RIP]--;
        registers[REG_EFL] |= TRAP_FLAG;
        has_changed(); /* what others changed before counts as theirs */
        return;
    }
    if ((*futex & TID_MASK) != tid) {
        if (was_held) {
            registers[REG_EFL] &= ~(greg_t)TRAP_FLAG;
            *entry = BREAKPOINT;
        }
        was_held = 0;
        return;
    }
    int is_system_call = last[0] == 0x0f && last[1] == 0x05;
    if ((has_changed() | is_system_call | !was_held) && ++changes == fatal) kill(getpid(), SIGKILL);
    was_held = 1;
}

/* `lock` is the word of the mutex that holds its owner; memory is watched at `control` and `segment`. */
void begin(const void *lock, const void *control, size_t control_size, const void *segment, size_t segment_size, long at) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    futex = lock, fatal = at, changes = 0, was_held = 0;
    tid = (uint32_t)syscall(SYS_gettid);
    regions[0].start = control, regions[0].size = control_size;
    regions[1].start = segment, regions[1].size = segment_size;
    has_changed();
    sigaction(SIGTRAP, &action, NULL);
    entry = (volatile unsigned char *)pthread_mutex_trylock;
    mprotect((void *)((uintptr_t)entry & ~(uintptr_t)4095), 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
    original = *entry;
    *entry = BREAKPOINT;
}

/* Returns how many changes there were. */
long end(void) {
    *entry = original;
    return changes;
}
