/* A false NVML, so that the real nvidia-ml-py can be tested where there is no GPU.
 *
 * Its GPUs live in a file (FALSE_NVML_STATE) that every process maps, so that one process sees
 * the clocks that another one left behind. The test that made the file may write into it: faults
 * that last a while, calls that hang, latency, a queue of calls, MIG, a clock held below the lock and
 * why, energy that freezes or falls, limits and settings, locks without effect. Every call is appended to FALSE_NVML_LOG. The layout of the file, and what a clock does to the energy, are also in
 * library.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 8
#define MAX_FAULTS 8
#define LOWEST_MHZ 210
#define HIGHEST_MHZ 1980
#define STEP_MHZ 15
#define FIRST_PCI_BUS 0x1a
#define COUNTER_PERIOD_NS 25000000LL

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7 };
/* NVML_FI_DEV_POWER_INSTANT and _CURRENT_LIMIT, NVML_POWER_SCOPE_GPU and _MODULE */
enum { POWER_INSTANT = 186, POWER_CURRENT_LIMIT = 190, SCOPE_GPU = 0, SCOPE_MODULE = 1 };
/* nvmlClockType_t */
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };
#define DEFAULT_LIMIT_MW 700000
#define MEMORY_MHZ 2619

struct gpu {
    int64_t lowest_mhz;    /* the range that is set; 0: none, the driver's default */
    int64_t highest_mhz;
    int64_t held_mhz;      /* 0: nothing holds the clock below what is asked */
    int64_t event_reasons; /* told besides those that follow from the clock */
    int64_t mig_mode;
    int64_t energy_uj;     /* up to counted_ns, 0: not begun */
    int64_t counted_ns;
    int64_t computing_pid; /* a process that computes on it; 0: none */
    int64_t is_frozen;     /* the energy counter does not move */
    int64_t module_mw;     /* what the rest of the module draws, counted too; 0: there is none */
    int64_t limit_mw;      /* enforced power limit; 0: the default one */
    int64_t module_limit_mw; /* of the module, where there is one */
    int64_t profiles;      /* enforced power profiles, a bit each; negative: it has none */
    int64_t unenforced;    /* profiles that are requested only */
    int64_t memory_mhz;    /* 0: the highest */
    int64_t application_mhz; /* application clock of the SMs; 0: the highest */
    int64_t ecc_off;
    int64_t is_deaf;       /* locked clocks are accepted and have no effect */
};

/* Fault of calls between two moments of CLOCK_MONOTONIC. */
struct fault {
    int64_t code;          /* returned; 0: the call works */
    int64_t gpu;           /* -1: any, and calls without one */
    int64_t until_ns;      /* 0: no fault stands here */
    int64_t hang_us;       /* before that; a hang ends with the fault */
    char function[64];     /* empty: every function of the GPU */
};

/* nvmlProcessInfo_t */
struct process {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
};

/* nvmlFieldValue_t */
struct field {
    unsigned field_id, scope_id;
    long long timestamp, latency_us;
    int value_type, code;
    union { unsigned uint; unsigned long long ull; } value;
};

/* nvmlWorkloadPowerProfileCurrentProfiles_v1_t */
struct power_profiles {
    unsigned version, known[8], requested[8], enforced[8];
};

/* nvmlPciInfo_t */
struct pci {
    char old_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct state {
    int64_t num_gpus;
    int64_t latency_us;    /* of every call */
    int64_t queues;        /* calls that lock a clock wait for each other */
    struct gpu gpus[MAX_GPUS];
    struct fault faults[MAX_FAULTS];
};

static struct state *state;
static int state_fd = -1;
static int num_inits;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int map_state(void) {
    const char *path = getenv("FALSE_NVML_STATE");
    state_fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (state_fd < 0) return 9; /* driver not loaded */
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
    if (state == MAP_FAILED) { state = NULL; return 999; }
    return SUCCESS;
}

static void log_call(const char *function, long gpu, long argument) {
    const char *path = getenv("FALSE_NVML_LOG");
    char line[128];
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    int length = snprintf(line, sizeof line, "%d %s %ld %ld\n", getpid(), function, gpu, argument);
    if (write(fd, line, length) != length) abort();
    close(fd);
}

/* The fault of a call; after a hang, which the end of the fault ends. */
static int fault_of(const char *function, long gpu) {
    for (int i = 0; i < MAX_FAULTS; i++) {
        const struct fault *fault = &state->faults[i];
        if (fault->function[0] && strcmp(function, fault->function)) continue;
        if (fault->gpu >= 0 && fault->gpu != gpu) continue;
        if (now_ns() >= fault->until_ns) continue;
        for (int64_t left_us = fault->hang_us; left_us > 0 && now_ns() < fault->until_ns;
             left_us -= 1000)
            usleep(1000);
        return fault->code;
    }
    return SUCCESS;
}

/* What every call does first: wait, be written down, fail if the test says so. */
static int enter(const char *function, long gpu, long argument) {
    if (!state) return UNINITIALIZED;
    log_call(function, gpu, argument);
    int waits = state->queues && !strcmp(function, "nvmlDeviceSetGpuLockedClocks");
    if (waits) flock(state_fd, LOCK_EX);
    if (state->latency_us) usleep(state->latency_us);
    if (waits) flock(state_fd, LOCK_UN);
    return fault_of(function, gpu);
}

#define ENTER(gpu, argument) \
    do { int failed = enter(__func__, gpu, argument); if (failed) return failed; } while (0)
#define INDEX(device) ((long)((struct gpu *)(device) - state->gpus))

static int64_t clock_mhz(const struct gpu *gpu) {
    int64_t free = gpu->application_mhz ? gpu->application_mhz : HIGHEST_MHZ;
    int64_t asked = gpu->highest_mhz && !gpu->is_deaf ? gpu->highest_mhz : free;
    return gpu->held_mhz && gpu->held_mhz < asked ? gpu->held_mhz : asked;
}

/* Software power cap (4) while the clock is held; clocks set by somebody (2) while they are. */
static unsigned long long event_reasons(const struct gpu *gpu) {
    int is_held = gpu->held_mhz && clock_mhz(gpu) == gpu->held_mhz;
    return gpu->event_reasons | (is_held ? 4 : 0) | (gpu->highest_mhz ? 2 : 0);
}

/* 50 W and a tenth of a watt per MHz; counted in whole periods, as coarsely as a real one. */
static void count_energy(struct gpu *gpu) {
    int64_t until = now_ns() / COUNTER_PERIOD_NS * COUNTER_PERIOD_NS;
    if (!gpu->counted_ns) gpu->counted_ns = until;
    int64_t power_mw = 50000 + 100 * clock_mhz(gpu) + gpu->module_mw;
    if (!gpu->is_frozen) gpu->energy_uj += power_mw * ((until - gpu->counted_ns) / 1000000);
    gpu->counted_ns = until;
}

static void set_range(struct gpu *gpu, int64_t lowest_mhz, int64_t highest_mhz) {
    flock(state_fd, LOCK_EX); /* given back by the kernel if this process dies */
    count_energy(gpu);
    gpu->lowest_mhz = lowest_mhz;
    gpu->highest_mhz = highest_mhz;
    flock(state_fd, LOCK_UN);
}

static int put_text(char *text, unsigned length, const char *format, long number) {
    return snprintf(text, length, format, number) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

static int put_list(unsigned *count, unsigned *values, unsigned have, unsigned first, int step) {
    unsigned room = *count;
    *count = have;
    if (!values || room < have) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < have; i++) values[i] = first + (int)i * step;
    return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    if (!state) { int failed = map_state(); if (failed) return failed; }
    ENTER(-1, flags);
    num_inits++;
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
    ENTER(-1, 0);
    if (--num_inits == 0) {
        munmap(state, sizeof *state);
        close(state_fd);
        state = NULL;
    }
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) {
    static char text[40];
    snprintf(text, sizeof text, "false NVML error %d", code);
    return text;
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    ENTER(-1, 0);
    return put_text(text, length, "false-%ld", 0);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(-1, 0);
    *count = state->num_gpus;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    ENTER(index, index);
    if (index >= state->num_gpus) return INVALID_ARGUMENT;
    *device = &state->gpus[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    ENTER(INDEX(device), 0);
    return put_text(text, length, "GPU-%ld-of-the-false-nvml", INDEX(device));
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char own[64];
    for (long i = 0; state && i < state->num_gpus; i++) {
        put_text(own, sizeof own, "GPU-%ld-of-the-false-nvml", i);
        if (strcmp(uuid, own)) continue;
        ENTER(i, 0);
        *device = &state->gpus[i];
        return SUCCESS;
    }
    ENTER(-1, 0);
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetIndex(void *device, unsigned *index) {
    ENTER(INDEX(device), 0);
    *index = INDEX(device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    ENTER(INDEX(device), 0);
    memset(pci, 0, sizeof *pci);
    pci->bus = FIRST_PCI_BUS + INDEX(device);
    snprintf(pci->old_bus_id, sizeof pci->old_bus_id, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    ENTER(INDEX(device), 0);
    return put_text(text, length, "False GPU", 0);
}

EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    ENTER(INDEX(device), 0);
    *current = *pending = ((struct gpu *)device)->mig_mode;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *count, unsigned *clocks) {
    ENTER(INDEX(device), 0);
    return put_list(count, clocks, 2, 2619, -2214); /* 2619, 405 */
}

EXPORT int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory_mhz,
                                                unsigned *count, unsigned *clocks) {
    ENTER(INDEX(device), memory_mhz);
    if (memory_mhz == 405) return put_list(count, clocks, 1, LOWEST_MHZ, 0);
    if (memory_mhz != 2619) return NOT_FOUND;
    unsigned have = (HIGHEST_MHZ - LOWEST_MHZ) / STEP_MHZ + 1;
    return put_list(count, clocks, have, HIGHEST_MHZ, -STEP_MHZ);
}

EXPORT int nvmlDeviceSetGpuLockedClocks(void *device, unsigned lowest, unsigned highest) {
    ENTER(INDEX(device), highest);
    if (lowest > highest) return INVALID_ARGUMENT;
    set_range(device, lowest, highest);
    return SUCCESS;
}

EXPORT int nvmlDeviceResetGpuLockedClocks(void *device) {
    ENTER(INDEX(device), 0);
    set_range(device, 0, 0);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                    struct process *processes) {
    ENTER(INDEX(device), 0);
    unsigned room = *count, pid = ((struct gpu *)device)->computing_pid;
    *count = pid ? 1 : 0;
    if (!pid) return SUCCESS;
    if (!processes || !room) return INSUFFICIENT_SIZE;
    memset(processes, 0, sizeof *processes);
    processes->pid = pid;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) {
    ENTER(INDEX(device), type);
    const struct gpu *gpu = device;
    int64_t memory_mhz = gpu->memory_mhz ? gpu->memory_mhz : MEMORY_MHZ;
    *mhz = type == CLOCK_MEMORY ? memory_mhz : clock_mhz(gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetApplicationsClock(void *device, int type, unsigned *mhz) {
    ENTER(INDEX(device), type);
    const struct gpu *gpu = device;
    *mhz = gpu->application_mhz ? gpu->application_mhz : HIGHEST_MHZ;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) {
    ENTER(INDEX(device), 0);
    const struct gpu *gpu = device;
    *milliwatts = gpu->limit_mw ? gpu->limit_mw : DEFAULT_LIMIT_MW;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) {
    ENTER(INDEX(device), 0);
    *milliwatts = DEFAULT_LIMIT_MW;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEccMode(void *device, unsigned *current, unsigned *pending) {
    ENTER(INDEX(device), 0);
    *current = *pending = !((struct gpu *)device)->ecc_off;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPersistenceMode(void *device, unsigned *mode) {
    ENTER(INDEX(device), 0);
    *mode = 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(void *device,
                                                            struct power_profiles *profiles) {
    ENTER(INDEX(device), profiles->version);
    const struct gpu *gpu = device;
    if (gpu->profiles < 0) return NOT_SUPPORTED;
    profiles->known[0] = 0xff;
    profiles->enforced[0] = gpu->profiles;
    profiles->requested[0] = gpu->profiles | gpu->unenforced;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
    ENTER(INDEX(device), 0);
    *reasons = event_reasons(device);
    return SUCCESS;
}

/* The function's name in older drivers. */
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    ENTER(INDEX(device), 0);
    *reasons = event_reasons(device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    ENTER(INDEX(device), 0);
    flock(state_fd, LOCK_EX);
    count_energy(device);
    *millijoules = ((struct gpu *)device)->energy_uj / 1000;
    flock(state_fd, LOCK_UN);
    return SUCCESS;
}

/* Power and limit of the GPU, and of its module where there is one; no other fields. */
EXPORT int nvmlDeviceGetFieldValues(void *device, int count, struct field *values) {
    ENTER(INDEX(device), count);
    const struct gpu *gpu = device;
    for (int i = 0; i < count; i++) {
        int is_module = values[i].scope_id == SCOPE_MODULE && gpu->module_mw;
        int is_known = values[i].scope_id == SCOPE_GPU || is_module;
        int is_power = values[i].field_id == POWER_INSTANT;
        int is_limit = values[i].field_id == POWER_CURRENT_LIMIT;
        int64_t limit_mw = is_module ? gpu->module_limit_mw : gpu->limit_mw;
        int64_t power_mw = 50000 + 100 * clock_mhz(gpu) + (is_module ? gpu->module_mw : 0);
        values[i].code = (is_power || (is_limit && limit_mw)) && is_known ? SUCCESS : NOT_SUPPORTED;
        values[i].value_type = 1; /* unsigned int */
        values[i].value.uint = is_power ? power_mw : limit_mw;
    }
    return SUCCESS;
}
