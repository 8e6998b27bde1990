// Clusters of thread blocks: a part of runtime.cpp.
//
// Blocks run one after the other. What others may read of a block's shared memory is kept as it is when all of its threads
// have arrived at a barrier of the cluster. A block that wants to read what another has not left yet ends there, and runs
// again from its beginning when that has run: so a kernel may write memory only behind the last barrier before which
// blocks wait for others, or the same each time.
#pragma once
#include "stores.h"

namespace emulation {
namespace {

constexpr int MOST_CLUSTER = 16, MOST_PHASES = 4, RANK_AT = 24;
constexpr Word OFFSETS = (1u << RANK_AT) - 1;

// What a block of the cluster has done.
struct Member {
    bool has_ended;
    int phases, stays_for;               // barriers that were complete; how many it must be there for, as others read
    unsigned char *left[MOST_PHASES];    // shared memory at each of them
    // where races are looked for, by barriers that were complete: which words others read, and where this block wrote them
    bool *read[MOST_PHASES + 1];
    unsigned long long *wrote[MOST_PHASES + 1];
};

Member members[MOST_CLUSTER];
Released cluster_arrivals;  // of this block's threads, at the next barrier
VectorClock cluster_over;         // what is known behind the last one
int rank;             // of the block
bool is_interrupted;  // it waits for other blocks
int cluster_arrived, cluster_phase;
bool is_phase_relaxed;
int cluster_waits[MOST_THREADS];  // the number of the barrier at which it has arrived, from 1; 0: none that it has not waited for
int cluster_waited[MOST_THREADS];

// Words of shared memory that others may read, or null.
template <typename type>
type *cleared(type *words) {
    if (!words) words = static_cast<type *>(malloc(ARENA / 4 * sizeof *words));
    memset(words, 0, ARENA / 4 * sizeof *words);
    return words;
}

// A thread writes: from its arrival at a barrier to its wait for the next, others may read what was there.
void note_in_cluster(long address, long bytes, unsigned long long place) {
    const int from = cluster_waited[current], to = cluster_waits[current] ? cluster_waits[current] : from;
    for (int phase = from; phase <= to && phase <= MOST_PHASES; ++phase)  // the last to arrive fails if there are more
        for (long word = address / 4; word < (address + bytes + 3) / 4 && address >= 0; ++word)
            members[rank].wrote[phase][word] = place;
}

// Behind all blocks of a cluster.
void check_cluster() {
    for (rank = 0; rank < cluster; ++rank)
        for (int phase = 0; phase <= MOST_PHASES; ++phase)
            for (int word = 0; word < int(dynamic_bytes / 4); ++word) {
                const unsigned long long place = members[rank].wrote[phase][word];
                if (!place || !members[rank].read[phase][word]) continue;
                const char *const form = place >> 32 ? "(@%llx@)" : "(line %llu)";
                char text[60];
                snprintf(text, sizeof text, form, place);
                emulation_fail(0, "race at byte %d of dynamic shared memory of block %d of the cluster: it writes %s, and "
                               "others read, behind barrier %d of the cluster", 4 * word, rank, text, phase);
            }
}

void begin_in_cluster() {
    for (int phase = 0; finds_races && cluster > 1 && phase <= MOST_PHASES; ++phase)
        members[rank].wrote[phase] = cleared(members[rank].wrote[phase]);
    is_interrupted = false;
    cluster_arrived = cluster_phase = 0;
    is_phase_relaxed = true;
    memset(cluster_waits, 0, sizeof cluster_waits);
    memset(cluster_waited, 0, sizeof cluster_waited);
    cluster_arrivals = {};
    cluster_over.forget();
}

// Goes back to where the block was begun; nothing of it goes on.
void interrupt() {
    is_interrupted = true;
    void *nowhere;
    emulation_switch(&nowhere, main_stack_pointer);
}

// Runs the blocks of a cluster, of which this is the first, until all have ended.
void run_cluster() {
    const Word first = blockIdx.x;
    for (Member &one : members) one.has_ended = false, one.phases = one.stays_for = 0;
    for (int n = 0; finds_races && cluster > 1 && n < cluster; ++n)
        for (bool *&words : members[n].read) words = cleared(words);
    for (int left = cluster, known = -1; left;) {
        int phases = 0;
        for (int n = 0; n < cluster; ++n) phases += members[n].phases;
        is_last_round = phases == known;
        known = phases;
        for (rank = 0; rank < cluster; ++rank) {
            if (members[rank].has_ended) continue;
            blockIdx.x = first + rank;
            run_block();
            if (!is_interrupted) members[rank].has_ended = true, --left;
        }
    }
    for (rank = 0; rank < cluster; ++rank)
        if (members[rank].phases < members[rank].stays_for)
            emulation_fail(0, "block %d of the cluster ends while others read its memory: no barrier of the cluster behind",
                           rank);
    if (finds_races && cluster > 1) check_cluster();
}

}  // namespace

extern "C" {

Word emulation_cluster_address(Word address, int block, int line) {
    if (block < 0 || block >= cluster)
        emulation_fail(line, "cluster_address: block %d of a cluster of %d", block, cluster);
    if (address > OFFSETS) emulation_fail(line, "cluster_address: of dynamic shared memory only, not %u", address);
    return address | Word(block) << RANK_AT;
}

// The own address of what cluster_address made.
Word emulation_own_address(Word there, const char *what, int line) {
    if (int(there >> RANK_AT) != rank)
        emulation_fail(line, "%s: writes to other blocks of a cluster are not emulated", what);
    return there & OFFSETS;
}

const void *emulation_cluster_access(Word there, int bytes, const char *what, int line) {
    const int block = int(there >> RANK_AT);
    const Word address = there & OFFSETS;
    void *own = emulation_shared_access(address, bytes, what, line);
    if (block == rank) {
        note_thread(current, own, bytes, READS, line);
        return own;
    }
    const int phase = cluster_waited[current];
    if (!phase) emulation_fail(line, "%s: no cluster_wait before: block %d may not have begun", what, block);
    if (cluster_waits[current])
        emulation_fail(line, "%s: behind cluster_arrive, by which block %d may write its memory", what, block);
    Member &other = members[block];
    if (other.phases < phase) {
        if (other.has_ended || is_last_round)
            emulation_fail(line, "%s: block %d does not come to barrier %d of the cluster", what, block, phase);
        interrupt();
    }
    if (other.stays_for <= phase) other.stays_for = phase + 1;
    if (finds_races) memset(other.read[phase] + address / 4, true, bytes / 4);
    return other.left[phase - 1] + address;
}

void emulation_cluster_arrive(bool is_relaxed, int line) {
    if (cluster_waits[current]) emulation_fail(line, "cluster_arrive: twice, without cluster_wait");
    cluster_waits[current] = cluster_phase + 1;
    is_phase_relaxed = is_phase_relaxed && is_relaxed;
    if (finds_races && !is_relaxed) release(current, cluster_arrivals);
    if (++cluster_arrived < live_threads) return;
    if (cluster_phase == MOST_PHASES && cluster > 1)
        emulation_fail(line, "cluster_arrive: more than %d barriers of a cluster are not emulated", MOST_PHASES);
    if (cluster > 1) {
        Member &own = members[rank];
        unsigned char *&kept = own.left[cluster_phase];
        kept = static_cast<unsigned char *>(realloc(kept, ARENA));
        if (is_phase_relaxed)
            memset(kept, POISON, dynamic_bytes);
        else
            memcpy(kept, emulation_dynamic_shared, dynamic_bytes);
        if (own.phases <= cluster_phase) own.phases = cluster_phase + 1;
    }
    if (!is_phase_relaxed) show_to_block();
    cluster_arrived = 0;
    is_phase_relaxed = true;
    ++cluster_phase;
    cluster_over = cluster_arrivals.all;
    for (int thread = 0; thread < threads; ++thread)
        if (fibers[thread].state == AT_CLUSTER_BARRIER) knowledge[thread].join(cluster_over), wake(thread);
}

void emulation_cluster_wait(int line) {
    const int phase = cluster_waits[current];
    if (!phase) emulation_fail(line, "cluster_wait: no cluster_arrive before");
    cluster_waits[current] = 0;
    cluster_waited[current] = phase;
    if (cluster_phase >= phase) return knowledge[current].join(cluster_over);
    Fiber &own = fibers[current];
    own.state = AT_CLUSTER_BARRIER;
    own.line = line;
    warps[current / WARP].ready &= ~(1u << current % WARP);
    run_next();
}

}  // extern "C"
}  // namespace emulation
