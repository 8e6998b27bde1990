// What Python finds of kernels, behind their text.

namespace emulation {
// A kernel's arguments lie in 8 bytes each; a structure, which only the first may be, where these 8 bytes point.
template <typename type, int number>
static inline type argument(const unsigned long long *slots) {
    static_assert(__is_class(type) ? number == 0 : sizeof(type) == 8,
                  "arguments of kernels are pointers, SCALE and i64; a structure can be the first");
    type value;
    __builtin_memcpy(&value, __is_class(type) ? (const void *)slots[number] : slots + number, sizeof value);
    return value;
}
template <int... numbers>
struct Numbers {};
template <typename... types, int... numbers>
static inline void call(void (*kernel)(types...), const unsigned long long *slots, Numbers<numbers...>) {
    kernel(argument<types, numbers>(slots)...);
}
template <typename... types>
static inline void call(void (*kernel)(types...), const void *slots) {
    call(kernel, (const unsigned long long *)slots, Numbers<__integer_pack((int)sizeof...(types))...>{});
}
static constexpr int first(int threads, int = 0, int = 0) { return threads; }
static constexpr int third(int, int = 0, int cluster = 1) { return cluster; }
template <typename... types>
static constexpr int arity(void (*)(types...)) {
    return (int)sizeof...(types);
}
// Bytes of the structure that is the first argument, or 0.
template <typename type, typename... types>
static constexpr int structure(void (*)(type, types...)) {
    return __is_class(type) ? (int)sizeof(type) : 0;
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
    EMULATION_VISIBLE int emulation_structure_##name() { return emulation::structure(name); }                          \
    EMULATION_VISIBLE int emulation_threads_##name() { return emulation::first(__VA_ARGS__); }                    \
    EMULATION_VISIBLE int emulation_cluster_##name() { return emulation::third(__VA_ARGS__); }
