/* A fake NVML for tests: links of the GPUs of the fake CUDA driver, whose addresses begin with 0000:10:00.0.
 *
 * FAKE_NVML_LINKS has words FROM-TO:COUNT, such as 0-1:4 for four links from GPU 0 to GPU 1, and 2-s:18 for eighteen from GPU 2
 * to a switch. FAKE_NVML_FAULTS has words GPU.LINK for links whose state it does not tell, and GPU-LINK for links whose end it does
 * not tell. With FAKE_NVML_INIT it cannot be initialized. It refuses what NVML refuses: calls before nvmlInit_v2 or after nvmlShutdown, GPUs that are none, links out of range. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, UNKNOWN = 999, GPUS = 16, LINKS = 18 };

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, ids[2];
    char bus_id[32];
} pci_info;

static int initialized;
static char gpus[GPUS];

static int gpu_of(void *device) {
    long at = (char *)device - gpus;
    return at >= 0 && at < GPUS ? (int)at : -1;
}

/* Where a link of a GPU leads: another GPU, -1 for a switch, -2 for nowhere. */
static int end_of(int gpu, unsigned link) {
    const char *text = getenv("FAKE_NVML_LINKS");
    char to;
    int from, count, read;
    unsigned before = 0;
    while (text && sscanf(text, " %d-%c:%d%n", &from, &to, &count, &read) == 3) {
        if (from == gpu && link < (before += count)) return to == 's' ? -1 : to - '0';
        text += read;
    }
    return -2;
}

/* Whether a link has a fault of this kind. */
static int fails(int gpu, unsigned link, char kind) {
    const char *text = getenv("FAKE_NVML_FAULTS");
    char of;
    int at, read;
    unsigned number;
    while (text && sscanf(text, " %d%c%u%n", &at, &of, &number, &read) == 3) {
        if (at == gpu && of == kind && number == link) return 1;
        text += read;
    }
    return 0;
}

int nvmlInit_v2(void) {
    if (getenv("FAKE_NVML_INIT")) return UNKNOWN;
    initialized++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialized) abort();
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == NOT_FOUND ? "Not Found" : "a fake error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    if (!initialized) return UNINITIALIZED;
    return snprintf(text, length, "0.0 (fake)") < (int)length ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    unsigned domain, bus;
    if (!initialized) return UNINITIALIZED;
    if (!bus_id || !device || sscanf(bus_id, "%x:%x:00.0", &domain, &bus) != 2) return INVALID_ARGUMENT;
    if (domain || bus < 0x10 || bus >= 0x10 + GPUS) return NOT_FOUND;
    *device = gpus + (bus - 0x10);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *is_up) {
    if (!initialized) return UNINITIALIZED;
    if (gpu_of(device) < 0 || link >= LINKS || !is_up) return INVALID_ARGUMENT;
    if (fails(gpu_of(device), link, '.')) return UNKNOWN;
    *is_up = end_of(gpu_of(device), link) != -2;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *kind) {
    if (!initialized) return UNINITIALIZED;
    if (gpu_of(device) < 0 || link >= LINKS || !kind || end_of(gpu_of(device), link) == -2) return INVALID_ARGUMENT;
    if (fails(gpu_of(device), link, '-')) return UNKNOWN;
    *kind = end_of(gpu_of(device), link) == -1 ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info *info) {
    if (!initialized) return UNINITIALIZED;
    if (gpu_of(device) < 0 || link >= LINKS || !info || end_of(gpu_of(device), link) < 0) return INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + end_of(gpu_of(device), link);
    snprintf(info->bus_id, sizeof info->bus_id, "%08x:%02x:00.0", info->domain, info->bus);
    return SUCCESS;
}
