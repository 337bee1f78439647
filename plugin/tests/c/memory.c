/* Buffers that other processes read where they lie, next to ordinary ones, and calls that go on by themselves. */
#include "common.h"
#include <unistd.h>

static const int64_t constant[2000] = {1};

/* A sum of long vectors, in place, in memory of any kind. */
static void add(antiphon_comm_t comm, int64_t *vector, size_t count, int round) {
    fill(vector, count, own_rank + round);
    OK(antiphon_all_reduce(vector, vector, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
    for (size_t at = 0; at < count; at++) CHECK(vector[at] == sum_of(at) + (int64_t)ranks * round * 1000003);
}

static void allocated(antiphon_comm_t comm, size_t count) {
    void *memory;
    OK(antiphon_alloc(comm, count * sizeof(int64_t), &memory));
    CHECK((uintptr_t)memory % 4096 == 0);
    for (size_t at = 0; at < count; at++) CHECK(((int64_t *)memory)[at] == 0);
    /* Others have mapped what had this address, or this place in a list, before. */
    for (int round = 0; round < 3; round++) {
        add(comm, memory, count, round);
        OK(antiphon_free(comm, memory));
        OK(antiphon_alloc(comm, (count + 1000 * round) * sizeof(int64_t), &memory));
    }
    OK(antiphon_free(comm, memory));
    OK(antiphon_free(comm, NULL));
}

/* `offset` elements from the beginning of what malloc gave. Only some ranks register. */
static void registered(antiphon_comm_t comm, size_t count, size_t offset) {
    int64_t *whole = vector_of(count + offset), *vector = whole + offset;
    int is_registered = own_rank % 2 == 0;
    for (int round = 0; round < 3; round++) {
        fill(vector, count, round);
        if (is_registered) OK(antiphon_register(comm, vector, count * sizeof *vector));
        for (size_t at = 0; at < count; at++) CHECK(vector[at] == element(round, at));
        add(comm, vector, count, round);
        add(comm, vector, count, round + 1);
        if (is_registered && round < 2) OK(antiphon_deregister(comm, vector));
        CHECK(whole[count + offset] == 0x5a5a5a5a5a5a5a5a);
        add(comm, vector, count, round + 2);
        if (is_registered && round == 2) OK(antiphon_deregister(comm, vector));
    }
    free(whole);
}

static void refused(antiphon_comm_t comm) {
    int64_t *vector = vector_of(100000);
    void *memory;
    CHECK(antiphon_deregister(comm, vector) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_register(comm, NULL, 10) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_alloc(comm, SIZE_MAX, &memory) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_alloc(comm, SIZE_MAX / 2 - 8192, &memory) == ANTIPHON_SYSTEM);
    OK(antiphon_register(comm, vector, 100000 * sizeof *vector));
    CHECK(antiphon_register(comm, vector, 100000 * sizeof *vector) == ANTIPHON_INVALID_ARGUMENT);
    /* Memory of a file that nobody may write, and nothing. */
    CHECK(antiphon_register(comm, (void *)constant, sizeof constant) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(strstr(antiphon_last_error(), "private memory") != NULL);
    CHECK(antiphon_register(comm, (void *)4096, 8192) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_register(comm, (char *)vector + 8192, 8192) == ANTIPHON_INVALID_ARGUMENT);
    OK(antiphon_deregister(comm, vector));
    free(vector);
}

/* Rank 0 begins a call, and does not touch the library again until the others, who wait for the call, have come back. */
static void goes_on(antiphon_comm_t comm, const char *folder, size_t count) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%zu", folder, count);
    int64_t *vector = vector_of(count);
    fill(vector, count, own_rank);
    if (own_rank == 0) {
        antiphon_request_t request;
        OK(antiphon_all_reduce_start(vector, vector, count, ANTIPHON_I64, ANTIPHON_SUM, comm, &request));
        while (access(path, F_OK) != 0) usleep(100);
        OK(antiphon_wait(&request));
    } else {
        OK(antiphon_all_reduce(vector, vector, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
        FILE *file = own_rank == ranks - 1 ? fopen(path, "w") : NULL;
        if (file != NULL) fclose(file);
    }
    for (size_t at = 0; at < count; at++) CHECK(vector[at] == sum_of(at));
    OK(antiphon_barrier(comm));
    free(vector);
}

int main(int arguments, char **argument) {
    antiphon_comm_t comm = join();
    allocated(comm, 300000);
    registered(comm, 300000, 0);
    registered(comm, 300001, 77);
    registered(comm, 10, 0);
    refused(comm);
    const size_t counts[] = {1, 5000, 1000000};
    for (size_t index = 0; arguments > 1 && ranks > 1 && index < sizeof counts / sizeof *counts; index++)
        goes_on(comm, argument[1], counts[index]);
    OK(antiphon_comm_free(&comm));
    return 0;
}
