// Products of warpgroups: a part of runtime.cpp.
//
// A product is only noted when it is begun. It reads shared memory and adds when a wait demands it and nobody else can
// run, so a stage that was given away too early shows. Threads note theirs one after the other; all 128 must have noted
// the same.
#pragma once
#include "stores.h"

namespace emulation {
namespace {

constexpr int MOST_GROUPS = 64, ROWS = 64, MOST_COLUMNS = 256, MOST_DEPTH = 32;

// What all threads know that have begun a product.
struct Common {
    VectorClock known, last;
    int thread;  // the last
};

struct Begun {
    Product product;
    int line, thread;  // of the first that began it
    int threads;       // that have
    void *d[WARPGROUP];
    const Word *a[WARPGROUP];  // registers, where a is in them
    Common *common;            // where races are looked for, until all have begun it
};

struct Warpgroup {
    Begun *begun;
    int count, room, pending;
    bool is_demanded;  // all threads wait for products
    Meeting meeting;
    int agent;   // in races.h
    VectorClock done;  // products that were waited for
};

// What one thread has begun and not waited for.
struct Noted {
    int products, groups, last_line;
    int ends[MOST_GROUPS];  // products in front of the end of each group
    bool is_fenced;
    Word done;  // groups that are over
};

Warpgroup warpgroups[MOST_WARPGROUPS];
Noted noted[MOST_THREADS];

void begin_warpgroups() {
    for (Warpgroup &warpgroup : warpgroups) {
        warpgroup.count = 0;
        warpgroup.is_demanded = false;
        warpgroup.meeting = {};
        warpgroup.agent = 0;
        warpgroup.done.forget();
    }
    memset(noted, 0, threads * sizeof *noted);
}

void end_of_thread() {
    check_committed("the thread ends with", storing[current].line);
    if (noted[current].products)
        emulation_fail(noted[current].last_line, "the thread ends with %d products of wgmma in flight",
                       noted[current].products);
}

// ---- Copies into what is read -------------------------------------------------------------------------------------

// Bytes of the rows of an operand, as the swizzle says: 128, 64 or 32; 256 if it says none.
constexpr Word row_of(unsigned long long descriptor) { return 256u >> (descriptor >> 62); }

// Whether an operand has elements in a range of shared memory, by pieces of 8 rows.
bool is_in(unsigned long long descriptor, bool is_mn_major, int extent, Word address, int bytes) {
    const Word tile = 8 * row_of(descriptor), address_of = (descriptor & 0x3fff) << 4, start = address_of & ~(tile - 1);
    const Word leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    const auto overlaps = [&](Word at) { return at < address + bytes && address < at + tile; };
    if (!is_mn_major) {
        // pieces begin at any row, and the swizzle permutes bytes of a row alone
        const Word first = address_of & ~(row_of(descriptor) - 1);
        for (int m = 0; m < extent; m += 8)
            if (overlaps(first + m / 8 * stride)) return true;
        return false;
    }
    const int block = row_of(descriptor) / 2;  // elements
    for (int m = 0; m < extent; m += block)
        if (overlaps(start + m / block * leading) || overlaps(start + m / block * leading + stride)) return true;
    return false;
}

bool reads(const Product &product, Word address, int bytes) {
    return (!product.a_registers && is_in(product.a, product.is_a_mn_major, ROWS, address, bytes)) ||
           is_in(product.b, product.is_b_mn_major, product.n, address, bytes);
}

// What threads wrote is read only if each of them has shown it by async_proxy_fence.
void check_fenced(unsigned long long descriptor, bool is_mn_major, int extent, int line) {
    const Word tile = 8 * row_of(descriptor), start = ((descriptor & 0x3fff) << 4) & ~(tile - 1);
    const Word leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    const int block = row_of(descriptor) / 2;
    const Word size = is_mn_major ? (extent - 1) / block * leading + stride : extent / 8 * stride;
    for (Word at = start; at < start + size + tile && at < dynamic_bytes; at += 4) {
        const Write &write = writes[at / 4];
        if (write.thread && storing[write.thread - 1].fences <= write.fences &&
            is_in(descriptor, is_mn_major, extent, at, 4))
            emulation_fail(line, "wgmma: thread %d wrote to %u at line %d, with no async_proxy_fence behind that",
                           write.thread - 1, at, write.line);
    }
}

// A copy must not begin to fill what products in flight read.
void check_unread(Word address, int bytes, int line) {
    for (const Warpgroup &warpgroup : warpgroups)
        for (int n = 0; n < warpgroup.count; ++n)
            if (reads(warpgroup.begun[n].product, address, bytes))
                emulation_fail(line,
                               "tma_load: the product of line %d, which warpgroup %td has yet to wait for, reads this",
                               warpgroup.begun[n].line, &warpgroup - warpgroups);
}

// ---- Arithmetic --------------------------------------------------------------------------------------------------

float element(const unsigned char *from, Element type) {
    if (type == TF32) {
        Word bits;
        memcpy(&bits, from, sizeof bits);
        return f32_of_bits(bits & ~0x1fffu);
    }
    if (type == S8) return static_cast<signed char>(*from);
    if (type == E4M3) return f32_of_f8<3>(*from);
    if (type == E5M2) return f32_of_f8<2>(*from);
    unsigned short half;
    memcpy(&half, from, sizeof half);
    return type == BF16 ? f32_of_bits(Word(half) << 16) : f32_of_f16(half);
}

constexpr int size_of(Element type) { return type == TF32 ? 4 : type < TF32 ? 2 : 1; }

// Calls with each piece of 16 bytes of an operand: where it lies, and m and k of its first element.
template <typename Each>
void for_pieces(unsigned long long descriptor, int size, bool is_mn_major, int extent, Each each) {
    const Word start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    const Word stride = (descriptor >> 32 & 0x3fff) << 4, row = row_of(descriptor);
    const int elements = 16 / size;
    if (is_mn_major) {
        for (int k = 0; k < 2 * elements; ++k)
            for (int m = 0; m < extent; m += elements) {
                const Word at = start + m / (row / size) * leading + m % (row / size) * size;
                each(swizzled(at + k / 8 * stride + k % 8 * row, row), m, k);
            }
    } else {
        for (int m = 0; m < extent; ++m)
            for (int part = 0; part < 2; ++part)
                each(swizzled(start + m / 8 * stride + m % 8 * row + 16 * part, row), m, part * elements);
    }
}

// Writes element (m, k) of an operand to out[m * m_step + k * k_step].
void load_operand(unsigned long long descriptor, const Begun &begun, Element type, bool is_mn_major, int extent, float *out,
                  int m_step, int k_step, const char *name) {
    const Word start = (descriptor & 0x3fff) << 4, row = row_of(descriptor);
    const int line = begun.line;
    set_current(begun.thread);
    if (row > MOST_ROW || (descriptor & ~0xc0003fff3fff3fffull))
        emulation_fail(line, "wgmma: the descriptor %#llx of %s does not say a swizzle of 128, 64 or 32 bytes alone",
                       descriptor, name);
    if (is_mn_major && row < 64)
        emulation_fail(line, "wgmma: %s is MN-major in rows of %u bytes: they must be of 128 or 64", name, row);
    if (is_mn_major && start % (8 * row))
        emulation_fail(line, "wgmma: %s begins at %u: it must be a multiple of %u", name, start, 8 * row);
    if (start % 32)
        emulation_fail(line, "wgmma: %s begins at %u: that must be a multiple of 32", name, start);
    const int size = size_of(type), each = 16 / size;
    for_pieces(descriptor, size, is_mn_major, extent, [&](Word address, int m, int k) {
        float *const to = out + m * m_step + k * k_step;
        const int step = is_mn_major ? m_step : k_step;
        if (size_t(address) + 16 > dynamic_bytes)
            emulation_fail(line, "wgmma: address %u of %s is out of range of dynamic shared memory, which has %zu",
                           address, name, dynamic_bytes);
        const unsigned char *from = emulation_dynamic_shared + address;
        for (int n = 0; n < each; ++n) to[n * step] = element(from + n * size, type);
    });
}

// Another thread begins a product, with what it knows; the last one looks for races, by what all know.
void note_begin(Begun &begun, int index) {
    if (!begun.common) begun.common = new Common{knowledge[current], knowledge[current], current};
    Common &common = *begun.common;
    if (begun.threads++ == 0) {
        common.known.raise(current, times[current]);
    } else if (common.last.is_same(knowledge[current])) {
        if (common.known.of(common.thread) > common.last.of(common.thread))
            common.known.set(common.thread, common.last.of(common.thread));
    } else {
        VectorClock own = knowledge[current];
        own.raise(current, times[current]);
        common.known.meet(own);
        common.last = knowledge[current];
    }
    common.thread = current;
    if (begun.threads < WARPGROUP) return;
    Warpgroup &warpgroup = warpgroups[index];
    if (!warpgroup.agent) warpgroup.agent = new_agent("wgmma of warpgroup", index, begun.line);
    const View view = {&common.known, -1, 0};
    const Word time = noted[current].done + noted[current].groups + 1;
    const auto note = [&](unsigned long long descriptor, Element element, bool is_mn_major, int extent) {
        for_pieces(descriptor, size_of(element), is_mn_major, extent, [&](Word address, int, int) {
            note_agent(warpgroup.agent, time, address, 16, READS, view, begun.line);
        });
    };
    const Product &product = begun.product;
    if (!product.a_registers) note(product.a, product.element, product.is_a_mn_major, ROWS);
    note(product.b, product.element_b, product.is_b_mn_major, product.n);
    delete begun.common;
    begun.common = nullptr;
}

// All threads of a warpgroup have come to wgmma_wait.
void note_done(Warpgroup &warpgroup, int index, int groups) {
    if (!finds_races || !warpgroup.agent) return;
    warpgroup.done.raise(warpgroup.agent, noted[current].done + groups);
    for (int n = 0; n < WARPGROUP; ++n) knowledge[index * WARPGROUP + n].join(warpgroup.done);
}

// The same of an a in registers, which are read only now.
void load_registers(const Begun &begun, float *out, int m_step, int k_step) {
    const Element type = begun.product.element;
    const int each = type == TF32 ? 1 : 2;  // elements of a register
    for (int thread = 0; thread < WARPGROUP; ++thread)
        for (int n = 0; n < 4; ++n) {
            const int row = 16 * (thread / 32) + thread % 32 / 4 + n % 2 * 8, k = (thread % 4 + n / 2 * 4) * each;
            unsigned char bytes[4];
            memcpy(bytes, begun.a[thread] + n, sizeof bytes);
            for (int e = 0; e < each; ++e) out[row * m_step + (k + e) * k_step] = element(bytes + 4 / each * e, type);
        }
}

alignas(64) float sums[ROWS][MOST_COLUMNS];

// Calls with each pair of neighbours of the sums, in the matrix and in the registers of a thread.
template <typename Each>
void for_registers(const Begun &begun, Each each) {
    for (int thread = 0; thread < WARPGROUP; ++thread) {
        const int row = 16 * (thread / 32) + thread % 32 / 4, column = 2 * (thread % 4);
        float *d = static_cast<float *>(begun.d[thread]);
        for (int n = 0; n < begun.product.n / 8; ++n) {
            each(&sums[row][8 * n + column], d + 4 * n);
            each(&sums[row + 8][8 * n + column], d + 4 * n + 2);
        }
    }
}

typedef int Whole __attribute__((may_alias));

// What the tensor cores keep of products of 8-bit reals: products and the sum so far are cut to 13 bits behind the point
// at the largest exponent among them, and so is their sum.
constexpr int KEPT_BITS = 13;

void add_bytes(const float *a, const float (*b)[MOST_COLUMNS], float *sums, int n) {
    for (int column = 0; column < n; ++column) {
        float products[MOST_DEPTH], most = __builtin_fabsf(sums[column]), plain = sums[column];
        for (int k = 0; k < MOST_DEPTH; ++k) {
            products[k] = a[k] * b[k][column];
            plain += products[k];
            most = __builtin_fabsf(products[k]) > most ? __builtin_fabsf(products[k]) : most;
        }
        if (most == 0 || !(__builtin_fabsf(plain) < __builtin_inff())) {
            sums[column] = plain;
            continue;
        }
        int exponent;
        __builtin_frexpf(most, &exponent);
        const float up = f32_of_bits(static_cast<Word>(KEPT_BITS - (exponent - 1) + 127) << 23);
        int whole = static_cast<int>(sums[column] * up);
        for (int k = 0; k < MOST_DEPTH; ++k) whole += static_cast<int>(products[k] * up);
        float sum = static_cast<float>(whole);  // exact: less than 2^(14 + 6)
        __builtin_frexpf(sum, &exponent);
        if (exponent - 1 > KEPT_BITS) {
            const float place = f32_of_bits(static_cast<Word>(exponent - 1 - KEPT_BITS + 127) << 23);
            sum = static_cast<float>(static_cast<int>(sum / place)) * place;
        }
        sums[column] = sum / up;
    }
}

void add_product(const Begun &begun) {
    alignas(64) static float a[ROWS][MOST_DEPTH], b[MOST_DEPTH][MOST_COLUMNS];
    const Product &product = begun.product;
    const int depth = 32 / size_of(product.element), n = product.n;
    if (product.a_registers)
        load_registers(begun, a[0], MOST_DEPTH, 1);
    else
        load_operand(product.a, begun, product.element, product.is_a_mn_major, ROWS, a[0], MOST_DEPTH, 1, "a");
    load_operand(product.b, begun, product.element_b, product.is_b_mn_major, n, b[0], 1, MOST_COLUMNS, "b");
    if (!product.is_added) memset(sums, 0, sizeof sums);
    for (int row = 0; row < ROWS; ++row) {
        if (product.element == E4M3 || product.element == E5M2) {
            add_bytes(a[row], b, sums[row], n);
            continue;
        }
        for (int k = 0; k < depth; ++k) {
            if (product.element == S8) {
                Whole *whole = reinterpret_cast<Whole *>(sums[row]);
                for (int column = 0; column < n; ++column) whole[column] += static_cast<int>(a[row][k] * b[k][column]);
            } else {
                for (int column = 0; column < n; ++column) sums[row][column] += a[row][k] * b[k][column];
            }
        }
    }
}

// The first `count` products of a warpgroup, all threads of which wait.
void add_products(Warpgroup &warpgroup, int count) {
    const int was = current;
    const Begun *held = nullptr;  // whose registers `sums` stands for
    const auto write = [](float *sum, float *registers) { memcpy(registers, sum, 2 * sizeof *sum); };
    for (int n = 0; n < count; ++n) {
        const Begun &begun = warpgroup.begun[n];
        if (!held || held->product.n != begun.product.n || memcmp(held->d, begun.d, sizeof begun.d)) {
            if (held) for_registers(*held, write);
            for_registers(begun, [](float *sum, float *registers) { memcpy(sum, registers, 2 * sizeof *sum); });
        }
        held = &begun;
        add_product(begun);
    }
    if (held) for_registers(*held, write);
    set_current(was);
    warpgroup.count -= count;
    memmove(warpgroup.begun, warpgroup.begun + count, warpgroup.count * sizeof *warpgroup.begun);
}

bool is_alike(const Product &one, const Product &other) {
    return one.a == other.a && !one.a_registers == !other.a_registers && one.b == other.b && one.element == other.element &&
           one.element_b == other.element_b && one.n == other.n &&
           one.is_a_mn_major == other.is_a_mn_major && one.is_b_mn_major == other.is_b_mn_major &&
           one.is_added == other.is_added;
}

// Nobody can run: a warpgroup gets the products that it waits for. False if none waits.
bool multiply() {
    for (int index = 0; index < MOST_WARPGROUPS; ++index) {
        Warpgroup &warpgroup = warpgroups[index];
        if (!warpgroup.is_demanded) continue;
        Noted *const first = noted + index * WARPGROUP;
        const int done = first->groups - warpgroup.pending, count = first->ends[done - 1];
        add_products(warpgroup, count);
        for (Noted *own = first; own < first + WARPGROUP; ++own) {
            own->products -= count;
            own->done += done;
            own->groups = warpgroup.pending;
            for (int group = 0; group < own->groups; ++group) own->ends[group] = own->ends[group + done] - count;
        }
        warpgroup.is_demanded = false;
        let_go(warpgroup.meeting);
        return true;
    }
    return false;
}

}  // namespace

extern "C" {

void emulation_wgmma_fence() { noted[current].is_fenced = true; }

void emulation_wgmma(const Product *product, int line) {
    Warpgroup &warpgroup = warpgroups[whole_warpgroup("wgmma", line)];
    Noted &own = noted[current];
    if (!own.is_fenced) emulation_fail(line, "wgmma: no wgmma_fence came before the first product");
    if (own.products == warpgroup.count) {
        if (warpgroup.count == warpgroup.room) {
            warpgroup.room = warpgroup.room ? 2 * warpgroup.room : 16;
            warpgroup.begun =
                static_cast<Begun *>(realloc(warpgroup.begun, warpgroup.room * sizeof *warpgroup.begun));
        }
        for (int n = 0; n < flight_count; ++n)
            if (reads(*product, flights[n].address, flights[n].bytes))
                emulation_fail(line, "wgmma: the copy of line %d, which nobody has waited for, fills what this reads",
                               flights[n].line);
        if (has_writes) {
            if (!product->a_registers) check_fenced(product->a, product->is_a_mn_major, ROWS, line);
            check_fenced(product->b, product->is_b_mn_major, product->n, line);
        }
        warpgroup.begun[warpgroup.count++] = {*product, line, current, 0, {}, {}, nullptr};
    }
    Begun &begun = warpgroup.begun[own.products++];
    if (begun.line != line || !is_alike(begun.product, *product))
        emulation_fail(line, "wgmma: thread %d of the same warpgroup begins another product at line %d", begun.thread,
                       begun.line);
    begun.d[current % WARPGROUP] = product->d;
    begun.a[current % WARPGROUP] = product->a_registers;
    own.last_line = line;
    if (finds_races) note_begin(begun, current / WARPGROUP);
}

void emulation_wgmma_commit(int line) {
    Noted &own = noted[current];
    if (own.groups == MOST_GROUPS)
        emulation_fail(line, "wgmma_commit: more than %d groups in flight are not emulated", MOST_GROUPS);
    own.ends[own.groups++] = own.products;
}

void emulation_wgmma_wait(int pending, int line) {
    Warpgroup &warpgroup = warpgroups[whole_warpgroup("wgmma_wait", line)];
    const Noted &own = noted[current];
    const int committed = own.groups ? own.ends[own.groups - 1] : 0;
    if (committed != own.products)
        emulation_fail(line, "wgmma_wait: %d products are in no group: wgmma_commit is missing",
                       own.products - committed);
    if (warpgroup.meeting.arrived && warpgroup.pending != pending)
        emulation_fail(line, "wgmma_wait<%d>: others of the warpgroup wait for all but %d groups", pending,
                       warpgroup.pending);
    warpgroup.pending = pending;
    if (!is_last_to_come(warpgroup.meeting, 0, IN_WARPGROUP, "wgmma_wait", line)) return;
    const int first = current / WARPGROUP * WARPGROUP;
    for (int n = 0; n < WARPGROUP; ++n) {
        const Noted &other = noted[first + n];
        if (other.products != own.products || other.groups != own.groups ||
            memcmp(other.ends, own.ends, own.groups * sizeof *own.ends))
            emulation_fail(line, "wgmma_wait: %d products in %d groups are in flight, thread %d has %d in %d",
                           own.products, own.groups, first + n, other.products, other.groups);
    }
    // products have what their threads read into registers
    for (int warp = 0; warp < WARPGROUP / WARP; ++warp) note_exchange(~0u, first / WARP + warp);
    if (own.groups <= pending) return let_go(warpgroup.meeting);
    note_done(warpgroup, first / WARPGROUP, own.groups - pending);
    warpgroup.is_demanded = true;
    run_next();
}

}  // extern "C"
}  // namespace emulation
