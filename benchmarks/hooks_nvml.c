/* The tests' false NVML for benchmarks/hooks.py: it also writes down when each call came that
 * concerns clocks, can be slow in setting them alone, and has the calls more that Zeus makes.
 *
 * FALSE_NVML_CALLS names a file of `struct calls`, mapped by every process; hooks_series.py has its
 * layout. A line in FALSE_NVML_LOG would cost more than what is measured here.
 */
#define nvmlDeviceSetGpuLockedClocks plainSetGpuLockedClocks
#define nvmlDeviceResetGpuLockedClocks plainResetGpuLockedClocks
#define nvmlDeviceGetClockInfo plainGetClockInfo
#define nvmlDeviceGetCurrentClocksEventReasons plainGetCurrentClocksEventReasons
#include "../tests/false_nvml/false_nvml.c"
#undef nvmlDeviceSetGpuLockedClocks
#undef nvmlDeviceResetGpuLockedClocks
#undef nvmlDeviceGetClockInfo
#undef nvmlDeviceGetCurrentClocksEventReasons

#define NOT_SUPPORTED 3
#define MAX_CALLS (1 << 16)
#define POWER_LIMIT_MW 300000

struct call {
    int64_t began_ns;
    int64_t ended_ns; /* 0: still in it */
    int64_t mhz;      /* that was set; 0: the clock was given back; -1: something was read */
    int64_t pid;
};

struct calls {
    int64_t num_calls;
    int64_t set_latency_us; /* of setting a clock and giving it back */
    struct call calls[MAX_CALLS];
};

static struct calls *calls;

static void map_calls(void) {
    static int is_tried;
    if (is_tried) return;
    is_tried = 1;
    const char *path = getenv("FALSE_NVML_CALLS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) calls = map;
    close(fd);
}

static struct call *begin_call(int64_t mhz) {
    static struct call unwanted;
    map_calls();
    int64_t number = calls ? __atomic_fetch_add(&calls->num_calls, 1, __ATOMIC_RELAXED) : MAX_CALLS;
    struct call *call = number < MAX_CALLS ? &calls->calls[number] : &unwanted;
    call->mhz = mhz;
    call->pid = getpid();
    call->ended_ns = 0;
    call->began_ns = now_ns();
    if (mhz >= 0 && calls && calls->set_latency_us) usleep(calls->set_latency_us);
    return call;
}

static int end_call(struct call *call, int result) {
    call->ended_ns = now_ns();
    return result;
}

EXPORT int nvmlDeviceSetGpuLockedClocks(void *device, unsigned lowest, unsigned highest) {
    struct call *call = begin_call(highest);
    return end_call(call, plainSetGpuLockedClocks(device, lowest, highest));
}

EXPORT int nvmlDeviceResetGpuLockedClocks(void *device) {
    struct call *call = begin_call(0);
    return end_call(call, plainResetGpuLockedClocks(device));
}

EXPORT int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) {
    struct call *call = begin_call(-1);
    return end_call(call, plainGetClockInfo(device, type, mhz));
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    struct call *call = begin_call(-1);
    return end_call(call, plainGetCurrentClocksEventReasons(device, reasons));
}

EXPORT int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *limit_mw) {
    ENTER(INDEX(device), 0);
    *limit_mw = POWER_LIMIT_MW;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *limit_mw) {
    ENTER(INDEX(device), 0);
    *limit_mw = POWER_LIMIT_MW;
    return SUCCESS;
}

EXPORT int nvmlDeviceSetMemoryLockedClocks(void *device, unsigned lowest, unsigned highest) {
    ENTER(INDEX(device), highest);
    return lowest <= highest ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceResetMemoryLockedClocks(void *device) {
    ENTER(INDEX(device), 0);
    return SUCCESS;
}

/* Whether it is a Grace Hopper. */
EXPORT int nvmlDeviceGetC2cModeInfoV(void *device, void *info) {
    (void)info;
    ENTER(INDEX(device), 0);
    return NOT_SUPPORTED;
}
