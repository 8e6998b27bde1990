// What a thread knows of the others: vector clocks (Mattern; FastTrack of Flanagan and Freund), a part of races.h.
//
// Threads that met at a barrier know the same of all others, so vectors are shared, and copied when one of several that
// hold them changes it.
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
    Word at[MOST_KNOWN];
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
        memcpy(made->at, from->at, clock_width * sizeof *made->at);
    else
        memset(made->at, 0, clock_width * sizeof *made->at);
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

    void set(int agent, Word time) {
        if (of(agent) == time) return;
        own();
        held->at[agent] = time;
    }
    void raise(int agent, Word time) {
        if (of(agent) < time) set(agent, time);
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
        for (int n = 0; n < clock_width; ++n) has_all &= held->at[n] >= other.held->at[n];
        if (has_all) return;
        const bool is_shared = held->holders > 1;
        if (is_shared) one = *this;
        own();
        for (int n = 0; n < clock_width; ++n)
            if (held->at[n] < other.held->at[n]) held->at[n] = other.held->at[n];
        if (is_shared) another = other, both = *this;
    }
    // The smaller of both for each.
    void meet(const VectorClock &other) {
        own();
        for (int n = 0; n < clock_width; ++n)
            if (other.of(n) < held->at[n]) held->at[n] = other.of(n);
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
