/* Every collective, blocking on some ranks and begun on others, calls of no elements with pointers of all sorts, and
 * barriers.
 *
 *   mixed FOLDER     an empty folder that all ranks share */
#include "common.h"
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* Whether this rank makes blocking calls in this round. */
static bool is_blocking;

/* Makes a call in the form that this rank uses in this round. */
#define CALL(name, ...)                                                                                                \
    do {                                                                                                               \
        antiphon_request_t request_ = NULL;                                                                            \
        if (is_blocking) OK(antiphon_##name(__VA_ARGS__));                                                             \
        else OK(antiphon_##name##_start(__VA_ARGS__, &request_));                                                      \
        OK(antiphon_wait(&request_));                                                                                  \
    } while (0)

static void without_root(antiphon_comm_t comm, size_t count) {
    size_t all = count * ranks, counts[64], offsets[64];
    int64_t *send = vector_of(all), *recv = vector_of(all);
    for (int rank = 0; rank < ranks; rank++) counts[rank] = count, offsets[rank] = count * rank;
    fill(send, all, own_rank);
    CALL(all_reduce, send, recv, count, ANTIPHON_I64, ANTIPHON_SUM, comm);
    for (size_t at = 0; at < count; at++) CHECK(recv[at] == sum_of(at));
    CALL(all_reduce, recv, recv, count, ANTIPHON_I64, ANTIPHON_MAX, comm);
    for (size_t at = 0; at < count; at++) CHECK(recv[at] == sum_of(at));
    CALL(all_gather, send, recv, count, ANTIPHON_I64, comm);
    for (size_t at = 0; at < all; at++) CHECK(recv[at] == element((int)(at / count), at % count));
    fill(recv + own_rank * count, count, own_rank + 1);
    CALL(all_gather, recv, recv, count, ANTIPHON_I64, comm);
    for (size_t at = 0; at < all; at++) CHECK(recv[at] == element((int)(at / count) + 1, at % count));
    CALL(reduce_scatter, send, recv, count, ANTIPHON_I64, ANTIPHON_SUM, comm);
    for (size_t at = 0; at < count; at++) CHECK(recv[at] == sum_of(own_rank * count + at));
    CALL(all_to_all, send, recv, count, ANTIPHON_I64, comm);
    for (size_t at = 0; at < all; at++)
        CHECK(recv[at] == element((int)(at / count), own_rank * count + at % count));
    memset(recv, 0, all * sizeof *recv);
    CALL(all_to_all_v, send, counts, offsets, recv, counts, offsets, ANTIPHON_I64, comm);
    for (size_t at = 0; at < all; at++)
        CHECK(recv[at] == element((int)(at / count), own_rank * count + at % count));
    CALL(all_to_all, send, send, count, ANTIPHON_I64, comm);
    CHECK(memcmp(send, recv, all * sizeof *recv) == 0);
    CALL(barrier, comm);
    free(send);
    free(recv);
}

/* Only some ranks reduce in place, which is each rank's own affair here. */
static void with_root(antiphon_comm_t comm, size_t count, int root) {
    size_t all = count * ranks;
    int64_t *one = vector_of(count), *other = vector_of(count), *whole = vector_of(all);
    bool is_root = own_rank == root;
    int next = (own_rank + 1) % ranks, previous = (own_rank + ranks - 1) % ranks;
    fill(one, count, own_rank);
    fill(other, count, own_rank);
    CALL(broadcast, other, count, ANTIPHON_I64, root, comm);
    for (size_t at = 0; at < count; at++) CHECK(other[at] == element(root, at));
    CALL(reduce, one, is_root ? other : NULL, count, ANTIPHON_I64, ANTIPHON_SUM, root, comm);
    for (size_t at = 0; is_root && at < count; at++) CHECK(other[at] == sum_of(at));
    CALL(gather, one, is_root ? whole : NULL, count, ANTIPHON_I64, root, comm);
    for (size_t at = 0; is_root && at < all; at++) CHECK(whole[at] == element((int)(at / count), at % count));
    fill(whole, all, own_rank);
    CALL(scatter, is_root ? whole : NULL, other, count, ANTIPHON_I64, root, comm);
    for (size_t at = 0; at < count; at++) CHECK(other[at] == element(root, own_rank * count + at));
    antiphon_request_t sent;
    OK(antiphon_send_start(one, count, ANTIPHON_I64, next, comm, &sent));
    CALL(recv, other, count, ANTIPHON_I64, previous, comm);
    OK(antiphon_wait(&sent));
    for (size_t at = 0; at < count; at++) CHECK(other[at] == element(previous, at));
    free(one);
    free(other);
    free(whole);
}

/* No elements: two pointers, one of them twice, or none, another choice on each rank. */
static void empty(antiphon_comm_t comm, int choice) {
    int64_t memory[2];
    size_t counts[64] = {0}, offsets[64] = {0};
    const void *send = choice % 3 == 0 ? NULL : memory;
    void *recv = choice % 3 == 0 ? NULL : memory + choice % 3 - 1;
    int root = ranks - 1;
    CALL(all_reduce, send, recv, 0, ANTIPHON_F32, ANTIPHON_SUM, comm);
    CALL(all_gather, send, recv, 0, ANTIPHON_F32, comm);
    CALL(reduce_scatter, send, recv, 0, ANTIPHON_F32, ANTIPHON_SUM, comm);
    CALL(all_to_all, send, recv, 0, ANTIPHON_F32, comm);
    CALL(all_to_all_v, send, counts, offsets, recv, counts, offsets, ANTIPHON_F32, comm);
    CALL(broadcast, recv, 0, ANTIPHON_F32, root, comm);
    CALL(reduce, send, recv, 0, ANTIPHON_F32, ANTIPHON_SUM, root, comm);
    CALL(gather, send, recv, 0, ANTIPHON_F32, root, comm);
    CALL(scatter, send, recv, 0, ANTIPHON_F32, root, comm);
    CALL(barrier, comm);
}

/* Nobody leaves a barrier before all have come. One rank comes late, which only makes it likely that a wrong barrier is
 * seen. */
static void barriers(antiphon_comm_t comm, const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rounds", folder);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0 && ftruncate(file, 64 * sizeof(int)) == 0);
    int *rounds = mmap(NULL, 64 * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(rounds != MAP_FAILED);
    for (int round = 1; round <= 4 * ranks; round++) {
        is_blocking = (own_rank + round) % 3 != 0;
        if (round % ranks == own_rank) usleep(2000);
        __atomic_store_n(&rounds[own_rank], round, __ATOMIC_SEQ_CST);
        CALL(barrier, comm);
        for (int rank = 0; rank < ranks; rank++) CHECK(__atomic_load_n(&rounds[rank], __ATOMIC_SEQ_CST) >= round);
    }
    CHECK(munmap(rounds, 64 * sizeof(int)) == 0 && close(file) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    antiphon_comm_t comm = join();
    barriers(comm, argv[1]);
    const size_t counts[] = {0, 1, 700, 50000};
    for (size_t index = 0; index < sizeof counts / sizeof *counts; index++)
        for (int round = 0; round < 3; round++) {
            is_blocking = (own_rank + round) % 3 == 0;
            without_root(comm, counts[index]);
            with_root(comm, counts[index], round % ranks);
            empty(comm, own_rank + (int)index);
        }
    OK(antiphon_comm_free(&comm));
    return 0;
}
