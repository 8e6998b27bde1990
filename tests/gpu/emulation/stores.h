// Copies from shared memory into a tensor, and what threads write there: a part of runtime.cpp.
//
// A store reads when the thread that started it waits for that, or at the end of the block. What it has read only its
// thread knows, until a barrier comes.
#pragma once
#include "mbarrier.h"

namespace emulation {
namespace {

struct Store {
    Map map;
    Box box;
    Word address;
    int bytes, thread, line, group;
    bool is_read;  // as its thread knows
};

// What one thread has done. Fences: all, and those that the warpgroup and the block know by a barrier behind them.
struct Storing {
    int open, line;  // stores in no group, the line of the last
    int groups;
    int fences, in_warpgroup, in_block;
    int agent;  // in races.h
};

// The last write to 4 bytes of dynamic shared memory, and the fences of its thread in front of it.
struct Write {
    int thread, fences, line;  // counted from 1: 0 if there was none
};

Store *stores;  // in the order in which they were started
int store_count, store_room;
Storing storing[MOST_THREADS];
Write writes[ARENA / 4];
bool has_writes;

void begin_stores() {
    store_count = 0;
    memset(storing, 0, threads * sizeof *storing);
    if (has_writes) memset(writes, 0, sizeof writes);
    has_writes = false;
}

void read_now(Store &store) {
    store_box(store.map, store.box, emulation_dynamic_shared, store.address);
    store.is_read = true;
}

void end_stores() {
    for (int n = 0; n < store_count; ++n)
        if (!stores[n].is_read) read_now(stores[n]);
}

void check_committed(const char *what, int line) {
    if (storing[current].open)
        emulation_fail(line, "%s %d stores in no group: tma_store_commit is missing", what, storing[current].open);
}

template <typename Is>
void drop_stores(Is is_known) {
    int kept = 0;
    for (int n = 0; n < store_count; ++n)
        if (!is_known(stores[n])) stores[kept++] = stores[n];
    store_count = kept;
}

// Threads `from` to `to` were at a barrier, all of the block or those of a warpgroup.
void show_stores(int from, int to) {
    for (int thread = from; thread < to; ++thread) {
        Storing &own = storing[thread];
        own.in_warpgroup = own.fences;
        if (to - from == threads) own.in_block = own.fences;
    }
    drop_stores([&](const Store &store) { return store.is_read && store.thread >= from && store.thread < to; });
}

// An arrival at an mbarrier: whoever waits there knows what this thread does.
void hand_over_stores() {
    drop_stores([](const Store &store) { return store.is_read && store.thread == current; });
}

// A thread must not write, nor a copy that it starts fill, what a store has yet to read.
void check_stored(int thread, Word address, int bytes, const char *what, int line) {
    for (int n = 0; n < store_count; ++n) {
        const Store &store = stores[n];
        if (address >= store.address + store.bytes || store.address >= address + bytes) continue;
        if (store.is_read && thread == store.thread) continue;
        set_current(thread);
        emulation_fail(line,
                       store.is_read ? "%s: the store of line %d has read this, but no barrier came behind the "
                                       "tma_store_wait_read of thread %d"
                                     : "%s: the store of line %d, which thread %d has yet to wait for, reads this",
                       what, store.line, store.thread);
    }
}

void forget_writes(Word address, int bytes) {
    if (has_writes) memset(writes + address / 4, 0, bytes / 4 * sizeof *writes);
}

void note_write(int thread, const void *pointer, int bytes, const char *what, int line) {
    const auto *at = static_cast<const unsigned char *>(pointer);
    note_thread(thread, pointer, bytes, WRITES, line);
    if (at < emulation_dynamic_shared || at >= emulation_dynamic_shared + dynamic_bytes) return;
    const Word address = Word(at - emulation_dynamic_shared);
    check_stored(thread, address, bytes, what, line);
    has_writes = true;
    for (int n = 0; n < bytes; n += 4) writes[(address + n) / 4] = {thread + 1, storing[thread].fences, line};
}

// A store must read what the writing threads showed to copies, and told the thread that starts it.
void check_shown(Word address, int bytes, int line) {
    for (Word at = address; has_writes && at < address + bytes; at += 4) {
        const Write &write = writes[at / 4];
        if (!write.thread) continue;
        const int thread = write.thread - 1;
        const Storing &writer = storing[thread];
        if (writer.fences <= write.fences)
            emulation_fail(line, "tma_store: thread %d wrote to %u at line %d, with no async_proxy_fence behind that",
                           thread, at, write.line);
        const bool is_near = thread / WARPGROUP == current / WARPGROUP;
        if (thread != current && !(is_near && writer.in_warpgroup > write.fences) && writer.in_block <= write.fences)
            emulation_fail(line, "tma_store: thread %d wrote to %u at line %d, with no barrier behind its "
                           "async_proxy_fence", thread, at, write.line);
    }
}

// Each lane reads what it gets.
void note_ldmatrix(const Warp &warp, int index) {
    if (!finds_races) return;
    const auto &first = *static_cast<Ldmatrix *>(warp.operands[0]);
    for (int lane = 0; lane < WARP; ++lane)
        for (int matrix = 0; matrix < first.matrices; ++matrix)
            for (int half = 0; half < 2; ++half) {
                const int row = first.is_transposed ? 2 * (lane % 4) + half : lane / 4;
                const int column = first.is_transposed ? lane / 4 : 2 * (lane % 4) + half;
                const auto *from = static_cast<const Ldmatrix *>(warp.operands[8 * matrix + row])->row;
                note_thread(index * WARP + lane, static_cast<const unsigned short *>(from) + column, 2, READS, warp.line);
            }
}

// All lanes have come, with addresses of rows that have not been looked at.
void check_stmatrix(const Warp &warp, int index) {
    const auto row = [&](int lane) { return static_cast<Stmatrix *>(warp.operands[lane])->row; };
    const char *const what = "stmatrix";
    for (int lane = 0; lane < WARP; ++lane) check_shared(row(lane), 16, index * WARP + lane, warp.line, what);
    for (int lane = 0; lane < WARP; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix)
            if (!static_cast<Stmatrix *>(warp.operands[lane])->is_transposed)
                note_write(index * WARP + lane, static_cast<Word *>(row(8 * matrix + lane / 4)) + lane % 4, 4, what,
                           warp.line);
            else
                for (int half = 0; half < 2; ++half)
                    note_write(index * WARP + lane,
                               static_cast<unsigned short *>(row(8 * matrix + 2 * (lane % 4) + half)) + lane / 4, 2,
                               what, warp.line);
}

}  // namespace

extern "C" {

void *emulation_shared_write(Word address, int bytes, const char *what, int line) {
    void *pointer = emulation_shared_access(address, bytes, what, line);
    note_write(current, pointer, bytes, what, line);
    return pointer;
}

void emulation_tma_store(Word address, const Box *box, int line) {
    check_waited("tma_store", line);
    const Map map = checked_map(*box, address, "tma_store", line);
    const int bytes = bytes_of(map);
    for (int axis = 1; axis < map.rank; ++axis)
        if (map.steps[axis] != 1)
            emulation_fail(line, "tma_store: a step of %d along axis %d: stores are emulated in steps of 1",
                           map.steps[axis], axis);
    for (int axis = 0; axis < map.rank; ++axis)
        if (box->coordinates[axis] < 0)
            emulation_fail(line, "tma_store: coordinate %d along axis %d: a GPU stores from 0 on",
                           box->coordinates[axis], axis);
    if (map.extents[0] * static_cast<unsigned long long>(map.size) % 16)
        emulation_fail(line, "tma_store: rows of %u elements: a GPU leaves out whole pieces of 16 bytes",
                       map.extents[0]);
    for (int n = 0; n < flight_count; ++n)
        if (address < flights[n].address + flights[n].bytes && flights[n].address < address + bytes)
            emulation_fail(line, "tma_store: the copy of line %d, which nobody has waited for, fills what this reads",
                           flights[n].line);
    check_shown(address, bytes, line);
    if (store_count == store_room) {
        store_room = store_room ? 2 * store_room : 64;
        stores = static_cast<Store *>(realloc(stores, store_room * sizeof *stores));
    }
    Storing &own = storing[current];
    stores[store_count++] = {map, *box, address, bytes, current, line, own.groups, false};
    ++own.open;
    own.line = line;
    if (!finds_races) return;
    if (!own.agent) own.agent = new_agent("tma_store of thread", current, line);
    note_agent(own.agent, own.groups + 1, address, bytes, READS, view_of(current), line);
    for_global(map, *box, [&](const unsigned char *at, int count) {
        note_thread(current, at, count, WRITES | ASYNC, line);
    });
}

void emulation_tma_store_commit() {
    ++storing[current].groups;
    storing[current].open = 0;
}

void emulation_tma_store_wait_read(int pending, int line) {
    check_committed("tma_store_wait_read:", line);
    for (int n = 0; n < store_count; ++n) {
        Store &store = stores[n];
        if (store.thread == current && !store.is_read && store.group < storing[current].groups - pending)
            read_now(store);
    }
    const Storing &own = storing[current];
    if (own.agent && own.groups > pending) knowledge[current].raise(own.agent, own.groups - pending);
}

void emulation_async_proxy_fence() {
    ++storing[current].fences;
    fence_writes(current);
}

}  // extern "C"
}  // namespace emulation
