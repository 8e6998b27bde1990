// Barriers in shared memory, the copies that count at them, and barriers of a warpgroup: a part of runtime.cpp.
//
// A copy arrives when nobody can run until it does; from its start to then its destination holds no number.
#pragma once
#include "tma.h"

namespace emulation {
namespace {

constexpr int MOST_MBARRIERS = 512, WARPGROUP = 4 * WARP, MOST_WARPGROUPS = MOST_THREADS / WARPGROUP;
constexpr int MOST_ARRIVALS = (1 << 20) - 1;
constexpr Word MBARRIER_MARK = 0x7261626d;

// How far others know of a barrier: the copy engine after a fence, other threads after a barrier of the block, too.
enum Known { TO_ITSELF, TO_COPIES, TO_ALL };

struct Mbarrier {
    unsigned char *pointer;
    Word address, phase;
    int thread;  // which made it
    Known known;
    int count, missing;  // arrivals of each phase, and of this
    long bytes;          // that copies have still to bring
    int agent;           // the copies that count here, in races.h; 0 before there are any
};

struct Flight {
    Map map;
    Box box;
    Word address;
    int barrier;
    Word phase;
    int bytes, thread, line;
};

// What was asked for as far as the L2 cache, and is to be copied by this block.
struct Asked {
    Map map;
    Box box;
    int thread, line;
};

bool is_same(const Box &a, const Box &b) {
    return !memcmp(a.coordinates, b.coordinates, a.rank * sizeof *a.coordinates) &&
           !memcmp(a.taps, b.taps, sizeof a.taps);
}

// Threads of one warpgroup that wait for the others.
struct Meeting {
    int arrived, warpgroup, line;
};

Mbarrier mbarriers[MOST_MBARRIERS];
int mbarrier_count;
Released released[MOST_MBARRIERS];  // what whoever waits will know
VectorClock over[MOST_MBARRIERS];         // what it knows of the last phase that is over
Flight *flights;  // in the order in which they were started
int flight_count, flight_room;
Asked *asked;
int asked_count, asked_room;
Meeting named_barriers[16];

// Of wgmma.h and stores.h, which come further down.
void begin_warpgroups();
void check_unread(Word address, int bytes, int line);
void begin_stores();
void end_stores();
void check_stored(int thread, Word address, int bytes, const char *what, int line);
void forget_writes(Word address, int bytes);
void show_stores(int from, int to);
void hand_over_stores();

void begin_block() {
    mbarrier_count = flight_count = asked_count = 0;
    memset(named_barriers, 0, sizeof named_barriers);
    begin_warpgroups();
    begin_stores();
}

void end_block() {
    end_stores();
    if (asked_count) {
        set_current(asked[0].thread);
        emulation_fail(asked[0].line, "tma_load: this box (and %d others) is asked for, and the block does not copy it",
                       asked_count - 1);
    }
    if (!flight_count) return;
    set_current(flights[0].thread);
    emulation_fail(flights[0].line, "the block ends before this copy (and %d others) has arrived: nobody waits for it",
                   flight_count - 1);
}

// Behind a barrier of the block.
void show_to_block() {
    for (int n = 0; n < mbarrier_count; ++n)
        if (mbarriers[n].known == TO_COPIES) mbarriers[n].known = TO_ALL;
    show_stores(0, threads);
}

unsigned char *mbarrier_pointer(Word address, const char *what, int line) {
    auto *pointer = static_cast<unsigned char *>(emulation_shared_pointer(address));
    check_shared(pointer, 8, current, line, what);
    return pointer;
}

Mbarrier &mbarrier_at(Word address, const char *what, int line) {
    const unsigned char *pointer = mbarrier_pointer(address, what, line);
    Word held[2];
    memcpy(held, pointer, sizeof held);
    if (held[0] == MBARRIER_MARK && held[1] < Word(mbarrier_count) && mbarriers[held[1]].pointer == pointer) {
        Mbarrier &found = mbarriers[held[1]];
        if (found.thread != current && found.known != TO_ALL)
            emulation_fail(line, "%s: thread %d made the mbarrier at %u%s, and no barrier of the block came behind",
                           what, found.thread, address,
                           found.known == TO_ITSELF ? " without mbarrier_init_fence" : "");
        return found;
    }
    for (int n = 0; n < mbarrier_count; ++n)
        if (mbarriers[n].pointer == pointer)
            emulation_fail(line, "%s: something was written over the mbarrier at %u", what, address);
    emulation_fail(line, "%s: there was no mbarrier_init at %u", what, address);
}

bool is_over(const Mbarrier &barrier, Word parity) { return (barrier.phase & 1) != parity; }

void wake(int thread) {
    fibers[thread].state = RUNNING;
    warps[thread / WARP].ready |= 1u << thread % WARP;
}

// Begins the next phase if this one is complete.
void advance(Mbarrier &barrier, const char *what, int line) {
    if (barrier.missing) return;
    if (barrier.bytes < 0)
        emulation_fail(line, "%s: copies bring %ld bytes more to the mbarrier at %u than were promised", what,
                       -barrier.bytes, barrier.address);
    if (barrier.bytes) return;
    ++barrier.phase;
    barrier.missing = barrier.count;
    const int index = static_cast<int>(&barrier - mbarriers);
    if (barrier.agent) released[index].all.set(barrier.agent, barrier.phase);
    over[index] = released[index].all;
    for (int thread = 0; thread < threads; ++thread) {
        const Fiber &fiber = fibers[thread];
        if (fiber.state != AT_MBARRIER || fiber.wanted != index || !is_over(barrier, fiber.parity)) continue;
        knowledge[thread].join(over[index]);
        wake(thread);
    }
}

// Nobody can run: the copies arrive that somebody waits for, those of one barrier. False if there are none.
bool deliver_copies() {
    int index = -1;
    for (int n = 0; n < flight_count && index < 0; ++n)
        for (int thread = 0; thread < threads && index < 0; ++thread)
            if (fibers[thread].state == AT_MBARRIER && fibers[thread].wanted == flights[n].barrier)
                index = flights[n].barrier;
    if (index < 0) return false;
    const int was = current;
    int kept = 0;
    Mbarrier &barrier = mbarriers[index];
    for (int n = 0; n < flight_count; ++n) {
        const Flight &flight = flights[n];
        if (flight.barrier != index) {
            flights[kept++] = flight;
            continue;
        }
        set_current(flight.thread);
        if (flight.phase != barrier.phase)
            emulation_fail(flight.line,
                           "tma_load: its phase of the mbarrier at %u is over: fewer bytes were promised",
                           barrier.address);
        load_box(flight.map, flight.box, emulation_dynamic_shared, flight.address);
        barrier.bytes -= flight.bytes;
        advance(barrier, "tma_load", flight.line);
    }
    flight_count = kept;
    set_current(was);
    return true;
}

int describe_wait(const Fiber &fiber, char *text, int room) {
    const int length = snprintf(text, room, "wait at line %d for ", fiber.line);
    if (fiber.state == AT_WARPGROUP_BARRIER)
        return length + snprintf(text + length, room - length, "their warpgroup at barrier %d", fiber.wanted);
    if (fiber.state == IN_WARPGROUP)
        return length + snprintf(text + length, room - length, "their warpgroup at wgmma_wait");
    if (fiber.state == AT_CLUSTER_BARRIER) return length + snprintf(text + length, room - length, "all of the cluster");
    const Mbarrier &barrier = mbarriers[fiber.wanted];
    return length + snprintf(text + length, room - length,
                             "the mbarrier at %u, parity %u: %d of %d arrivals and %ld bytes are missing",
                             barrier.address, fiber.parity, barrier.missing, barrier.count, barrier.bytes);
}

// ---- Warpgroups --------------------------------------------------------------------------------------------------

int whole_warpgroup(const char *what, int line) {
    const int warpgroup = current / WARPGROUP;
    if ((warpgroup + 1) * WARPGROUP > threads)
        emulation_fail(line, "%s needs the 128 threads of a warpgroup: the block has %d behind the last whole one",
                       what, threads % WARPGROUP);
    return warpgroup;
}

// Waits for the others of the warpgroup. True to the last, who does not wait, but cannot be chosen to run until
// somebody lets all of them go.
bool is_last_to_come(Meeting &meeting, int wanted, State state, const char *what, int line) {
    const int warpgroup = whole_warpgroup(what, line);
    if (meeting.arrived && meeting.warpgroup != warpgroup)
        emulation_fail(line, "%s: %d threads of warpgroup %d wait here, too", what, meeting.arrived, meeting.warpgroup);
    if (meeting.arrived && meeting.line != line)
        emulation_fail(line, "%s: %d threads of the warpgroup wait at line %d instead", what, meeting.arrived,
                       meeting.line);
    Fiber &own = fibers[current];
    meeting.warpgroup = warpgroup;
    meeting.line = own.line = line;
    own.state = state;
    own.wanted = wanted;
    warps[current / WARP].ready &= ~(1u << current % WARP);
    if (++meeting.arrived == WARPGROUP) return true;
    run_next();
    return false;
}

void let_go(Meeting &meeting) {
    meeting.arrived = 0;
    for (int n = 0; n < WARPGROUP; ++n) wake(meeting.warpgroup * WARPGROUP + n);
}

// ---- Copies ------------------------------------------------------------------------------------------------------

int bytes_of(const Map &map) { return row_of(map) * rows_of(map); }

// The map of a box between a tensor and shared memory, if the box may lie at `address`.
Map checked_map(const Box &box, Word address, const char *what, int line) {
    Map map;
    memcpy(&map, box.map, sizeof map);
    if (map.mark != MAP_MARK) emulation_fail(line, "%s: there is no tensor map at %p", what, box.map);
    if (map.rank != box.rank || map.is_im2col != box.is_im2col)
        emulation_fail(line, "%s: the tensor map is %s of rank %d, the copy %s of rank %d", what,
                       map.is_im2col ? "im2col" : "tiled", map.rank, box.is_im2col ? "im2col" : "tiled", box.rank);
    const int bytes = bytes_of(map);
    const Word unit = 8 * row_of(map);
    if (dynamic_alignment < unit)
        emulation_fail(line, "%s: dynamic shared memory must be declared as aligned to %u bytes, not %zu", what, unit,
                       dynamic_alignment);
    if (address % unit)
        emulation_fail(line, "%s: shared address %u must be a multiple of %u", what, address, unit);
    if (size_t(address) + bytes > dynamic_bytes)
        emulation_fail(line, "%s: %d bytes at %u are out of range of dynamic shared memory, which has %zu", what,
                       bytes, address, dynamic_bytes);
    return map;
}

}  // namespace

extern "C" {

void emulation_mbarrier_init(Word address, Word arrivals, int line) {
    const char *const what = "mbarrier_init";
    unsigned char *pointer = mbarrier_pointer(address, what, line);
    if (arrivals < 1 || arrivals > MOST_ARRIVALS)
        emulation_fail(line, "%s: a barrier of %u arrivals: there must be 1 to %d", what, arrivals, MOST_ARRIVALS);
    for (int n = 0; n < mbarrier_count; ++n)
        if (mbarriers[n].pointer == pointer) emulation_fail(line, "%s: there is an mbarrier at %u", what, address);
    if (mbarrier_count == MOST_MBARRIERS)
        emulation_fail(line, "%s: more than %d barriers are not emulated", what, MOST_MBARRIERS);
    const int count = static_cast<int>(arrivals);
    mbarriers[mbarrier_count] = {pointer, address, 0, current, TO_ITSELF, count, count, 0, 0};
    released[mbarrier_count].all.forget(), released[mbarrier_count].last.forget(), over[mbarrier_count].forget();
    const Word held[2] = {MBARRIER_MARK, Word(mbarrier_count++)};
    memcpy(pointer, held, sizeof held);
}

void emulation_mbarrier_fence() {
    for (int n = 0; n < mbarrier_count; ++n)
        if (mbarriers[n].thread == current && mbarriers[n].known == TO_ITSELF) mbarriers[n].known = TO_COPIES;
}

void emulation_mbarrier_arrive(Word address, Word bytes, int line) {
    const char *const what = bytes ? "mbarrier_arrive_expect" : "mbarrier_arrive";
    Mbarrier &barrier = mbarrier_at(address, what, line);
    if (!barrier.missing)
        emulation_fail(line, "%s: more than the %d arrivals of a phase at the mbarrier at %u, which misses %ld bytes",
                       what, barrier.count, address, barrier.bytes);
    barrier.bytes += bytes;
    if (barrier.bytes > MOST_ARRIVALS)
        emulation_fail(line, "%s: %ld bytes in one phase: there can be %d", what, barrier.bytes, MOST_ARRIVALS);
    --barrier.missing;
    hand_over_stores();
    if (finds_races) release(current, released[&barrier - mbarriers]);
    advance(barrier, what, line);
}

void emulation_mbarrier_wait(Word address, Word parity, int line) {
    const Mbarrier &barrier = mbarrier_at(address, "mbarrier_wait", line);
    if (parity > 1) emulation_fail(line, "mbarrier_wait: a parity is 0 or 1, not %u", parity);
    if (is_over(barrier, parity)) return knowledge[current].join(over[&barrier - mbarriers]);
    Fiber &own = fibers[current];
    own.state = AT_MBARRIER;
    own.wanted = static_cast<int>(&barrier - mbarriers);
    own.parity = parity;
    own.line = line;
    warps[current / WARP].ready &= ~(1u << current % WARP);
    run_next();
}

void emulation_warpgroup_barrier(int number, int line) {
    if (number < 1 || number > 15) emulation_fail(line, "warpgroup_barrier: its number is 1 to 15, not %d", number);
    Meeting &meeting = named_barriers[number];
    if (!is_last_to_come(meeting, number, AT_WARPGROUP_BARRIER, "warpgroup_barrier", line)) return;
    const int first = meeting.warpgroup * WARPGROUP;
    show_stores(first, first + WARPGROUP);
    order_threads(first, first + WARPGROUP, [](int) { return true; });
    let_go(meeting);
}

void emulation_tma_ask(const Box *box, int line) {
    if (asked_count == asked_room) {
        asked_room = asked_room ? 2 * asked_room : 64;
        asked = static_cast<Asked *>(realloc(asked, asked_room * sizeof *asked));
    }
    Asked &one = asked[asked_count++];
    one.box = *box, one.thread = current, one.line = line;
    memcpy(&one.map, box->map, sizeof one.map);
}

void emulation_tma_load(Word address, Word barrier_address, const Box *box, int line) {
    check_waited("tma_load", line);
    const char *const what = "tma_load";
    const Map map = checked_map(*box, address, what, line);
    Mbarrier &barrier = mbarrier_at(barrier_address, what, line);
    if (barrier.known == TO_ITSELF)
        emulation_fail(line, "%s: no mbarrier_init_fence since mbarrier_init at %u", what, barrier_address);
    if (box->coordinates[0] * static_cast<long long>(map.size) % 16)
        emulation_fail(line, "%s: a box begins at element %d: that must be a multiple of 16 bytes", what,
                       box->coordinates[0]);
    for (int axis = 1; axis < map.rank - 1 && map.is_im2col; ++axis) {
        const int tap = box->taps[axis - 1], most = map.rank == 3 ? 65535 : map.rank == 4 ? 255 : 31;
        if (tap < 0 || tap > most) emulation_fail(line, "%s: a tap at %d: it can be 0 to %d", what, tap, most);
        const long long from = map.lower[axis - 1], at = box->coordinates[axis];
        const long long to = static_cast<long long>(map.extents[axis]) - 1 + map.upper[axis - 1];
        if (at < from || at > to || (at - from) % map.steps[axis])
            emulation_fail(line, "%s: no window begins at %lld along axis %d, but from %lld to %lld in steps of %d",
                           what, at, axis, from, to, map.steps[axis]);
    }
    if (flight_count == flight_room) {
        flight_room = flight_room ? 2 * flight_room : 64;
        flights = static_cast<Flight *>(realloc(flights, flight_room * sizeof *flights));
    }
    int kept = 0;
    for (int n = 0; n < asked_count; ++n)
        if (memcmp(&asked[n].map, &map, sizeof map) || !is_same(asked[n].box, *box)) asked[kept++] = asked[n];
    asked_count = kept;
    const int bytes = bytes_of(map);
    check_unread(address, bytes, line);
    check_stored(current, address, bytes, what, line);
    forget_writes(address, bytes);
    memset(emulation_dynamic_shared + address, POISON, bytes);
    if (finds_races) {
        if (!barrier.agent) barrier.agent = new_agent("tma_load of mbarrier", int(barrier_address), line);
        note_agent(barrier.agent, barrier.phase + 1, address, bytes, WRITES, view_of(current), line);
        for_global(map, *box, [&](const unsigned char *at, int count) {
            note_thread(current, at, count, READS, line);
        });
    }
    const int index = static_cast<int>(&barrier - mbarriers);
    flights[flight_count++] = {map, *box, address, index, barrier.phase, bytes, current, line};
}

}  // extern "C"
}  // namespace emulation
