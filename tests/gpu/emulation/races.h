// Accesses to memory that nothing orders: a part of runtime.cpp, where a launch asks for it.
//
// Each word of shared and of global memory has the accesses that no later one stands for, with the time of who made them. An access that
// finds another one, of which at least one writes, must know of it: by barriers of the block or of a warpgroup, __syncwarp,
// mbarriers, barriers of the cluster. Shuffles, votes, ldmatrix and mma order nothing (PTX ISA, memory consistency model);
// but what lanes read before a shuffle or a vote is taken to be over for their warp behind it, which may depend on it.
// What runs beside the threads has a time of its own: copies of boxes one for each mbarrier, stores of boxes one for
// each thread that starts them, products one for each warpgroup. Between the generic and the async proxy writes need
// async_proxy_fence of the writing thread, too. Thread blocks of a launch know of each other what signal_blocks has released.
#pragma once
#include "clocks.h"

#include <vector>

namespace emulation {
namespace {

enum Access { READS = 0, WRITES = 1, ASYNC = 2, ATOMIC = 4, PENDING = 8 };

constexpr int STATIC_ROOM = 64 << 10;  // bytes of static arrays that are looked at

struct Record {
    unsigned long long place;  // a line, or the address of the instruction behind
    Word time, run;            // the latter of the thread block
    unsigned short agent;
    unsigned char bytes, access;  // bytes of the word: a bit each
};

struct Cell {
    Word run;  // shared memory of another one has nothing
    int count, room;
    Record *records;
};

// Memory of the device, and what was done there in this launch.
struct Memory {
    const unsigned char *begin;
    size_t bytes;
    Cell *cells;
};

// What signal_blocks has released: what its thread knew, and which signals of other thread blocks.
struct Signal {
    const void *address;
    Word run;
    VectorClock known;
    std::vector<int> before;
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
    bool has(const Record &record) const {
        if (record.access & PENDING) return false;
        if (record.agent == self) return true;
        return (record.access & WRITES ? known->of(record.agent) : known->of_reads(record.agent)) >= record.time;
    }
};

// A signal that a thread has seen at a time of its own.
struct Seen {
    int signal, thread;
    Word time;
};

// What arrivals have released.
struct Released {
    VectorClock all, last;
};

bool finds_races;
Word run;                 // counts thread blocks as they run, and those that run again
std::vector<Index> runs;  // which thread block each of this launch was, from first_run on
Word first_run;
std::vector<Memory> memories;
std::vector<Signal> signals;
std::vector<Seen> seen;        // by this thread block
std::vector<Record *> chunks;  // of CHUNK records of global memory each; where the next one goes
constexpr size_t CHUNK = 1 << 16;
size_t chunk, chunk_at;
Cell cells[(ARENA + STATIC_ROOM) / 4];
VectorClock knowledge[MOST_THREADS];  // of all others
Word times[MOST_THREADS];
Word *fence_times[MOST_THREADS];  // times behind async_proxy_fence
int fence_count[MOST_THREADS], fence_room[MOST_THREADS];
Agent agents[MOST_KNOWN - MOST_THREADS];
int agent_count;

void begin_races() {
    if (!finds_races) return;
    ++run;
    runs.push_back(blockIdx);
    seen.clear();
    agent_count = 0;
    clock_width = threads + MOST_KNOWN - MOST_THREADS;
    memset(fence_count, 0, sizeof fence_count);
    for (int thread = 0; thread < threads; ++thread) knowledge[thread].forget(), times[thread] = 1;
}

// `ranges`: where memory of the device begins and its bytes.
void begin_launch_of_races(const size_t *ranges, int count) {
    first_run = run + 1;
    runs.clear(), signals.clear(), memories.clear();
    chunk = chunk_at = 0;
    for (int n = 0; n < count; ++n) {
        const auto *begin = reinterpret_cast<const unsigned char *>(ranges[2 * n]);
        auto *made = static_cast<Cell *>(calloc(ranges[2 * n + 1] / 4 + 1, sizeof(Cell)));
        if (made) memories.push_back({begin, ranges[2 * n + 1], made});
    }
}

void end_launch_of_races() {
    for (Memory &memory : memories) free(memory.cells);
    memories.clear();
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

void note_in_cluster(long address, long bytes, unsigned long long place);  // of cluster.h

// What a signal released is known to whoever sees it.
void see_signals(int thread, const void *address) {
    for (int n = 0; n < int(signals.size()); ++n) {
        if (signals[n].address != address) continue;
        seen.push_back({n, thread, times[thread]});
        for (const int before : signals[n].before) seen.push_back({before, thread, times[thread]});
    }
}

// Lanes of a warp have exchanged what they may have read.
void note_exchange(Word lanes, int warp) {
    if (!finds_races) return;
    VectorClock all, before, behind;
    for (Word left = lanes; left; left &= left - 1) all.join(knowledge[warp * WARP + __builtin_ctz(left)]);
    for (Word left = lanes; left; left &= left - 1) {
        const int thread = warp * WARP + __builtin_ctz(left);
        all.set(thread, times[thread]++);
    }
    for (Word left = lanes; left; left &= left - 1) {
        VectorClock &own = knowledge[warp * WARP + __builtin_ctz(left)];
        if (left == lanes || !own.is_same(before)) before = behind = own, behind.take_reads(all);
        own = behind;
    }
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
    if (record.run != run) {
        const Index &block = runs[record.run - first_run];
        length += snprintf(text + length, room - length, " in block (%u, %u, %u)", block.x, block.y, block.z);
    }
    const char *form = record.place >> 32 ? " (@%llx@)" : " (line %llu)";
    return length + snprintf(text + length, room - length, form, record.place);
}

bool is_of_shared(const Cell &cell) { return &cell >= cells && &cell < cells + sizeof cells / sizeof *cells; }

[[noreturn]] void report_race(const Cell &where, const Record &now, const Record &before, const char *what) {
    char one[160], other[160];
    describe_access(one, sizeof one, now);
    describe_access(other, sizeof other, before);
    const int line = now.place >> 32 ? 0 : int(now.place), byte = __builtin_ctz(now.bytes & before.bytes);
    for (const Memory &memory : memories)
        if (&where >= memory.cells && &where <= memory.cells + memory.bytes / 4)
            emulation_fail(line, "%s at byte %td of the %zu at %p in global memory: %s, and before that %s", what,
                           (&where - memory.cells) * 4 + byte, memory.bytes, memory.begin, one, other);
    const int cell = int(&where - cells);
    const bool is_static = cell >= int(ARENA / 4);
    emulation_fail(line, "%s at byte %d of %s shared memory: %s, and before that %s", what,
                   4 * (is_static ? cell - int(ARENA / 4) : cell) + byte, is_static ? "static" : "dynamic", one, other);
}

// Room for more records: twice as much.
void grow(Cell &cell) {
    const int room = cell.room ? 2 * cell.room : is_of_shared(cell) ? 4 : 2;
    if (is_of_shared(cell)) {
        cell.records = static_cast<Record *>(realloc(cell.records, room * sizeof *cell.records));
    } else {
        if (chunk_at + room > CHUNK) ++chunk, chunk_at = 0;
        if (chunk == chunks.size()) chunks.push_back(static_cast<Record *>(malloc(CHUNK * sizeof(Record))));
        if (cell.count) memcpy(chunks[chunk] + chunk_at, cell.records, cell.count * sizeof *cell.records);
        cell.records = chunks[chunk] + chunk_at;
        chunk_at += room;
    }
    cell.room = room;
}

// Whether what another thread block did is known, by a signal.
bool is_signalled(const Record &record, const View &view) {
    const Index &block = runs[record.run - first_run];
    // this one, which was interrupted and begins again
    if (block.x == blockIdx.x && block.y == blockIdx.y && block.z == blockIdx.z) return true;
    for (const Seen &one : seen) {
        const Signal &signal = signals[one.signal];
        const View of_signal = {&signal.known, -1, 0};
        if (signal.run == record.run && view.of(one.thread) >= one.time && of_signal.has(record)) return true;
    }
    return false;
}

bool is_read_by_another(const Record &record) { return record.run != run && !(record.access & WRITES); }

void note_access(Cell &cell, const Record &now, const View &view) {
    int kept = 0, others = 0;
    for (int n = 0; n < cell.count; ++n) {
        const Record record = cell.records[n];
        const Word both = record.bytes & now.bytes;
        if (both) {
            // the same once more: whoever came between has been compared with it. Not so of copies by cp_async, which have
            // no time before they are waited for
            if (record.run == run && record.agent == now.agent && record.time == now.time && both == now.bytes &&
                !(now.access & ~record.access) && !((record.access ^ now.access) & (ASYNC | ATOMIC)) && kept == n &&
                !(now.access & PENDING))
                return;
            const bool is_known = record.run != run ? is_signalled(record, view) : view.has(record);
            if ((record.access | now.access) & WRITES && !(record.access & now.access & ATOMIC)) {
                if (!is_known) report_race(cell, now, record, "race");
                const bool is_generic_write = record.run == run && (record.access & (WRITES | ASYNC)) == WRITES;
                if (now.access & ASYNC && is_generic_write && !is_fenced(record, view))
                    report_race(cell, now, record, "no async_proxy_fence behind a write");
            }
            // who knows of the new one knows of the old one
            if (is_known && both == record.bytes && (now.access & WRITES || !(record.access & WRITES))) continue;
        }
        // of what other thread blocks read, the first and the last two are enough to be met by whoever writes
        if (is_read_by_another(record) && ++others > 3 && is_read_by_another(cell.records[kept - 1])) --kept;
        cell.records[kept++] = record;
    }
    cell.count = kept;
    if (kept == cell.room) grow(cell);
    cell.records[cell.count++] = now;
}

// The first word of an address in shared memory, or -1.
int shared_cell_of(const void *pointer) {
    const auto *at = static_cast<const unsigned char *>(pointer);
    if (at >= emulation_dynamic_shared && at < emulation_dynamic_shared + dynamic_bytes)
        return int(at - emulation_dynamic_shared) / 4;
    if (at >= static_begin && at < static_end && at - static_begin < STATIC_ROOM)
        return int(ARENA + (at - static_begin)) / 4;
    return -1;
}

void note_bytes(const void *pointer, long bytes, Record now, const View &view) {
    const auto *at = static_cast<const unsigned char *>(pointer);
    const unsigned char *start = nullptr;
    Cell *cell = nullptr;
    const int index = shared_cell_of(pointer);
    if (index >= 0) {
        cell = cells + index;
        start = index < int(ARENA / 4) ? emulation_dynamic_shared : static_begin;
    } else {
        for (const Memory &memory : memories)
            if (at >= memory.begin && at < memory.begin + memory.bytes) {
                start = memory.begin;
                cell = memory.cells + (at - start) / 4;
            }
    }
    if (!cell) return;
    if (start == emulation_dynamic_shared && cluster > 1 && now.access & WRITES)
        note_in_cluster(at - emulation_dynamic_shared, bytes, now.place);
    for (long begin = (at - start) % 4, left = bytes; left > 0; begin = 0, ++cell) {
        const long end = begin + left < 4 ? begin + left : 4;
        now.bytes = static_cast<unsigned char>((1 << end) - (1 << begin));
        if (index >= 0 && cell->run != run) cell->run = run, cell->count = 0;
        note_access(*cell, now, view);
        left -= end - begin;
    }
}

// Of a thread.
void note_thread(int thread, const void *pointer, long bytes, int access, unsigned long long place) {
    if (!finds_races) return;
    const Record now = {place, access & PENDING ? ~0u : times[thread], run, static_cast<unsigned short>(thread), 0,
                        static_cast<unsigned char>(access)};
    note_bytes(pointer, bytes, now, view_of(thread));
}

// Of what runs beside the threads: `view` is what its start knows.
void note_agent(int agent, Word time, Word address, int bytes, int access, const View &view, int line) {
    const Record now = {static_cast<unsigned long long>(line), time, run, static_cast<unsigned short>(agent), 0,
                        static_cast<unsigned char>(access | ASYNC)};
    note_bytes(emulation_dynamic_shared + address, bytes, now, view);
}

// A copy by cp_async has arrived for the thread that waited for it.
void settle_copy(int thread, const void *pointer, long bytes) {
    if (!finds_races) return;
    const int first = shared_cell_of(pointer);
    for (int index = first; first >= 0 && index < first + int(bytes / 4); ++index) {
        Cell &cell = cells[index];
        for (int n = 0; cell.run == run && n < cell.count; ++n) {
            Record &record = cell.records[n];
            if (!(record.access & PENDING) || record.agent != thread) continue;
            record.access &= ~PENDING;
            record.time = times[thread];
        }
    }
}

}  // namespace

extern "C" void emulation_read(const void *pointer, int bytes, int line) {
    note_thread(current, pointer, bytes, READS, line);
}
extern "C" void emulation_write(const void *pointer, int bytes, int line) {
    note_thread(current, pointer, bytes, WRITES, line);
}
// Releases what the thread knows to whoever waits at this address, and acquires it there.
extern "C" void emulation_signal(const void *address) {
    if (!finds_races) return;
    const View view = view_of(current);
    Signal made = {address, run, knowledge[current], {}};
    made.known.raise(current, times[current]);
    for (const Seen &one : seen)
        if (view.of(one.thread) >= one.time) made.before.push_back(one.signal);
    signals.push_back(made);
    ++times[current];
}
extern "C" void emulation_see_signals(const void *address) {
    if (finds_races) see_signals(current, address);
}
extern "C" void emulation_atomic(const void *pointer, int bytes, int line) {
    note_thread(current, pointer, bytes, WRITES | ATOMIC, line);
}

}  // namespace emulation
