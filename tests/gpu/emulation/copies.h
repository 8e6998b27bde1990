// Copies of 4, 8 or 16 bytes by single threads (cp.async): a part of runtime.cpp.
#pragma once
#include "races.h"

namespace emulation {
extern "C" {

// A copy happens when it is waited for; until then its destination holds no number.
void emulation_copy(void *shared, const void *global, int bytes, bool is_valid, int line) {
    check_waited("cp_async", line);
    check_shared(shared, bytes, current, line, "cp_async");
    if (is_valid && reinterpret_cast<uintptr_t>(global) % bytes)
        emulation_fail(line, "cp_async: misaligned address %p in global memory: it must be a multiple of %d", global,
                       bytes);
    Fiber &own = fibers[current];
    if (own.count == own.room) {
        own.room = own.room ? 2 * own.room : 64;
        own.copies = static_cast<Copy *>(realloc(own.copies, own.room * sizeof *own.copies));
    }
    own.copies[own.count++] = {static_cast<unsigned char *>(shared), global, bytes, line, is_valid};
    note_thread(current, shared, bytes, WRITES | PENDING, line);
    if (is_valid) note_thread(current, global, bytes, READS, line);
    memset(shared, POISON, bytes);
}

void emulation_commit() {
    Fiber &own = fibers[current];
    if (own.group_count == own.group_room) {
        own.group_room = own.group_room ? 2 * own.group_room : 64;
        own.groups = static_cast<int *>(realloc(own.groups, own.group_room * sizeof *own.groups));
    }
    own.groups[own.group_count++] = own.count;
}

void emulation_wait(int pending) {
    Fiber &own = fibers[current];
    const int done = own.group_count - pending;
    if (done <= 0) return;
    const int copied = own.groups[done - 1];
    for (int n = 0; n < copied; ++n) {
        const Copy &copy = own.copies[n];
        if (copy.is_valid)
            memcpy(copy.shared, copy.global, copy.bytes);
        else
            memset(copy.shared, 0, copy.bytes);
        settle_copy(current, copy.shared, copy.bytes);
    }
    own.count -= copied;
    memmove(own.copies, own.copies + copied, own.count * sizeof *own.copies);
    own.group_count = pending;
    for (int n = 0; n < pending; ++n) own.groups[n] = own.groups[n + done] - copied;
}

}  // extern "C"
}  // namespace emulation
