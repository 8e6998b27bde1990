// Runs CUDA kernels on one CPU thread: blocks one after the other (see cluster.h), the threads of a block as fibers that run until the
// next barrier or warp instruction. Between two of those each thread runs alone, which is the schedule that shows a
// missing barrier best. Errors end the launch with a message instead of the process.
#include "switch.h"
#include "warp.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emulation {
namespace {

constexpr int MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / WARP;
constexpr size_t PAGE = 4096, ARENA = 256 << 10, MARGIN = 128;
constexpr unsigned char POISON = 0xff;  // NaN in every floating-point type

struct Copy {
    unsigned char *shared;
    const void *global;
    int bytes, line;
    bool is_valid;
};

enum State { RUNNING, AT_BARRIER, IN_WARP, AT_MBARRIER, AT_WARPGROUP_BARRIER, IN_WARPGROUP, AT_CLUSTER_BARRIER, ENDED };

struct Fiber {
    void *stack_pointer;
    unsigned char *stack;
    State state;
    int line;          // where it waits
    int wanted;        // the barrier of a number that it waits for
    Word parity;       // of the phase of an mbarrier that it waits for
    Copy *copies;      // in the order in which they were started
    int count, room;   // of copies
    int *groups;       // copies in front of the end of each committed group
    int group_count, group_room;
};

Fiber fibers[MOST_THREADS];
Warp warps[MOST_WARPS];
int threads, warp_count, current, live_threads, arrived_threads, barrier_line, cluster;
bool is_last_round;  // no block of the cluster has come further than the last time
bool is_strict;  // ended threads may not miss a barrier
bool is_early;   // the launch before may not be done yet: every thread is to wait for it
bool has_waited[MOST_THREADS];
unsigned char *arena;  // dynamic shared memory ends where its last page does
size_t dynamic_bytes, dynamic_alignment;
unsigned char *static_begin, *static_end;
void (*kernel)(const void *);
const void *arguments;

void *main_stack_pointer;
sigjmp_buf back;
char *message;
int message_room;
uintptr_t fault_address;
alignas(16) char signal_stack[64 << 10];

void set_current(int thread) {
    current = thread;
    threadIdx = {static_cast<Word>(thread), 0, 0};
}

}  // namespace
}  // namespace emulation

#include "instrumented.h"

namespace emulation {
namespace {

// Of mbarrier.h, stores.h, cluster.h and wgmma.h, which come further down.
int describe_wait(const Fiber &fiber, char *text, int room);
bool deliver_copies();
bool multiply();
void show_to_block();
void check_stmatrix(const Warp &warp, int index);
void note_ldmatrix(const Warp &warp, int index);
void end_of_thread();
void begin_block();
void end_block();
void begin_in_cluster();
extern bool is_interrupted;

// Of what reads or writes memory.
void check_waited(const char *what, int line) {
    if (is_early && !has_waited[current])
        emulation_fail(line, "%s: thread %d has not called wait_for_launch_before, and its launch may begin early", what,
                       current);
}

// Nobody can run: say who waits where.
[[noreturn]] void report_deadlock() {
    char text[1500];
    int length = 0;
    bool is_deadlock = false;
    static bool is_told[MOST_THREADS];
    memset(is_told, 0, sizeof is_told);
    for (int thread = 0; thread < threads; ++thread) {
        if (is_told[thread]) continue;
        const Fiber &fiber = fibers[thread];
        int alike = 0;
        for (int other = thread; other < threads; ++other) {
            if (fibers[other].state != fiber.state) continue;
            if (fiber.state != ENDED && fibers[other].line != fiber.line) continue;
            if (fiber.state >= AT_MBARRIER && fiber.state < ENDED && fibers[other].wanted != fiber.wanted) continue;
            is_told[other] = true;
            ++alike;
        }
        if (length > 1300) continue;
        length += snprintf(text + length, sizeof text - length, "%s%d threads (thread %d and others) ",
                           length ? "; " : "", alike, thread);
        if (fiber.state == ENDED)
            length += snprintf(text + length, sizeof text - length, "have ended");
        else if ((is_deadlock |= fiber.state >= AT_MBARRIER))
            length += describe_wait(fiber, text + length, sizeof text - length);
        else
            length += snprintf(text + length, sizeof text - length, "wait at line %d for %s", fiber.line,
                               fiber.state == AT_BARRIER ? "all of the block"
                                                         : name_of(warps[thread / WARP].kind));
    }
    emulation_fail(0, "%s: %s", is_deadlock ? "deadlock" : "barrier divergence", text);
}

void switch_to(int thread) {
    if (thread == current) return;
    void **save = &fibers[current].stack_pointer;
    set_current(thread);
    emulation_switch(save, fibers[thread].stack_pointer);
}

// Goes on with the next thread that can run: of this warp, or of those behind it in a circle.
void run_next() {
    do {
        const int warp = current / WARP, lane = current % WARP;
        if (const Word ready = warps[warp].ready) {
            const Word behind = lane == WARP - 1 ? 0 : ready & ~((2u << lane) - 1);
            return switch_to(warp * WARP + __builtin_ctz(behind ? behind : ready));
        }
        for (int step = 1; step < warp_count; ++step) {
            const int other = (warp + step) % warp_count;
            if (warps[other].ready) return switch_to(other * WARP + __builtin_ctz(warps[other].ready));
        }
    } while (live_threads && (deliver_copies() || multiply()));
    if (live_threads) report_deadlock();
    void *nowhere;
    emulation_switch(&nowhere, main_stack_pointer);
}

void release_barrier() {
    if (is_strict && live_threads != threads)
        emulation_fail(barrier_line, "%d threads ended without this barrier, which all threads must reach",
                       threads - live_threads);
    arrived_threads = 0;
    show_to_block();
    order_threads(0, threads, [](int thread) { return fibers[thread].state == AT_BARRIER; });
    for (int warp = 0; warp < warp_count; ++warp) warps[warp].ready = warps[warp].live;
    for (int thread = 0; thread < threads; ++thread)
        if (fibers[thread].state == AT_BARRIER) fibers[thread].state = RUNNING;
}

bool is_shared(const void *pointer, size_t bytes) {
    const auto *from = static_cast<const unsigned char *>(pointer);
    const auto *to = from + bytes;
    return (from >= emulation_dynamic_shared && to <= emulation_dynamic_shared + dynamic_bytes) ||
           (from >= static_begin && to <= static_end);
}

void check_shared(const void *pointer, size_t bytes, int thread, int line, const char *what) {
    const int was = current;
    set_current(thread);
    if (reinterpret_cast<uintptr_t>(pointer) % bytes)
        emulation_fail(line, "%s: misaligned address %p in shared memory: it must be a multiple of %zu", what, pointer,
                       bytes);
    if (!is_shared(pointer, bytes)) {
        const long offset = static_cast<const unsigned char *>(pointer) - emulation_dynamic_shared;
        emulation_fail(line, "%s: address %p is out of range of shared memory (byte %ld of the %zu that are dynamic)",
                       what, pointer, offset, dynamic_bytes);
    }
    set_current(was);
}

// ---- What the lanes of a warp do together, when the last of them has come ---------------------------------------

void complete(int index) {
    Warp &warp = warps[index];
    if (warp.kind >= LDMATRIX && warp.arrived != ~0u)
        emulation_fail(warp.line, "%s needs all 32 lanes of a warp: %d of warp %d are there", name_of(warp.kind),
                       __builtin_popcount(warp.arrived), index);
    switch (warp.kind) {
        case SYNC:
            order_threads(index * WARP, threads, [&](int thread) {
                return thread / WARP == index && warp.arrived >> thread % WARP & 1;
            });
            break;
        case SHUFFLE:
            note_exchange(warp.arrived, index);
            shuffle(warp);
            break;
        case BALLOT:
            note_exchange(warp.arrived, index);
            ballot(warp);
            break;
        case LDMATRIX:
            for (int lane = 0; lane < 8 * static_cast<Ldmatrix *>(warp.operands[0])->matrices; ++lane) {
                const void *row = static_cast<Ldmatrix *>(warp.operands[lane])->row;
                check_shared(row, 16, index * WARP + lane, warp.line, "ldmatrix");
            }
            note_ldmatrix(warp, index);
            ldmatrix(warp);
            break;
        case STMATRIX:
            check_stmatrix(warp, index);
            stmatrix(warp);
            break;
        case MMA_BF16:
            mma<16, 2, float>(warp, [](Word bits, int part) {
                return f32_of_bits(part ? bits & 0xffff0000u : bits << 16);
            });
            break;
        case MMA_F16:
            mma<16, 2, float>(warp, [](Word bits, int part) {
                return f32_of_f16(static_cast<unsigned short>(bits >> 16 * part));
            });
            break;
        case MMA_TF32: mma<8, 1, float>(warp, [](Word bits, int) { return f32_of_bits(bits & ~0x1fffu); }); break;
        case MMA_S8:
            mma<32, 4, int>(warp, [](Word bits, int part) { return int(static_cast<signed char>(bits >> 8 * part)); });
            break;
        case MMA_F64: mma_f64(warp); break;
    }
    for (Word left = warp.arrived; left; left &= left - 1) fibers[index * WARP + __builtin_ctz(left)].state = RUNNING;
    warp.ready = warp.live;
    warp.arrived = 0;
}

// ---- Blocks ------------------------------------------------------------------------------------------------------

void fiber_main() {
    kernel(arguments);
    check_waited("the end", 0);
    end_of_thread();
    Fiber &own = fibers[current];
    own.state = ENDED;
    const int index = current / WARP;
    Warp &warp = warps[index];
    warp.live &= ~(1u << current % WARP);
    warp.ready &= warp.live;
    --live_threads;
    if (warp.arrived && warp.arrived == warp.live) complete(index);
    if (live_threads && arrived_threads == live_threads) release_barrier();
    run_next();
    __builtin_unreachable();
}

void reserve_stack(Fiber &fiber) {
    if (fiber.stack) return;
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) emulation_fail(0, "no memory for the stack of a thread");
    mprotect(memory, PAGE, PROT_NONE);
    fiber.stack = static_cast<unsigned char *>(memory) + PAGE;
}

bool is_untouched(const unsigned char *from, const unsigned char *to) {
    for (; from < to; ++from)
        if (*from != POISON) return false;
    return true;
}

void run_block() {
    unsigned char *end = arena + ARENA;
    memset(emulation_dynamic_shared - MARGIN, POISON, end - emulation_dynamic_shared + MARGIN);
    memset(static_begin, POISON, static_end - static_begin);
    memset(warps, 0, sizeof warps);
    memset(has_waited, 0, sizeof has_waited);
    arrived_threads = 0;
    live_threads = threads;
    begin_races();
    begin_block();
    begin_in_cluster();
    for (int thread = 0; thread < threads; ++thread) {
        Fiber &fiber = fibers[thread];
        reserve_stack(fiber);
        current = thread;
        fiber.stack_pointer = first_frame(fiber.stack + STACK, fiber_main);
        fiber.state = RUNNING;
        fiber.count = fiber.group_count = fiber.line = 0;
        warps[thread / WARP].live |= 1u << thread % WARP;
    }
    for (int warp = 0; warp < warp_count; ++warp) warps[warp].ready = warps[warp].live;
    set_current(0);
    emulation_switch(&main_stack_pointer, fibers[0].stack_pointer);
    if (is_interrupted) return;
    end_block();
    if (!is_untouched(emulation_dynamic_shared - MARGIN, emulation_dynamic_shared))
        emulation_fail(0, "writes in front of dynamic shared memory");
    if (!is_untouched(emulation_dynamic_shared + dynamic_bytes, end))
        emulation_fail(0, "writes behind the end of dynamic shared memory, %zu bytes", dynamic_bytes);
}

void on_signal(int signal, siginfo_t *info, void *context) {
#if defined(__x86_64__)
    fault_address = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP];
#endif
    if (signal == SIGSEGV || signal == SIGBUS) {
        const auto *at = static_cast<const unsigned char *>(info->si_addr);
        const Fiber &fiber = fibers[current];
        if (at >= arena + ARENA && at < arena + ARENA + PAGE)
            emulation_fail(0,
                           "address out of range: %td bytes behind the start of dynamic shared memory, which has %zu",
                           at - emulation_dynamic_shared, dynamic_bytes);
        if (fiber.stack && at >= fiber.stack - PAGE && at < fiber.stack)
            emulation_fail(0, "the local variables of a thread need more than %zu bytes", STACK);
        emulation_fail(0, "invalid or misaligned address %p", static_cast<const void *>(at));
    }
    if (signal == SIGFPE) emulation_fail(0, "division by zero");
    if (signal == SIGILL) emulation_fail(0, "an instruction that does not exist");
    emulation_fail(0, "the kernel does not end within its time");
}

}  // namespace
}  // namespace emulation

#include "checks.h"
#include "copies.h"
#include "mbarrier.h"
#include "stores.h"
#include "cluster.h"
#include "wgmma.h"

namespace emulation {

// ---- What kernels call -------------------------------------------------------------------------------------------

extern "C" {

Index threadIdx, blockIdx, blockDim, gridDim;
unsigned char *emulation_dynamic_shared;

void emulation_fail(int line, const char *format, ...) {
    int length = snprintf(message, message_room, "block (%u, %u, %u), thread %d", blockIdx.x, blockIdx.y, blockIdx.z,
                          current);
    if (line) length += snprintf(message + length, message_room - length, ", line %d", line);
    length += snprintf(message + length, message_room - length, ": ");
    va_list values;
    va_start(values, format);
    vsnprintf(message + length, message_room - length, format, values);
    va_end(values);
    siglongjmp(back, 1);
}

void emulation_barrier(int line) {
    Fiber &own = fibers[current];
    Warp &warp = warps[current / WARP];
    if (arrived_threads && line != barrier_line)
        emulation_fail(line, "barrier divergence: %d threads wait at the barrier of line %d", arrived_threads,
                       barrier_line);
    barrier_line = own.line = line;
    own.state = AT_BARRIER;
    warp.ready &= ~(1u << current % WARP);
    if (++arrived_threads == live_threads) release_barrier();
    run_next();
}

void emulation_collective(Kind kind, int line, void *operands) {
    const int index = current / WARP, lane = current % WARP;
    Warp &warp = warps[index];
    if (warp.arrived && (kind != warp.kind || line != warp.line))
        emulation_fail(line, "warp divergence: this lane is at %s, %d others at %s of line %d", name_of(kind),
                       __builtin_popcount(warp.arrived), name_of(warp.kind), warp.line);
    warp.kind = kind;
    warp.line = line;
    warp.operands[lane] = operands;
    warp.arrived |= 1u << lane;
    if (warp.arrived == warp.live) return complete(index);
    warp.ready &= ~(1u << lane);
    fibers[current].state = IN_WARP;
    fibers[current].line = line;
    run_next();
}

// Shared memory as a kernel sees it: dynamic from address 0 on, static arrays in the upper half.
Word emulation_shared_address(const void *shared, int line) {
    const auto *pointer = static_cast<const unsigned char *>(shared);
    // an address that is only computed may be outside
    if (pointer >= static_begin && pointer < static_end) return 0x80000000u + Word(pointer - static_begin);
    if (pointer < arena || pointer > arena + ARENA)
        emulation_fail(line, "smem_address: %p is not in shared memory", shared);
    return Word(pointer - emulation_dynamic_shared);
}

void *emulation_shared_pointer(Word address) {
    if (address >= 0x80000000u && address - 0x80000000u < size_t(static_end - static_begin))
        return static_begin + (address - 0x80000000u);
    return emulation_dynamic_shared + static_cast<int>(address);
}

void *emulation_shared_access(Word address, int bytes, const char *what, int line) {
    void *pointer = emulation_shared_pointer(address);
    check_shared(pointer, bytes, current, line, what);
    return pointer;
}

void emulation_wait_for_launch_before() { has_waited[current] = true; }

// ---- What Python calls -------------------------------------------------------------------------------------------

// Runs a launch. Returns 0, or 1 with what went wrong in `text` and, if an instruction failed, where it is in `fault`.
int emulation_launch(void (*entry)(const void *), const void *slots, const unsigned *grid, int group, int blocks, size_t shared,
                     size_t alignment, void *shared_begin, void *shared_end, double seconds, int strict, int early,
                     int races, const size_t *ranges, int range_count, char *text, int room, uintptr_t *fault) {
    kernel = entry;
    arguments = slots;
    threads = group;
    cluster = blocks;
    is_last_round = false;
    warp_count = (group + WARP - 1) / WARP;
    is_strict = strict;
    is_early = early;
    finds_races = races;
    if (races) begin_launch_of_races(ranges, range_count);
    static_begin = static_cast<unsigned char *>(shared_begin);
    static_end = static_cast<unsigned char *>(shared_end);
    dynamic_bytes = shared;
    dynamic_alignment = alignment;
    message = text;
    message_room = room;
    fault_address = 0;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {static_cast<Word>(group), 1, 1};
    if (!arena) {
        void *memory = mmap(nullptr, ARENA + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return snprintf(text, room, "no memory"), 1;
        arena = static_cast<unsigned char *>(memory) + PAGE;
        mprotect(arena - PAGE, PAGE, PROT_NONE);
        mprotect(arena + ARENA, PAGE, PROT_NONE);
    }
    // aligned as it is declared and, up to MARGIN, no better
    const size_t unit = alignment > MARGIN ? alignment : MARGIN;
    emulation_dynamic_shared = arena + ARENA - (shared + unit - 1) / unit * unit - alignment % MARGIN;

    static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGRTMIN + 3};
    constexpr int CAUGHT = sizeof caught / sizeof *caught;
    struct sigaction action = {}, before[CAUGHT];
    stack_t own = {}, stack_before;
    own.ss_sp = signal_stack;
    own.ss_size = sizeof signal_stack;
    sigaltstack(&own, &stack_before);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int n = 0; n < CAUGHT; ++n) sigaction(caught[n], &action, &before[n]);
    timer_t timer;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN + 3;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    const bool has_timer = !timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
    if (has_timer) {
        itimerspec limit = {};
        limit.it_value.tv_sec = static_cast<time_t>(seconds);
        limit.it_value.tv_nsec = static_cast<long>((seconds - static_cast<double>(limit.it_value.tv_sec)) * 1e9) + 1;
        timer_settime(timer, 0, &limit, nullptr);
    }

    volatile int failed = 1;
    if (!sigsetjmp(back, 1)) {
        for (Word z = 0; z < grid[2]; ++z)
            for (Word y = 0; y < grid[1]; ++y)
                for (Word x = 0; x < grid[0]; x += cluster) {
                    blockIdx = {x, y, z};
                    run_cluster();
                }
        failed = 0;
    }

    if (races) end_launch_of_races();
    if (has_timer) timer_delete(timer);
    for (int n = 0; n < CAUGHT; ++n) sigaction(caught[n], &before[n], nullptr);
    sigaltstack(&stack_before, nullptr);
    *fault = fault_address;
    return failed;
}

}  // extern "C"

}  // namespace emulation
