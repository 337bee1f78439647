/* A library with NCCL's names that records what it is called with. It moves no data, and is no NCCL.
 *
 * names.h has a line F(name, number) for each function that takes anything. Those functions return a number made of all
 * their arguments. The collectives print theirs. -DVERSION_CODE=… is what ncclGetVersion says. */
#include "mixture.h"
#include <stddef.h>
#include <stdio.h>

#define F(name, number)                                                                                  \
    long p##name(ARGUMENTS) { return mixture(number, VALUES); }                                          \
    long name(ARGUMENTS) __attribute__((weak, alias("p" #name)));
#include "names.h"

#define RESULT(name)                                                                                      \
    __attribute__((visibility("default"))) int name

RESULT(pncclGetVersion)(int *version) {
    *version = VERSION_CODE;
    return 0;
}

/* A communicator here is two numbers: how many ranks, and which one it is. */
RESULT(pncclCommCount)(const int *comm, int *count) {
    if (!comm) return 4;
    *count = comm[0];
    return 0;
}

RESULT(pncclCommUserRank)(const int *comm, int *rank) {
    if (!comm) return 4;
    *rank = comm[1];
    return 0;
}

#define LOG(name, extra, ...)                                                                            \
    printf(name " %ld %ld %zu " extra "\n", (long)send, (long)recv, count, __VA_ARGS__);                 \
    return comm ? 0 : 4;

RESULT(pncclAllReduce)(void *send, void *recv, size_t count, int type, int op, void *comm, void *stream) {
    LOG("AllReduce", "%d %d %ld", type, op, (long)stream)
}
RESULT(pncclReduceScatter)(void *send, void *recv, size_t count, int type, int op, void *comm, void *stream) {
    LOG("ReduceScatter", "%d %d %ld", type, op, (long)stream)
}
RESULT(pncclAllGather)(void *send, void *recv, size_t count, int type, void *comm, void *stream) {
    LOG("AllGather", "%d %ld", type, (long)stream)
}
RESULT(pncclAlltoAll)(void *send, void *recv, size_t count, int type, void *comm, void *stream) {
    LOG("AlltoAll", "%d %ld", type, (long)stream)
}
/* As in NCCL, the public name is called, so that the call may come to the library in front again. */
int ncclBroadcast(void *send, void *recv, size_t count, int type, int root, void *comm, void *stream);
RESULT(pncclBroadcast)(void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
    LOG("Broadcast", "%d %d %ld", type, root, (long)stream)
}
__attribute__((weak)) int ncclBroadcast(void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
    return pncclBroadcast(send, recv, count, type, root, comm, stream);
}
RESULT(pncclBcast)(void *send, size_t count, int type, int root, void *comm, void *stream) {
    return ncclBroadcast(send, send, count, type, root, comm, stream);
}
RESULT(pncclGather)(void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
    LOG("Gather", "%d %d %ld", type, root, (long)stream)
}
RESULT(pncclScatter)(void *send, void *recv, size_t count, int type, int root, void *comm, void *stream) {
    LOG("Scatter", "%d %d %ld", type, root, (long)stream)
}
RESULT(pncclReduce)(void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream) {
    LOG("Reduce", "%d %d %d %ld", type, op, root, (long)stream)
}
RESULT(pncclReduceConfig)(void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream, void *config) {
    LOG("ReduceConfig", "%d %d %d %ld %ld", type, op, root, (long)stream, (long)config)
}
