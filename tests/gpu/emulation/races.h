// Accesses to shared memory that nothing orders: a part of runtime.cpp, where a launch asks for it.
//
// Each word of shared memory has the accesses that no later one stands for, with the time of who made them. An access that
// finds another one, of which at least one writes, must know of it: by barriers of the block or of a warpgroup, __syncwarp,
// mbarriers, barriers of the cluster. Shuffles, votes, ldmatrix and mma order nothing (PTX ISA, memory consistency model).
// What runs beside the threads has a time of its own: copies of boxes one for each mbarrier, stores of boxes one for
// each thread that starts them, products one for each warpgroup. Between the generic and the async proxy writes need
// async_proxy_fence of the writing thread, too.
#pragma once
#include "clocks.h"

namespace emulation {
namespace {

enum Access { READS = 0, WRITES = 1, ASYNC = 2, ATOMIC = 4, PENDING = 8 };

constexpr int STATIC_ROOM = 64 << 10;  // bytes of static arrays that are looked at

struct Record {
    unsigned long long place;  // a line, or the address of the instruction behind
    Word time;
    unsigned short agent;
    unsigned char bytes, access;  // bytes of the word: a bit each
};

struct Cell {
    int block, count, room;  // of another block than this: there is nothing
    Record *records;
};

// What runs beside the threads, and has a time of its own.
struct Agent {
    const char *name;
    int index;
};

// What somebody knows: `self`, if it is a thread, is at time `now`.
struct View {
    const VectorClock *known;
    int self;
    Word now;
    Word of(int agent) const { return agent == self ? now : known->of(agent); }
};

// What arrivals have released.
struct Released {
    VectorClock all, last;
};

bool finds_races;
int race_block;  // counts all that have run
Cell cells[(ARENA + STATIC_ROOM) / 4];
VectorClock knowledge[MOST_THREADS];  // of all others
Word times[MOST_THREADS];
Word *fence_times[MOST_THREADS];  // times behind async_proxy_fence
int fence_count[MOST_THREADS], fence_room[MOST_THREADS];
Agent agents[MOST_KNOWN - MOST_THREADS];
int agent_count;

void begin_races() {
    if (!finds_races) return;
    ++race_block;
    agent_count = 0;
    clock_width = threads + MOST_KNOWN - MOST_THREADS;
    memset(fence_count, 0, sizeof fence_count);
    for (int thread = 0; thread < threads; ++thread) knowledge[thread].forget(), times[thread] = 1;
}

int new_agent(const char *name, int index, int line) {
    if (agent_count == MOST_KNOWN - MOST_THREADS)
        emulation_fail(line, "races: more than %d mbarriers, warpgroups and threads that store boxes", agent_count);
    agents[agent_count] = {name, index};
    return threads + agent_count++;
}

View view_of(int thread) { return {&knowledge[thread], thread, times[thread]}; }

// ---- Order -------------------------------------------------------------------------------------------------------

void release(int thread, Released &released) {
    if (!released.last.is_same(knowledge[thread])) released.all.join(knowledge[thread]), released.last = knowledge[thread];
    released.all.raise(thread, times[thread]++);
}

// All that `is_there` holds for know what each of them does.
template <typename Is>
void order_threads(int from, int to, Is is_there) {
    if (!finds_races) return;
    Released released;
    for (int thread = from; thread < to; ++thread)
        if (is_there(thread)) release(thread, released);
    for (int thread = from; thread < to; ++thread)
        if (is_there(thread)) knowledge[thread] = released.all;
}

void fence_writes(int thread) {
    if (!finds_races) return;
    if (fence_count[thread] == fence_room[thread]) {
        fence_room[thread] = fence_room[thread] ? 2 * fence_room[thread] : 64;
        fence_times[thread] = static_cast<Word *>(realloc(fence_times[thread], fence_room[thread] * sizeof(Word)));
    }
    fence_times[thread][fence_count[thread]++] = ++times[thread];
}

// Whether the thread that wrote called async_proxy_fence behind that, as far as is known.
bool is_fenced(const Record &record, const View &view) {
    const Word *fences = fence_times[record.agent];
    int from = 0, to = fence_count[record.agent];
    while (from < to) {
        const int middle = (from + to) / 2;
        if (fences[middle] > record.time)
            to = middle;
        else
            from = middle + 1;
    }
    return from < fence_count[record.agent] && view.of(record.agent) >= fences[from];
}

// ---- Accesses ----------------------------------------------------------------------------------------------------

int describe_access(char *text, int room, const Record &record) {
    const bool writes = record.access & WRITES;
    int length = 0;
    if (record.agent >= threads) {
        const Agent &agent = agents[record.agent - threads];
        length = snprintf(text, room, "%s %d %s", agent.name, agent.index, writes ? "writes" : "reads");
    } else {
        length = snprintf(text, room, "%sthread %d %s", record.access & PENDING ? "cp_async of " : "", record.agent,
                          record.access & ATOMIC ? "updates" : writes ? "writes" : "reads");
    }
    const char *form = record.place >> 32 ? " (@%llx@)" : " (line %llu)";
    return length + snprintf(text + length, room - length, form, record.place);
}

[[noreturn]] void report_race(int cell, const Record &now, const Record &before, const char *what) {
    char one[120], other[120];
    describe_access(one, sizeof one, now);
    describe_access(other, sizeof other, before);
    const bool is_static = cell >= int(ARENA / 4);
    const int byte = 4 * (is_static ? cell - int(ARENA / 4) : cell) + __builtin_ctz(now.bytes & before.bytes);
    emulation_fail(now.place >> 32 ? 0 : int(now.place), "%s at byte %d of %s shared memory: %s, and before that %s",
                   what, byte, is_static ? "static" : "dynamic", one, other);
}

void note_access(int index, const Record &now, const View &view) {
    Cell &cell = cells[index];
    if (cell.block != race_block) cell.block = race_block, cell.count = 0;
    int kept = 0;
    for (int n = 0; n < cell.count; ++n) {
        const Record record = cell.records[n];
        const Word both = record.bytes & now.bytes;
        if (both) {
            // the same once more: whoever came between has been compared with it
            if (record.agent == now.agent && record.time == now.time && both == now.bytes &&
                !(now.access & ~record.access) && !((record.access ^ now.access) & (ASYNC | ATOMIC)) && kept == n)
                return;
            const bool is_ordered = !(record.access & PENDING) && view.of(record.agent) >= record.time;
            if ((record.access | now.access) & WRITES && !(record.access & now.access & ATOMIC)) {
                if (!is_ordered) report_race(index, now, record, "race");
                if (now.access & ASYNC && (record.access & (WRITES | ASYNC)) == WRITES && !is_fenced(record, view))
                    report_race(index, now, record, "no async_proxy_fence behind a write");
            }
            // who knows of the new one knows of the old one
            if (is_ordered && both == record.bytes && (now.access & WRITES || !(record.access & WRITES))) continue;
        }
        cell.records[kept++] = record;
    }
    if (kept == cell.room) {
        cell.room = cell.room ? 2 * cell.room : 4;
        cell.records = static_cast<Record *>(realloc(cell.records, cell.room * sizeof *cell.records));
    }
    cell.records[kept++] = now;
    cell.count = kept;
}

// The first word of an address in shared memory, or -1.
int cell_of(const void *pointer) {
    const auto *at = static_cast<const unsigned char *>(pointer);
    if (at >= emulation_dynamic_shared && at < emulation_dynamic_shared + dynamic_bytes)
        return int(at - emulation_dynamic_shared) / 4;
    if (at >= static_begin && at < static_end && at - static_begin < STATIC_ROOM)
        return int(ARENA + (at - static_begin)) / 4;
    return -1;
}

void note_bytes(const void *pointer, long bytes, Record now, const View &view) {
    int index = cell_of(pointer);
    if (index < 0) return;
    const auto first = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(
        index < int(ARENA / 4) ? emulation_dynamic_shared : static_begin);
    for (long begin = long(first % 4), left = bytes; left > 0; begin = 0, ++index) {
        const long end = begin + left < 4 ? begin + left : 4;
        now.bytes = static_cast<unsigned char>((1 << end) - (1 << begin));
        note_access(index, now, view);
        left -= end - begin;
    }
}

// Of a thread.
void note_thread(int thread, const void *pointer, long bytes, int access, unsigned long long place) {
    if (!finds_races) return;
    const Record now = {place, access & PENDING ? ~0u : times[thread], static_cast<unsigned short>(thread), 0,
                        static_cast<unsigned char>(access)};
    note_bytes(pointer, bytes, now, view_of(thread));
}

// Of what runs beside the threads: `view` is what its start knows.
void note_agent(int agent, Word time, Word address, int bytes, int access, const View &view, int line) {
    const Record now = {static_cast<unsigned long long>(line), time, static_cast<unsigned short>(agent), 0,
                        static_cast<unsigned char>(access | ASYNC)};
    note_bytes(emulation_dynamic_shared + address, bytes, now, view);
}

// A copy by cp_async has arrived for the thread that waited for it.
void settle_copy(int thread, const void *pointer, long bytes) {
    if (!finds_races) return;
    const int first = cell_of(pointer);
    for (int index = first; first >= 0 && index < first + int(bytes / 4); ++index) {
        Cell &cell = cells[index];
        for (int n = 0; cell.block == race_block && n < cell.count; ++n) {
            Record &record = cell.records[n];
            if (!(record.access & PENDING) || record.agent != thread) continue;
            record.access &= ~PENDING;
            record.time = times[thread];
        }
    }
}

}  // namespace

extern "C" void emulation_shared_read(const void *pointer, int bytes, int line) {
    note_thread(current, pointer, bytes, READS, line);
}
extern "C" void emulation_atomic(const void *pointer, int bytes, int line) {
    note_thread(current, pointer, bytes, WRITES | ATOMIC, line);
}

}  // namespace emulation
