/* Calls under way, messages between two ranks, blocks of unequal length, and groups. */
#include "common.h"

enum { CALLS = 6 };

/* Many calls at once, of which one rank waits for the last first. */
static void begun(antiphon_comm_t comm, size_t count) {
    int64_t *send[CALLS], *recv[CALLS];
    antiphon_request_t requests[CALLS];
    for (int call = 0; call < CALLS; call++) {
        send[call] = vector_of(count);
        recv[call] = vector_of(count);
        fill(send[call], count, own_rank + call);
        OK(antiphon_all_reduce_start(send[call], recv[call], count, ANTIPHON_I64, ANTIPHON_SUM, comm, &requests[call]));
    }
    for (int index = 0; index < CALLS; index++) {
        int call = own_rank == 0 ? CALLS - 1 - index : index;
        if (index % 2) {
            int done = 0;
            while (!done) OK(antiphon_test(&requests[call], &done));
        } else {
            OK(antiphon_wait(&requests[call]));
        }
        CHECK(requests[call] == NULL);
        for (size_t at = 0; at < count; at++) CHECK(recv[call][at] == sum_of(at) + (int64_t)ranks * call * 1000003);
        free(send[call]);
        free(recv[call]);
    }
}

/* Around a ring, with long messages that nobody can receive before all have sent. */
static void messages(antiphon_comm_t comm, size_t count) {
    int64_t *send = vector_of(count), *recv = vector_of(count);
    int next = (own_rank + 1) % ranks, last = (own_rank + ranks - 1) % ranks;
    for (int round = 0; round < 3; round++) {
        antiphon_request_t request;
        fill(send, count, own_rank + round);
        OK(antiphon_send_start(send, count, ANTIPHON_I64, next, comm, &request));
        OK(antiphon_recv(recv, count, ANTIPHON_I64, last, comm));
        OK(antiphon_wait(&request));
        for (size_t at = 0; at < count; at++) CHECK(recv[at] == element(last + round, at));
    }
    free(send);
    free(recv);
}

/* Rank r sends (r + 1) · (i + 1) elements to rank i. */
static void blocks(antiphon_comm_t comm, size_t unit) {
    size_t counts[64], offsets[64], rcounts[64], roffsets[64], sent = 0, received = 0;
    for (int rank = 0; rank < ranks; rank++) {
        counts[rank] = unit * (own_rank + 1) * (rank + 1);
        rcounts[rank] = counts[rank];
        offsets[rank] = sent;
        roffsets[rank] = received;
        sent += counts[rank];
        received += rcounts[rank];
    }
    int64_t *send = vector_of(sent), *recv = vector_of(received);
    fill(send, sent, own_rank);
    OK(antiphon_all_to_all_v(send, counts, offsets, recv, rcounts, roffsets, ANTIPHON_I64, comm));
    for (int rank = 0; rank < ranks; rank++) {
        size_t before = 0;
        for (int to = 0; to < own_rank; to++) before += unit * (rank + 1) * (to + 1);
        for (size_t at = 0; at < rcounts[rank]; at++) CHECK(recv[roffsets[rank] + at] == element(rank, before + at));
    }
    free(send);
    free(recv);
}

/* Even and odd ranks, in reverse order; calls of the group and of the whole take turns. */
static void groups(antiphon_comm_t comm) {
    antiphon_comm_t group, none;
    OK(antiphon_comm_split(comm, own_rank % 2, -own_rank, &group));
    OK(antiphon_comm_split(comm, -1, 0, &none));
    CHECK(none == NULL);
    int rank, size;
    OK(antiphon_comm_rank(group, &rank));
    OK(antiphon_comm_size(group, &size));
    CHECK(size == (ranks + 1 - own_rank % 2) / 2 && rank == size - 1 - own_rank / 2);
    for (int round = 0; round < 100; round++) {
        int64_t one = own_rank, sum, expected = 0;
        antiphon_request_t request;
        OK(antiphon_all_reduce_start(&one, &sum, 1, ANTIPHON_I64, ANTIPHON_SUM, group, &request));
        OK(antiphon_barrier(comm));
        OK(antiphon_wait(&request));
        for (int other = own_rank % 2; other < ranks; other += 2) expected += other;
        CHECK(sum == expected);
    }
    OK(antiphon_comm_free(&group));
}

/* What makes no sense is refused, and nothing is sent. */
static void refusals(antiphon_comm_t comm) {
    char bytes[64];
    CHECK(antiphon_all_reduce(NULL, bytes, 1, ANTIPHON_I64, ANTIPHON_SUM, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_all_reduce(bytes, bytes + 4, 1, ANTIPHON_I64, ANTIPHON_SUM, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_all_reduce(bytes, bytes, 1, 99, ANTIPHON_SUM, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_all_reduce(bytes, bytes, 1, ANTIPHON_I64, -1, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_broadcast(bytes, 1, ANTIPHON_I64, ranks, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_broadcast(bytes, 1, ANTIPHON_I64, -1, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_send(bytes, SIZE_MAX, ANTIPHON_I64, 0, comm) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_barrier(NULL) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(strlen(antiphon_last_error()) > 0);
    CHECK(strstr(antiphon_plan(comm), "allreduce") != NULL);
}

static void look(void *context) {
    ++*(long *)context;
}

/* What a rank does while it waits can be set once for a job, and calls go on as before. */
static void idling(antiphon_comm_t comm) {
    static long looks;
    antiphon_comm_t group;
    CHECK(antiphon_comm_set_idle(comm, NULL, NULL) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_comm_set_idle(NULL, look, &looks) == ANTIPHON_INVALID_ARGUMENT);
    OK(antiphon_comm_set_idle(comm, look, &looks));
    OK(antiphon_comm_split(comm, own_rank % 2, 0, &group));
    CHECK(antiphon_comm_set_idle(group, look, &looks) == ANTIPHON_INVALID_ARGUMENT);
    for (int round = 0; round < 100; round++) {
        int64_t one = 1, sum;
        OK(antiphon_all_reduce(&one, &sum, 1, ANTIPHON_I64, ANTIPHON_SUM, comm));
        CHECK(sum == ranks);
        OK(antiphon_barrier(group));
    }
    OK(antiphon_comm_free(&group));
}

/* Messages that nobody receives yet are in nobody's way: not of other messages behind them, nor of those for which there is no room
 * besides them. */
static void unreceived(antiphon_comm_t comm) {
    const size_t counts[][2] = {{1, 13}, {200, 500}, {120, 7000}};
    int next = (own_rank + 1) % ranks, previous = (own_rank + ranks - 1) % ranks;
    size_t count = 200000;
    int64_t *vector = vector_of(count);
    for (size_t index = 0; index < sizeof counts / sizeof *counts; index++) {
        size_t messages = counts[index][0], each = counts[index][1];
        int64_t *sent = vector_of(messages * each), *received = vector_of(messages * each);
        antiphon_request_t requests[200];
        fill(sent, messages * each, own_rank);
        for (size_t at = 0; at < messages; at++)
            OK(antiphon_send_start(sent + at * each, each, ANTIPHON_I64, next, comm, &requests[at]));
        for (int root = 0; root < ranks; root++) {
            fill(vector, count, own_rank);
            OK(antiphon_broadcast(vector, count, ANTIPHON_I64, root, comm));
            for (size_t at = 0; at < count; at++) CHECK(vector[at] == element(root, at));
        }
        size_t block[5], offsets[5];
        int64_t *all = vector_of(500 * ranks);
        for (int rank = 0; rank < ranks; rank++) block[rank] = 500, offsets[rank] = 500 * rank;
        fill(vector, 500 * ranks, own_rank);
        OK(antiphon_all_to_all_v(vector, block, offsets, all, block, offsets, ANTIPHON_I64, comm));
        for (int at = 0; at < 500 * ranks; at++) CHECK(all[at] == element(at / 500, 500 * own_rank + at % 500));
        for (size_t at = 0; at < messages; at++)
            OK(antiphon_recv(received + at * each, each, ANTIPHON_I64, previous, comm));
        for (size_t at = 0; at < messages; at++) OK(antiphon_wait(&requests[at]));
        for (size_t at = 0; at < messages * each; at++) CHECK(received[at] == element(previous, at));
        free(all);
        free(sent);
        free(received);
    }
    free(vector);
}

int main(void) {
    antiphon_comm_t comm = join();
    const size_t counts[] = {0, 3, 1000, 100000};
    for (size_t index = 0; index < sizeof counts / sizeof *counts; index++) {
        begun(comm, counts[index]);
        messages(comm, counts[index]);
    }
    blocks(comm, 1);
    blocks(comm, 3000);
    unreceived(comm);
    groups(comm);
    refusals(comm);
    idling(comm);
    void *memory;
    OK(antiphon_alloc(comm, 100000, &memory));
    memset(memory, own_rank == 0 ? 7 : 0, 100000);
    OK(antiphon_broadcast(memory, 100000, ANTIPHON_U8, 0, comm));
    CHECK(((char *)memory)[99999] == 7);
    OK(antiphon_free(comm, memory));
    OK(antiphon_comm_free(&comm));
    return 0;
}
