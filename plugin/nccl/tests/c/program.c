/* A program for NCCL's own header, on a computer without a GPU: what works there, and how the rest fails. */
#include <nccl.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    int version = 0;
    printf("version %d", ncclGetVersion(&version));
    printf(" %d\n", version);
    ncclUniqueId first, second;
    printf("unique id %d %d\n", ncclGetUniqueId(&first), ncclGetUniqueId(&second));
    printf("they differ: %d\n", memcmp(&first, &second, sizeof first) != 0);
    for (int result = 0; result <= 10; result++) printf("%d: %s\n", result, ncclGetErrorString((ncclResult_t)result));
    printf("group %d\n", ncclGroupStart());
    printf("group %d\n", ncclGroupEnd());
    /* Neither a group that is not open, nor communicators that are none. */
    printf("group end %d\n", ncclGroupEnd());
    int number = -1;
    printf("count %d %d\n", ncclCommCount(NULL, &number), number);
    printf("all reduce %d\n", ncclAllReduce(&version, &number, 1, ncclInt, ncclSum, NULL, NULL));
    printf("all gather %d\n", ncclAllGather(&version, &number, 1, ncclInt, NULL, NULL));
    printf("reduce scatter %d\n", ncclReduceScatter(&version, &number, 1, ncclInt, ncclSum, NULL, NULL));
    printf("broadcast %d\n", ncclBroadcast(&version, &number, 1, ncclInt, 0, NULL, NULL));
    printf("bcast %d\n", ncclBcast(&version, 1, ncclInt, 0, NULL, NULL));
    printf("reduce %d\n", ncclReduce(&version, &number, 1, ncclInt, ncclSum, 0, NULL, NULL));
    printf("send %d\n", ncclSend(&version, 1, ncclInt, 0, NULL, NULL));
    printf("last error of none: %d\n", ncclGetLastError(NULL) != NULL);
    printf("abort %d\n", ncclCommAbort(NULL));
    printf("destroy %d\n", ncclCommDestroy(NULL));
    ncclComm_t comm = NULL;
    /* The id is passed by value, on the stack; without a driver it fails, and says with what. */
    ncclResult_t result = ncclCommInitRank(&comm, 1, first, 0);
    printf("init %d %s\n", result, ncclGetErrorString(result));
    printf("a rank that is not there %d\n", ncclCommInitRank(&comm, 2, first, 2));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    result = ncclCommInitRankConfig(&comm, 1, first, 0, &config);
    printf("init with a configuration %d\n", result);
    void *memory = NULL;
    printf("memory %d\n", ncclMemAlloc(&memory, 4096));
    return 0;
}
