/* What the test programs share: checks that say where they failed, and a vector that no two ranks have in common. */
#ifndef COMMON_H
#define COMMON_H

#include <antiphon.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int own_rank = -1;
static int ranks;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        antiphon_result_t result_ = (call);                                                                            \
        if (result_ != ANTIPHON_SUCCESS) {                                                                             \
            fprintf(stderr, "rank %d, %s:%d: result %d: %s\n", own_rank, __FILE__, __LINE__, result_,                  \
                    antiphon_last_error());                                                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d, %s:%d: %s is not so\n", own_rank, __FILE__, __LINE__, #condition);               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The communicator of all ranks. */
static inline antiphon_comm_t join(void) {
    antiphon_comm_t comm;
    OK(antiphon_comm_from_env(&comm));
    OK(antiphon_comm_rank(comm, &own_rank));
    OK(antiphon_comm_size(comm, &ranks));
    return comm;
}

/* Element `index` of a rank's vector. */
static inline int64_t element(int rank, size_t index) { return (int64_t)rank * 1000003 + (int64_t)index * 17; }

static inline void fill(int64_t *vector, size_t count, int rank) {
    for (size_t index = 0; index < count; index++) vector[index] = element(rank, index);
}

static inline int64_t *vector_of(size_t count) {
    int64_t *vector = malloc((count + 1) * sizeof *vector);
    CHECK(vector != NULL);
    memset(vector, 0x5a, (count + 1) * sizeof *vector);
    return vector;
}

static inline int64_t sum_of(size_t index) {
    int64_t sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += element(rank, index);
    return sum;
}

#endif
