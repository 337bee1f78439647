/* Calls the tuner as NCCL does, by the structures of its interface.
 *
 *   tuner PLUGIN VERSION RANKS NODES [LIBNCCL]
 *
 * With LIBNCCL, the loader of that library opens the plugin, and its adapter for the version is called. Each line of the input is
 * a call: collective bytes pipe_ops registered algorithms protocols forbidden_algorithm forbidden_protocol. Each line of
 * the output is what the tuner wants: algorithm protocol channels, -1 where it says nothing. */
#include "hidden.h"
#include <stdarg.h>
#include <stdint.h>

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);
typedef int (*init_old)(size_t, size_t, logger, void **);
typedef int (*init_new)(void **, uint64_t, size_t, size_t, logger, void *, void *);
typedef int (*info_v2)(void *, int, size_t, int, int, int, int *, int *, int *);
typedef int (*info_v3)(void *, int, size_t, int, float **, int, int, int *);
typedef int (*info_v4)(void *, int, size_t, int, float **, int, int, int, int *);
struct tuner {
    const char *name;
    void *init, *info;
    int (*destroy)(void *);
};

static void print_log(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    char text[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "%d %lx %s %s\n", level, flags, text, file && line >= 0 ? "" : "no place");
}

int main(int count, char **args) {
    if (count < 5) fail("tuner PLUGIN VERSION RANKS NODES [LIBNCCL]");
    int version = atoi(args[2]);
    size_t ranks = strtoull(args[3], NULL, 10), nodes = strtoull(args[4], NULL, 10);
    struct tuner *tuner;
    char name[64];
    if (count > 5) {
        void *nccl = dlopen(args[5], RTLD_NOW | RTLD_LOCAL);
        if (!nccl) fail(dlerror());
        void *(*open_plugin)(const char *) = hidden(nccl, "ncclOpenTunerPluginLib");
        snprintf(name, sizeof name, "getNcclTuner_v%d", version);
        struct tuner *(*adapter)(void *) = hidden(nccl, name);
        if (!open_plugin || !adapter) fail("this NCCL has no such loader");
        void *plugin = open_plugin(args[1]);
        if (!plugin) fail("NCCL does not open the plugin");
        tuner = adapter(plugin);
        version = 6; /* What all adapters look like to NCCL itself; it differs from version 5 by a function at the end. */
    } else {
        void *plugin = dlopen(args[1], RTLD_NOW | RTLD_LOCAL);
        if (!plugin) fail(dlerror());
        snprintf(name, sizeof name, "ncclTunerPlugin_v%d", version);
        tuner = dlsym(plugin, name);
    }
    if (!tuner) fail("the plugin has no such version");
    void *context = (void *)1;
    static char constants[1152], domains[12];
    int failed = version < 5 ? ((init_old)tuner->init)(ranks, nodes, print_log, &context)
                             : ((init_new)tuner->init)(&context, 7, ranks, nodes, print_log, domains, constants);
    if (failed) fail("init");
    for (size_t at = 0; at < sizeof constants; at++)
        if (constants[at]) fail("the constants of NCCL have changed");
    fprintf(stderr, "name %s\n", tuner->name);
    int collective, pipe_ops, registered, algorithms, protocols, no_algorithm, no_protocol;
    unsigned long long bytes;
    while (scanf("%d %llu %d %d %d %d %d %d", &collective, &bytes, &pipe_ops, &registered, &algorithms, &protocols,
                 &no_algorithm, &no_protocol) == 8) {
        float around[3 * 16 * 16];
        for (int at = 0; at < 3 * 16 * 16; at++) around[at] = 1.0f + at;
        float *table = around + 16 * 16;
        if (no_algorithm >= 0) table[no_algorithm * protocols + no_protocol] = -1.0f;
        int algorithm = -1, protocol = -1, channels = -1;
        if (version == 2)
            failed = ((info_v2)tuner->info)(context, collective, bytes, algorithms > 2, protocols > 2, pipe_ops, &algorithm,
                                            &protocol, &channels);
        else if (version == 3)
            failed = ((info_v3)tuner->info)(context, collective, bytes, pipe_ops, (float **)table, algorithms, protocols,
                                            &channels);
        else
            failed = ((info_v4)tuner->info)(context, collective, bytes, pipe_ops, (float **)table, algorithms, protocols,
                                            registered, &channels);
        if (failed) fail("getCollInfo");
        for (int at = 0; at < 3 * 16 * 16; at++) {
            int place = at - 16 * 16;
            int is_forbidden = no_algorithm >= 0 && place == no_algorithm * protocols + no_protocol;
            if (around[at] == (is_forbidden ? -1.0f : 1.0f + at)) continue;
            if (around[at] != 0.0f || algorithm >= 0 || place < 0 || protocols <= 0 || place >= algorithms * protocols)
                fail("the table has a strange cost, or one beside it has changed");
            algorithm = place / protocols;
            protocol = place % protocols;
        }
        printf("%d %d %d\n", algorithm, protocol, channels);
    }
    if (tuner->destroy(context)) fail("destroy");
    /* NCCL may call a tuner that could not begin. */
    if (version > 2) {
        float table[21] = {0};
        int channels = -1;
        failed = version == 3 ? ((info_v3)tuner->info)(NULL, 4, 8, 1, (float **)table, 7, 3, &channels)
                              : ((info_v4)tuner->info)(NULL, 4, 8, 1, (float **)table, 7, 3, 0, &channels);
        if (count == 5 && (failed || channels != -1 || tuner->destroy(NULL))) fail("without a context");
    }
    return 0;
}
