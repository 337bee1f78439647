/* Reads a graph file by the reader of the real NCCL 2.30.7, as a communicator would, and prints what it has understood.
 *
 *   graph LIBNCCL FILE RANKS
 *
 * A line for each graph: identifier, pattern, number of channels, rate, type of path; then a line for each channel: its ranks. The
 * structures are those of 2.30.7: there is no public way to this reader without a GPU. */
#include "hidden.h"
#include <stdint.h>

enum { CHANNELS = 64, NODES = 640, NAMES = 256, ATTRIBUTES = 17, CHILDREN = 640, XML_NODES = 4096 };

struct xml_node {
    char name[NAMES];
    struct { char key[NAMES], value[NAMES]; } attributes[ATTRIBUTES];
    int count, type;
    struct xml_node *parent, *children[CHILDREN];
    int child_count;
};
struct xml {
    int used, all;
    struct xml_node nodes[XML_NODES];
};
struct graph {
    int id, pattern, cross_nic, coll_net, least, most;
    int channels;
    float inside, between, latency;
    int path_inside, path_between, same, hops;
    int ranks[CHANNELS * NODES];
    int64_t nets[CHANNELS * 2];
};
/* The begin of the machine's description; the reader asks it for nothing but the number of GPUs. */
struct machine {
    int number;
    uint64_t hosts[NODES];
    int host_count;
    _Alignas(8) int gpus;
    char rest[1 << 20];
};

int main(int count, char **args) {
    if (count != 4) fail("graph LIBNCCL FILE RANKS");
    void *nccl = dlopen(args[1], RTLD_NOW | RTLD_LOCAL);
    if (!nccl) fail(dlerror());
    int (*version)(int *) = (int (*)(int *))dlsym(nccl, "ncclGetVersion"), number = 0;
    if (!version || version(&number) || number != 23007) fail("another version");
    int (*load)(const char *, struct xml *) = hidden(nccl, "ncclTopoGetXmlGraphFromFile");
    int (*read)(struct xml_node *, void *, struct graph *, int *) = hidden(nccl, "23ncclTopoGetGraphFromXmlP");
    if (!load || !read) fail("this NCCL has no such reader");
    struct xml *xml = calloc(1, sizeof *xml);
    struct machine *machine = calloc(1, sizeof *machine);
    if (!xml || !machine) fail("memory");
    xml->all = XML_NODES;
    machine->gpus = atoi(args[3]);
    if (load(args[2], xml)) fail("NCCL does not load the file");
    for (int id = 0; id < 2; id++) {
        struct graph *graph = calloc(1, sizeof *graph);
        int channels = -1;
        if (!graph) fail("memory");
        graph->id = id;
        if (read(xml->nodes, machine, graph, &channels)) fail("NCCL does not take the graph");
        if (channels != graph->channels) fail("the number of channels differs");
        printf("%d %d %d %g %d\n", graph->id, graph->pattern, graph->channels, graph->inside, graph->path_inside);
        for (int channel = 0; channel < channels; channel++)
            for (int rank = 0; rank < machine->gpus; rank++)
                printf("%d%c", graph->ranks[channel * machine->gpus + rank], rank + 1 < machine->gpus ? ' ' : '\n');
    }
    return 0;
}
