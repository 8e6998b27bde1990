// What Python finds of kernels, behind their text.

namespace emulation {
// A kernel's arguments lie in 8 bytes each.
template <typename type>
static inline type argument(const unsigned long long *slot) {
    static_assert(sizeof(type) == 8, "arguments of kernels are pointers, SCALE and i64");
    type value;
    __builtin_memcpy(&value, slot, sizeof value);
    return value;
}
template <int... numbers>
struct Numbers {};
template <typename... types, int... numbers>
static inline void call(void (*kernel)(types...), const unsigned long long *slots, Numbers<numbers...>) {
    kernel(argument<types>(slots + numbers)...);
}
template <typename... types>
static inline void call(void (*kernel)(types...), const void *slots) {
    call(kernel, (const unsigned long long *)slots, Numbers<__integer_pack((int)sizeof...(types))...>{});
}
static constexpr int first(int threads, int = 0, int = 0) { return threads; }
template <typename... types>
static constexpr int arity(void (*)(types...)) {
    return (int)sizeof...(types);
}
}  // namespace emulation

// All that is static and not constant is shared arrays: build.py renames their section (.bss; templates heed no
// section attribute), so that every block can begin with poison in it.
extern "C" char __start_shared_arrays[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shared_arrays[] __attribute__((weak, visibility("hidden")));

#define EMULATION_VISIBLE extern "C" __attribute__((visibility("default")))
EMULATION_VISIBLE void *emulation_shared_begin() { return __start_shared_arrays; }
EMULATION_VISIBLE void *emulation_shared_end() { return __stop_shared_arrays; }
#define EMULATION_ALIGNMENT(bytes) EMULATION_VISIBLE int emulation_alignment() { return bytes; }
#define EMULATION_EXPORT(name, ...)                                                                                    \
    EMULATION_VISIBLE void emulation_entry_##name(const void *slots) { emulation::call(name, slots); }                 \
    EMULATION_VISIBLE int emulation_arity_##name() { return emulation::arity(name); }                                  \
    EMULATION_VISIBLE int emulation_threads_##name() { return emulation::first(__VA_ARGS__); }
