// What the compiler's checks call when one fails: a part of runtime.cpp.
#pragma once
#include "runtime.h"

namespace emulation {
extern "C" {

struct Place {
    const char *file;
    Word line, column;
};
#define CHECK(name, words) \
    void __ubsan_handle_##name(Place *place, ...) { emulation_fail(int(place->line), "%s", words); }
CHECK(type_mismatch_v1, "misaligned address of a load, a store or a reference")
CHECK(out_of_bounds, "index out of the bounds of an array")
CHECK(shift_out_of_bounds, "shift by a negative number or by all bits and more")
CHECK(add_overflow, "signed overflow of an addition")
CHECK(sub_overflow, "signed overflow of a subtraction")
CHECK(mul_overflow, "signed overflow of a multiplication")
CHECK(negate_overflow, "signed overflow of a negation")
CHECK(divrem_overflow, "division by zero, or of the least integer by -1")
#undef CHECK

}  // extern "C"
}  // namespace emulation
