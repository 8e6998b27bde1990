// What a thread knows of the others: vector clocks (Mattern; FastTrack of Flanagan and Freund), a part of races.h.
//
// Threads that met at a barrier know the same of all others, so vectors are shared, and copied when one of several that
// hold them changes it. Of each thread there are two times: up to the first all is known to be done, up to the second all
// reads, which are over behind a shuffle that may hand on what was read.
#pragma once
#include "runtime.h"

#include <cstdlib>
#include <cstring>

namespace emulation {
namespace {

constexpr int MOST_KNOWN = 1024 + 128;

struct Vector {
    int holders;
    Vector *next;  // of those that nobody holds
    Word at[2 * MOST_KNOWN];
};

int clock_width;  // threads of the block and what runs beside them
Vector *spare_vectors;

Vector *new_vector(const Vector *from) {
    Vector *made = spare_vectors;
    if (made)
        spare_vectors = made->next;
    else
        made = static_cast<Vector *>(malloc(sizeof *made));
    made->holders = 1;
    if (from)
        memcpy(made->at, from->at, 2 * clock_width * sizeof *made->at);
    else
        memset(made->at, 0, 2 * clock_width * sizeof *made->at);
    return made;
}

class VectorClock {
   public:
    VectorClock() = default;
    VectorClock(const VectorClock &other) : held(other.held) {
        if (held) ++held->holders;
    }
    VectorClock &operator=(const VectorClock &other) {
        if (other.held) ++other.held->holders;
        forget();
        held = other.held;
        return *this;
    }
    ~VectorClock() { forget(); }
    void forget() {
        if (held && !--held->holders) held->next = spare_vectors, spare_vectors = held;
        held = nullptr;
    }
    Word of(int agent) const { return held ? held->at[agent] : 0; }
    bool is_same(const VectorClock &other) const { return held == other.held; }

    Word of_reads(int agent) const { return held ? held->at[clock_width + agent] : 0; }
    void set(int agent, Word time) {
        if (of(agent) == time && of_reads(agent) == time) return;
        own();
        held->at[agent] = held->at[clock_width + agent] = time;
    }
    void raise(int agent, Word time) {
        if (of(agent) < time) set(agent, time);
    }
    void take_reads(const VectorClock &other) {
        own();
        memcpy(held->at + clock_width, other.held->at + clock_width, clock_width * sizeof *held->at);
    }
    // The larger of both for each.
    void join(const VectorClock &other) {
        static VectorClock one, another, both;  // threads of a barrier ask for the same one after the other
        if (!other.held || held == other.held) return;
        if (!held) {
            *this = other;
            return;
        }
        if (one.held == held && another.held == other.held) {
            *this = both;
            return;
        }
        bool has_all = true;
        for (int n = 0; n < 2 * clock_width; ++n) has_all &= held->at[n] >= other.held->at[n];
        if (has_all) return;
        const bool is_shared = held->holders > 1;
        if (is_shared) one = *this;
        own();
        for (int n = 0; n < 2 * clock_width; ++n)
            if (held->at[n] < other.held->at[n]) held->at[n] = other.held->at[n];
        if (is_shared) another = other, both = *this;
    }
    // The smaller of both for each.
    void meet(const VectorClock &other) {
        own();
        for (int n = 0; n < 2 * clock_width; ++n)
            if (!other.held || other.held->at[n] < held->at[n]) held->at[n] = other.held ? other.held->at[n] : 0;
    }

   private:
    Vector *held = nullptr;
    void own() {
        if (held && held->holders == 1) return;
        Vector *made = new_vector(held);
        forget();
        held = made;
    }
};

}  // namespace
}  // namespace emulation
