/* Every collective at many sizes, in place and not, next to a few lines that say what it means. */
#include "common.h"

static void all_reduce(antiphon_comm_t comm, size_t count) {
    int64_t *send = vector_of(count), *recv = vector_of(count);
    fill(send, count, own_rank);
    OK(antiphon_all_reduce(send, recv, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
    for (size_t at = 0; at < count; at++) CHECK(recv[at] == sum_of(at) && send[at] == element(own_rank, at));
    OK(antiphon_all_reduce(send, send, count, ANTIPHON_I64, ANTIPHON_MAX, comm));
    for (size_t at = 0; at < count; at++) CHECK(send[at] == element(ranks - 1, at));
    free(send);
    free(recv);
}

static void all_gather(antiphon_comm_t comm, size_t count) {
    int64_t *send = vector_of(count), *recv = vector_of(count * ranks);
    fill(send, count, own_rank);
    OK(antiphon_all_gather(send, recv, count, ANTIPHON_I64, comm));
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int rank = 0; rank < ranks; rank++)
            for (size_t at = 0; at < count; at++) CHECK(recv[rank * count + at] == element(rank, at));
        if (in_place) break;
        memset(recv, 1, count * ranks * sizeof *recv);
        fill(recv + own_rank * count, count, own_rank);
        OK(antiphon_all_gather(recv, recv, count, ANTIPHON_I64, comm));
    }
    free(send);
    free(recv);
}

static void reduce_scatter(antiphon_comm_t comm, size_t count) {
    int64_t *send = vector_of(count * ranks), *recv = vector_of(count);
    fill(send, count * ranks, own_rank);
    OK(antiphon_reduce_scatter(send, recv, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
    for (size_t at = 0; at < count; at++) CHECK(recv[at] == sum_of(own_rank * count + at));
    OK(antiphon_reduce_scatter(send, send, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
    for (size_t at = 0; at < count; at++) CHECK(send[at] == sum_of(own_rank * count + at));
    free(send);
    free(recv);
}

static void all_to_all(antiphon_comm_t comm, size_t count) {
    int64_t *send = vector_of(count * ranks), *recv = vector_of(count * ranks);
    fill(send, count * ranks, own_rank);
    OK(antiphon_all_to_all(send, recv, count, ANTIPHON_I64, comm));
    OK(antiphon_all_to_all(send, send, count, ANTIPHON_I64, comm));
    for (int rank = 0; rank < ranks; rank++)
        for (size_t at = 0; at < count; at++) {
            CHECK(recv[rank * count + at] == element(rank, own_rank * count + at));
            CHECK(send[rank * count + at] == recv[rank * count + at]);
        }
    free(send);
    free(recv);
}

static void rooted(antiphon_comm_t comm, size_t count, int root) {
    int64_t *one = vector_of(count), *other = vector_of(count), *all = vector_of(count * ranks);
    int is_root = own_rank == root;
    fill(one, count, own_rank);
    OK(antiphon_broadcast(one, count, ANTIPHON_I64, root, comm));
    for (size_t at = 0; at < count; at++) CHECK(one[at] == element(root, at));

    fill(one, count, own_rank);
    OK(antiphon_reduce(one, is_root ? other : NULL, count, ANTIPHON_I64, ANTIPHON_SUM, root, comm));
    OK(antiphon_reduce(one, is_root ? one : NULL, count, ANTIPHON_I64, ANTIPHON_SUM, root, comm));
    for (size_t at = 0; is_root && at < count; at++) CHECK(other[at] == sum_of(at) && one[at] == other[at]);

    fill(one, count, own_rank);
    OK(antiphon_gather(one, is_root ? all : NULL, count, ANTIPHON_I64, root, comm));
    for (size_t at = 0; is_root && at < count * ranks; at++) CHECK(all[at] == element(at / count, at % count));
    OK(antiphon_gather(is_root ? all : one, is_root ? all : NULL, count, ANTIPHON_I64, root, comm));
    for (size_t at = 0; is_root && at < count * ranks; at++) CHECK(all[at] == element(at / count, at % count));

    fill(all, count * ranks, root);
    OK(antiphon_scatter(is_root ? all : NULL, other, count, ANTIPHON_I64, root, comm));
    for (size_t at = 0; at < count; at++) CHECK(other[at] == element(root, own_rank * count + at));
    OK(antiphon_scatter(is_root ? all : NULL, is_root ? all : other, count, ANTIPHON_I64, root, comm));
    for (size_t at = 0; is_root && at < count * ranks; at++) CHECK(all[at] == element(root, at));
    free(one);
    free(other);
    free(all);
}

/* Every type and reduction: on rank r, all elements are r + 1. */
static void types(antiphon_comm_t comm) {
    const size_t sizes[] = {4, 8, 4, 8, 1};
    const int types[] = {ANTIPHON_F32, ANTIPHON_F64, ANTIPHON_I32, ANTIPHON_I64, ANTIPHON_U8};
    double expected[4] = {0, 1, 1, ranks};
    for (int rank = 0; rank < ranks; rank++) {
        expected[0] += rank + 1;
        expected[1] *= rank + 1;
    }
    for (int type = 0; type < 5; type++)
        for (int op = ANTIPHON_SUM; op <= ANTIPHON_MAX; op++) {
            union { float f; double d; int32_t i; int64_t l; uint8_t u; } send[100], recv[100];
            char *from = (char *)send, *to = (char *)recv;
            for (int at = 0; at < 100; at++) {
                float f = own_rank + 1; double d = own_rank + 1; int32_t i = own_rank + 1; int64_t l = own_rank + 1;
                uint8_t u = own_rank + 1;
                const void *value[] = {&f, &d, &i, &l, &u};
                memcpy(from + at * sizes[type], value[type], sizes[type]);
            }
            OK(antiphon_all_reduce(from, to, 100, types[type], op, comm));
            for (int at = 0; at < 100; at++) {
                float f; double d; int32_t i; int64_t l; uint8_t u;
                const char *place = to + at * sizes[type];
                double found = 0;
                switch (type) {
                case 0: memcpy(&f, place, 4); found = f; break;
                case 1: memcpy(&d, place, 8); found = d; break;
                case 2: memcpy(&i, place, 4); found = i; break;
                case 3: memcpy(&l, place, 8); found = (double)l; break;
                default: memcpy(&u, place, 1); found = u;
                }
                CHECK(found == expected[op - ANTIPHON_SUM]);
            }
        }
}

int main(void) {
    antiphon_comm_t comm = join();
    const size_t counts[] = {0, 1, 2, 7, 64, 500, 1000, 4096, 70000};
    for (size_t index = 0; index < sizeof counts / sizeof *counts; index++) {
        all_reduce(comm, counts[index]);
        all_gather(comm, counts[index]);
        reduce_scatter(comm, counts[index]);
        all_to_all(comm, counts[index]);
        for (int root = 0; root < ranks; root++) rooted(comm, counts[index], root);
    }
    types(comm);
    OK(antiphon_barrier(comm));
    OK(antiphon_comm_free(&comm));
    CHECK(comm == NULL);
    return 0;
}
