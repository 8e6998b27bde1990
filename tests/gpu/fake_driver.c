/* A stand-in for NVIDIA's driver: its memory is the host's, streams are numbers, kernels are counted and not run.
 *
 * It lets the real bindings be called with no GPU. `fake_calls(name)` tells how often a function was called, and
 * `fake_fail(name, status)` makes its next call fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef uint64_t P;
#define MOST 128
static struct { const char *name; long calls; int fail; } functions[MOST];
static int known;
static long bytes_in_use;
static __thread void *current;
static void *capturing;
static __thread int capture_mode;
static int captures_lost;
static int pointer_device;
static uint64_t last_launch[8];
static void *launched_in;
static int last_attribute;

static int enter(const char *name) {
    int n = 0;
    while (n < known && strcmp(functions[n].name, name)) n++;
    if (n == known) functions[known++].name = name;
    functions[n].calls++;
    int fail = functions[n].fail;
    functions[n].fail = 0;
    return fail;
}
#define ENTER do { int status = enter(__func__); if (status) return status; } while (0)

long fake_calls(const char *name) {
    for (int n = 0; n < known; n++) if (!strcmp(functions[n].name, name)) return functions[n].calls;
    return 0;
}
void fake_fail(const char *name, int status) {
    for (int n = 0; n < known; n++) if (!strcmp(functions[n].name, name)) { functions[n].fail = status; return; }
    functions[known].name = strdup(name);
    functions[known++].fail = status;
}
void fake_set_capturing(void *stream) { capturing = stream; }
int fake_captures_lost(void) { return captures_lost; } /* by calls that are not allowed in one */
/* What a thread may not do beside a capture: at all, or unless it has said that it knows. */
static int lost(int is_forbidden) { captures_lost += is_forbidden; return is_forbidden ? 900 : 0; }
#define UNSAFE do { if (lost(capturing && capture_mode != 2)) return 900; } while (0)
long fake_bytes(void) { return bytes_in_use; }
uint64_t fake_launched(int n) { return last_launch[n]; } /* stream, groups, threads, group memory, 4 arguments */
int fake_attribute(void) { return last_attribute; } /* the id of the last launch's, 0 of none */
void *fake_context(void) { return launched_in; }

R cuInit(unsigned flags) { ENTER; return 0; }
R cuDriverGetVersion(int *v) { ENTER; *v = 13000; return 0; }
R cuDeviceGetCount(int *n) { ENTER; *n = getenv("FAKE_GPUS") ? atoi(getenv("FAKE_GPUS")) : 2; return 0; }
R cuDeviceGet(int *d, int n) { ENTER; *d = n; return 0; }
R cuDeviceGetName(char *text, int size, int d) { ENTER; snprintf(text, size, "NVIDIA Fake %d", d); return 0; }
R cuDeviceTotalMem_v2(size_t *n, int d) { ENTER; *n = 80ull << 30; return 0; }
R cuDeviceGetAttribute(int *v, int which, int d) {
    ENTER;
    switch (which) {
        case 75: *v = getenv("FAKE_MAJOR") ? atoi(getenv("FAKE_MAJOR")) : 9; break;
        case 76: *v = 0; break;
        case 16: *v = 132; break;
        case 13: *v = 1980000; break;
        case 36: *v = 2619000; break;
        case 37: *v = 5120; break;
        case 38: *v = 50 << 20; break;
        case 97: *v = 227 << 10; break;
        case 39: *v = 2048; break;
        case 82: *v = 65536; break;
        case 106: *v = 32; break;
        case 111: *v = 1024; break;
        default: *v = 1;
    }
    return 0;
}
R cuDevicePrimaryCtxRetain(void **c, int d) { ENTER; *c = (void *)(uintptr_t)(0x1000 + d); return 0; }
R cuCtxGetCurrent(void **c) { ENTER; *c = current; return 0; }
R cuCtxPushCurrent_v2(void *c) { ENTER; current = c; return 0; }
R cuCtxPopCurrent_v2(void **c) { ENTER; *c = current; current = 0; return 0; }
R cuCtxSetCurrent(void *c) { ENTER; current = c; return 0; }
R cuCtxSynchronize(void) { ENTER; return lost(capturing != 0); }
R cuMemGetInfo_v2(size_t *f, size_t *t) { ENTER; *f = 1ull << 30; *t = 80ull << 30; return 0; }
static R take(P *p, size_t n) {
    size_t *block;
    if (n > (80ull << 30) || posix_memalign((void **)&block, 512, n + 512)) return 2;
    *block = n;
    bytes_in_use += n;
    *p = (P)(uintptr_t)block + 512;
    return 0;
}
static R give(P p) {
    if (!p) return 0;
    size_t *block = (size_t *)(uintptr_t)(p - 512);
    bytes_in_use -= *block;
    free(block);
    return 0;
}
R cuMemAlloc_v2(P *p, size_t n) { ENTER; UNSAFE; return take(p, n); }
R cuMemAllocHost_v2(void **p, size_t n) { ENTER; *p = malloc(n); return 0; }
R cuMemFreeHost(void *p) { ENTER; UNSAFE; free(p); return 0; }
R cuMemFree_v2(P p) { ENTER; UNSAFE; return give(p); }
R cuMemAllocAsync(P *p, size_t n, void *s) { ENTER; return capturing && capturing == s ? 900 : take(p, n); }
R cuMemFreeAsync(P p, void *s) { ENTER; UNSAFE; return capturing && capturing == s ? 900 : give(p); }
R cuMemcpyHtoDAsync_v2(P d, const void *s, size_t n, void *q) { ENTER; memcpy((void *)(uintptr_t)d, s, n); return 0; }
R cuMemcpyDtoHAsync_v2(void *d, P s, size_t n, void *q) { ENTER; memcpy(d, (void *)(uintptr_t)s, n); return 0; }
R cuMemcpyDtoDAsync_v2(P d, P s, size_t n, void *q) { ENTER; memcpy((void *)(uintptr_t)d, (void *)(uintptr_t)s, n); return 0; }
R cuMemsetD8Async(P d, unsigned char v, size_t n, void *q) { ENTER; memset((void *)(uintptr_t)d, v, n); return 0; }
R cuPointerGetAttribute(void *v, int which, P p) { ENTER; *(int *)v = pointer_device; return 0; }
void fake_pointer_device(int n) { pointer_device = n; }
R cuStreamCreate(void **s, unsigned f) { static uintptr_t next = 0x5000; ENTER; *s = (void *)(next += 16); return 0; }
R cuStreamDestroy_v2(void *s) { ENTER; return 0; }
R cuStreamSynchronize(void *s) { ENTER; return lost(capturing && (s == capturing || capture_mode != 2)); }
R cuStreamIsCapturing(void *s, int *v) { ENTER; *v = capturing && s == capturing; return 0; }
R cuStreamBeginCapture_v2(void *s, int mode) { ENTER; if (!s) return 900; capturing = s; return 0; }
R cuStreamEndCapture(void *s, void **g) { ENTER; capturing = 0; *g = (void *)0x7000; return 0; }
R cuThreadExchangeStreamCaptureMode(int *m) { ENTER; int was = capture_mode; capture_mode = *m; *m = was; return 0; }
R cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { ENTER; *e = (void *)0x7100; return 0; }
R cuGraphLaunch(void *e, void *s) { ENTER; return 0; }
R cuGraphUpload(void *e, void *s) { ENTER; return 0; }
R cuGraphDestroy(void *g) { ENTER; return 0; }
R cuGraphExecDestroy(void *e) { ENTER; UNSAFE; return 0; }
R cuEventCreate(void **e, unsigned f) { ENTER; *e = (void *)0x6000; return 0; }
R cuEventDestroy_v2(void *e) { ENTER; return 0; }
R cuEventRecord(void *e, void *s) { ENTER; return 0; }
R cuEventQuery(void *e) { ENTER; UNSAFE; return 0; }
R cuEventSynchronize(void *e) { ENTER; UNSAFE; return 0; }
R cuEventElapsedTime_v2(float *ms, void *a, void *b) { ENTER; *ms = 0.01f; return 0; }
R cuEventElapsedTime(float *ms, void *a, void *b) { ENTER; *ms = 0.01f; return 0; }
R cuStreamWaitEvent(void *s, void *e, unsigned f) { ENTER; return 0; }
R cuLibraryLoadData(void **l, const void *c, void *a, void *b, unsigned n, void *d, void *e, unsigned m) {
    ENTER; *l = (void *)0x8000; return 0;
}
R cuLibraryUnload(void *l) { ENTER; return 0; }
R cuLibraryGetGlobal(P *p, size_t *n, void *l, const char *name) {
    static char memory[16];
    ENTER;
    if (strcmp(name, "weights")) return 500;
    *p = (P)memory;
    *n = sizeof memory;
    return 0;
}
R cuLibraryGetKernel(void **k, void *l, const char *name) { ENTER; *k = (void *)0x8100; return 0; }
R cuKernelGetFunction(void **f, void *k) { ENTER; *f = (void *)0x8200; return 0; }
R cuFuncSetAttribute(void *f, int which, int v) { ENTER; return 0; }
R cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned m, void *s,
                 void **arguments, void **extra) {
    ENTER;
    launched_in = current;
    last_launch[0] = (uintptr_t)s;
    last_launch[1] = x;
    last_launch[2] = a;
    last_launch[3] = m;
    for (int n = 0; n < 4; n++) last_launch[4 + n] = *(uint64_t *)arguments[n];
    return 0;
}
static uint64_t last_cluster;
uint64_t fake_cluster(void) { return last_cluster; }
struct config { unsigned x, y, z, a, b, c, m; void *stream, *attributes; unsigned count; };
R cuLaunchKernelEx(const struct config *l, void *f, void **arguments, void **extra) {
    last_cluster = 1, last_attribute = 0;
    for (unsigned n = 0; n < l->count; n++) {
        const unsigned *attribute = (const unsigned *)l->attributes + 18 * n; // id, nothing, three values
        const unsigned *value = attribute + 2;
        if (*attribute == 4) { // clusters
            last_cluster = value[0];
            if (!value[0] || value[1] != 1 || value[2] != 1 || l->x % value[0]) return 1;
        } else if ((*attribute == 2 || *attribute == 6) && *value == 1) { // a cooperative launch, or one that begins early
            last_attribute = *attribute;
        } else return 1;
    }
    return cuLaunchKernel(f, l->x, l->y, l->z, l->a, l->b, l->c, l->m, l->stream, arguments, extra);
}
R cuTensorMapEncodeTiled(void *map) { ENTER; memset(map, 0, 128); return 0; }
R cuTensorMapEncodeIm2col(void *map) { ENTER; memset(map, 0, 128); return 0; }
R cuTensorMapReplaceAddress(void *map, void *address) { ENTER; return 0; }
R cuGetErrorName(R status, const char **text) { *text = status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE"; return 0; }
R cuGetErrorString(R status, const char **text) { *text = status == 2 ? "out of memory" : "a failure that was asked for"; return 0; }

R cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *found) {
    static const char *endings[] = {"_v2", ""};
    static void *self;
    if (!self) self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    char text[128];
    for (int n = 0; n < 2; n++) {
        snprintf(text, sizeof text, "%s%s", name, endings[n]);
        *f = dlsym(self, text);
        if (*f) { if (found) *found = 0; return 0; }
    }
    if (found) *found = 1;
    return 500;
}
R cuGetProcAddress(const char *name, void **f, int version, uint64_t flags) { return cuGetProcAddress_v2(name, f, version, flags, 0); }
R cuGetExportTable(const void **table, const void *id) { ENTER; *table = 0; return 1; }
R cuCtxGetDevice(int *d) { ENTER; *d = 0; return 0; }
R cuCtxGetApiVersion(void *c, unsigned *v) { ENTER; *v = 13000; return 0; }
R cuFuncGetModule(void **m, void *f) { ENTER; return 1; }
