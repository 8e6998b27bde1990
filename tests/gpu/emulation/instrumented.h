// What g++'s -fsanitize=thread calls in front of loads and stores: a part of runtime.cpp, which has these functions in the
// place of libtsan.
#pragma once
#include "races.h"

namespace emulation {
extern "C" {

void __tsan_init() {}

#define PLACE reinterpret_cast<unsigned long long>(__builtin_return_address(0))
#define ACCESS(bytes)                                                                                                \
    void __tsan_read##bytes(void *at) { note_thread(current, at, bytes, READS, PLACE); }                             \
    void __tsan_write##bytes(void *at) { note_thread(current, at, bytes, WRITES, PLACE); }
#define UNALIGNED(bytes)                                                                                             \
    void __tsan_unaligned_read##bytes(void *at) { note_thread(current, at, bytes, READS, PLACE); }                   \
    void __tsan_unaligned_write##bytes(void *at) { note_thread(current, at, bytes, WRITES, PLACE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)
#undef ACCESS
#undef UNALIGNED
void __tsan_read_range(void *at, unsigned long bytes) { note_thread(current, at, long(bytes), READS, PLACE); }
void __tsan_write_range(void *at, unsigned long bytes) { note_thread(current, at, long(bytes), WRITES, PLACE); }
#undef PLACE

}  // extern "C"
}  // namespace emulation
