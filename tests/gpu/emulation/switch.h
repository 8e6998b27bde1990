// From the stack of one thread to that of another.
#pragma once
#include <cstdint>
#include <cstring>
#include <ucontext.h>

namespace emulation {

constexpr size_t STACK = 256 << 10;  // bytes of each thread

// emulation_switch(save, load) goes on where `load` was saved. first_frame(top, function) is what to load to begin
// `function`, which never returns, on the stack below `top`.
#if defined(__x86_64__)
extern "C" void emulation_switch(void **save, void *load);
asm(R"(
    .text
    .globl emulation_switch
    .type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulation_switch, . - emulation_switch
)");
inline void *first_frame(unsigned char *top, void (*function)()) {
    // six registers, the function to return into, and a return address for it at 8 past a multiple of 16
    auto **frame = reinterpret_cast<void **>(top - 24) - 7;
    memset(static_cast<void *>(frame), 0, 9 * sizeof *frame);
    frame[6] = reinterpret_cast<void *>(function);
    return frame;
}
#else  // slower, everywhere else
extern "C" void emulation_switch(void **save, void *load) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t *>(load));
}
inline void *first_frame(unsigned char *top, void (*function)()) {
    // the context itself lies at the top of the stack
    auto *context = reinterpret_cast<ucontext_t *>((reinterpret_cast<uintptr_t>(top) - sizeof(ucontext_t)) & ~63ul);
    getcontext(context);
    context->uc_stack.ss_sp = top - STACK;
    context->uc_stack.ss_size = reinterpret_cast<unsigned char *>(context) - (top - STACK);
    context->uc_link = nullptr;
    makecontext(context, function, 0);
    return context;
}
#endif

}  // namespace emulation
