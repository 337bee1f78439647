/* Calls a library by NCCL's names.
 *
 *   calls every LIBRARY     every function of names.h with arguments in all places, by both of its names; ends with their number
 *   calls some LIBRARY      collectives of a communicator of 4 ranks, whose rank 0 this is
 *   calls look LIBRARY      the version; if it cannot be had, what the result means, and what another function returns */
#define _GNU_SOURCE
#include "mixture.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *library;

static void *function(const char *prefix, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    void *found = dlsym(library, full);
    if (!found) {
        fprintf(stderr, "there is no %s\n", full);
        exit(1);
    }
    return found;
}

static const struct {
    const char *name;
    long number;
} names[] = {
#define F(name, number) {#name, number},
#include "names.h"
};

static int check(const char *prefix, int index) {
    long (*call)(ARGUMENTS) = function(prefix, names[index].name);
    for (long round = 0; round < 3; round++) {
        struct stack stack;
        for (int at = 0; at < 20; at++) stack.at[at] = round * 1000 + at * at + index;
        double x = 0.5 + round + index;
        long a = -7 * (round + 1) - index;
        if (call(a, a + 1, a + 2, a + 3, a + 4, a + 5, x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7, stack) !=
            mixture(names[index].number, a, a + 1, a + 2, a + 3, a + 4, a + 5, x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7,
                    stack)) {
            fprintf(stderr, "%s%s: other arguments arrived\n", prefix, names[index].name);
            exit(1);
        }
    }
    return 1;
}

static void *check_all(void *unused) {
    (void)unused;
    for (size_t index = 0; index < sizeof names / sizeof *names; index++) check("", index);
    return NULL;
}

static void some(void) {
    int comm[2] = {4, 0};
    int (*reduced)(const void *, void *, size_t, int, int, void *, void *) = function("", "ncclAllReduce");
    int (*gathered)(const void *, void *, size_t, int, void *, void *) = function("", "ncclAllGather");
    int (*scattered)(const void *, void *, size_t, int, int, void *, void *) = function("", "ncclReduceScatter");
    int (*to_root)(const void *, void *, size_t, int, int, int, void *, void *) = function("", "ncclReduce");
    int (*configured)(const void *, void *, size_t, int, int, int, void *, void *, void *) = function("", "ncclReduceConfig");
    int (*bcast)(void *, size_t, int, int, void *, void *) = function("", "ncclBcast");
    int (*always)(const void *, void *, size_t, int, int, void *, void *) = function("p", "ncclAllReduce");
    int failed = 0;
    for (int round = 0; round < 3; round++) failed |= reduced((void *)1, (void *)2, 10, 7, 3, comm, (void *)9);
    failed |= reduced((void *)1, (void *)2, 25, 7, 0, comm, NULL);
    failed |= reduced((void *)1, (void *)2, (size_t)1 << 40, 8, 0, comm, NULL);
    failed |= gathered((void *)3, (void *)4, 5, 9, comm, NULL);
    failed |= scattered((void *)3, (void *)4, 5, 0, 1, comm, NULL);
    failed |= to_root((void *)5, (void *)6, 7, 2, 1, 3, comm, (void *)8);
    failed |= configured((void *)5, (void *)6, 7, 2, 1, 3, comm, (void *)8, (void *)10);
    failed |= bcast((void *)7, 100, 1, 2, comm, NULL);
    failed |= always((void *)1, (void *)2, 11, 7, 3, comm, NULL);
    if (failed) printf("failed: %d\n", failed);
    printf("without a communicator: %d\n", reduced(NULL, NULL, 1, 7, 0, NULL, NULL));
    printf("of no type: %d\n", reduced(NULL, NULL, 1, 99, 0, comm, NULL));
    fflush(stdout);
    /* A child must not write the counters of its parent. */
    pid_t child = fork();
    if (child == 0) exit(reduced((void *)1, (void *)2, 10, 7, 3, comm, NULL));
    int status;
    waitpid(child, &status, 0);
}

int main(int count, char **args) {
    if (count != 3) return 2;
    library = dlopen(args[2], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (!strcmp(args[1], "every")) {
        pthread_t threads[3];
        for (int at = 0; at < 3; at++) pthread_create(&threads[at], NULL, check_all, NULL);
        for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
        int checked = 0;
        for (size_t index = 0; index < sizeof names / sizeof *names; index++) checked += check("", index) + check("p", index);
        printf("%d\n", checked);
    } else if (!strcmp(args[1], "some")) {
        some();
    } else {
        int version = -1;
        int result = ((int (*)(int *))function("", "ncclGetVersion"))(&version);
        printf("%d %d\n", result, version);
        if (result) {
            printf("%s\n", ((const char *(*)(int))function("", "ncclGetErrorString"))(result));
            printf("%d\n", ((int (*)(void))function("", "ncclGroupStart"))());
        }
    }
    return 0;
}
