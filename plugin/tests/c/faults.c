/* One rank fails in the middle of its calls: all others get an error that names it, and go on without it.
 *
 *   faults FAULT VICTIM COUNT [WHERE]
 *
 * WHERE is `calls` that block, if it is not given; `requests` that are under way; `groups`, of even and of odd ranks;
 * or `messages` around a ring. */
#include "common.h"
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* Cuts all connections of this process. */
static void cut(void) {
    for (int fd = 3; fd < 1024; fd++) shutdown(fd, SHUT_RDWR);
}

/* What is left of a communicator works. */
static void go_on(antiphon_comm_t comm, int least, int left, int victim) {
    antiphon_comm_t rest;
    OK(antiphon_comm_rebuild(comm, least, &rest));
    OK(antiphon_comm_free(&comm));
    int number, size;
    OK(antiphon_comm_rank(rest, &number));
    OK(antiphon_comm_size(rest, &size));
    CHECK(size == left);
    int64_t *all = vector_of(size), own = own_rank;
    for (int call = 0; call < 100; call++) {
        OK(antiphon_all_gather(&own, all, 1, ANTIPHON_I64, rest));
        /* In the order of before, without the one that failed. */
        for (int rank = 0; rank < size; rank++) CHECK(all[rank] == rank + (left < ranks && rank >= victim));
    }
    antiphon_comm_t part;
    OK(antiphon_comm_split(rest, number % 2, 0, &part));
    OK(antiphon_barrier(part));
    OK(antiphon_comm_free(&part));
    free(all);
    OK(antiphon_comm_free(&rest));
}

/* The rank that leads the others to a new communicator dies while they meet, because one of them comes late. */
static int go_on_again(antiphon_comm_t comm) {
    const struct itimerval soon = {.it_value = {.tv_usec = 300000}};
    if (own_rank == 0) setitimer(ITIMER_REAL, &soon, NULL);
    if (own_rank == 3) usleep(600000);
    antiphon_comm_t rest;
    int64_t own = own_rank, all[2] = {0};
    OK(antiphon_comm_rebuild(comm, 2, &rest));
    OK(antiphon_comm_free(&comm));
    OK(antiphon_all_gather(&own, all, 1, ANTIPHON_I64, rest));
    CHECK(all[0] == 1 && all[1] == 3);
    OK(antiphon_comm_free(&rest));
    return 0;
}

/* What the victim does, with the communicator in whose calls it fails. Whether it goes on with its calls. */
static bool fails(const char *fault, antiphon_comm_t *comm) {
    if (strcmp(fault, "kill") == 0 || strcmp(fault, "twice") == 0) kill(getpid(), SIGKILL);
    if (strcmp(fault, "stop") == 0) kill(getpid(), SIGSTOP);
    if (strcmp(fault, "exit") == 0) _exit(0);
    if (strcmp(fault, "cut") == 0) cut();
    if (strcmp(fault, "abort") == 0) OK(antiphon_comm_abort(*comm));
    if (strcmp(fault, "free") == 0) OK(antiphon_comm_free(comm));
    return *comm != NULL;
}

enum { WINDOW = 3, FAULT_AT = 5 };

/* Calls until one fails. In each, `count` elements are summed, or sent around a ring. The victim fails at call 5: before
 * a blocking call, while three calls are under way, or between sending and receiving. */
static antiphon_result_t calls(antiphon_comm_t *comm, size_t count, const char *fault, bool is_victim,
                               const char *where) {
    bool is_message = strcmp(where, "messages") == 0, is_begun = is_message || strcmp(where, "requests") == 0;
    bool is_other = is_victim && strcmp(fault, "other") == 0;
    int number, size, window = is_message ? 1 : WINDOW;
    int64_t *vectors[WINDOW + 1];
    antiphon_result_t result = ANTIPHON_SUCCESS;
    OK(antiphon_comm_rank(*comm, &number));
    OK(antiphon_comm_size(*comm, &size));
    for (int at = 0; at <= WINDOW; at++) vectors[at] = vector_of(count + 1);
    for (int call = 0; result == ANTIPHON_SUCCESS && call < 1000000; call++) {
        antiphon_request_t requests[WINDOW] = {NULL};
        bool is_now = is_victim && call == FAULT_AT;
        size_t own = count + (is_other && call >= FAULT_AT);
        for (int at = 0; at <= WINDOW; at++) fill(vectors[at], count, own_rank);
        if (is_now && !is_begun && !fails(fault, comm)) break;
        for (int at = 0; is_begun && result == ANTIPHON_SUCCESS && at < window; at++)
            result = is_message ? antiphon_send_start(vectors[at], own, ANTIPHON_I64, (number + 1) % size, *comm,
                                                      &requests[at])
                                : antiphon_all_reduce_start(vectors[at], vectors[at], own, ANTIPHON_I64, ANTIPHON_SUM,
                                                            *comm, &requests[at]);
        if (is_now && is_begun) fails(fault, comm);
        if (is_message && result == ANTIPHON_SUCCESS)
            result = antiphon_recv(vectors[WINDOW], count, ANTIPHON_I64, (number + size - 1) % size, *comm);
        if (!is_begun) result = antiphon_all_reduce(vectors[0], vectors[0], own, ANTIPHON_I64, ANTIPHON_SUM, *comm);
        for (int at = window - 1; at >= 0; at--) {
            antiphon_result_t ended = ANTIPHON_SUCCESS;
            if (number % 2) {
                for (int done = 0; !done;) ended = antiphon_test(&requests[at], &done);
            } else {
                ended = antiphon_wait(&requests[at]);
            }
            CHECK(requests[at] == NULL);
            if (result == ANTIPHON_SUCCESS) result = ended;
        }
    }
    for (int at = 0; at <= WINDOW; at++) free(vectors[at]);
    return result;
}

/* Calls of two groups, of which one has the victim. A lost rank ends the calls of both, because both are of one session.
 * Who has left in order, or broken the calls of its group, is no concern of the other group. */
static int in_groups(antiphon_comm_t world, const char *fault, int victim, size_t count, bool lives) {
    antiphon_comm_t group;
    antiphon_result_t result = ANTIPHON_SUCCESS;
    bool is_concerned = own_rank % 2 == victim % 2, is_lost = !lives && strcmp(fault, "free") != 0;
    OK(antiphon_comm_split(world, own_rank % 2, 0, &group));
    if (is_concerned) {
        result = calls(&group, count, fault, own_rank == victim, "calls");
        if (group == NULL) {
            OK(antiphon_comm_free(&world));
            return 0;
        }
        CHECK(result != ANTIPHON_SUCCESS && antiphon_barrier(group) == result);
    } else {
        int most = is_lost ? INT_MAX : 200;
        for (int call = 0; result == ANTIPHON_SUCCESS && call < most; call++) result = antiphon_barrier(group);
        CHECK(is_lost == (result != ANTIPHON_SUCCESS));
    }
    printf("rank %d: result %d: %s\n", own_rank, result, antiphon_last_error());
    antiphon_result_t of_all = antiphon_barrier(world);
    CHECK(lives == (of_all == ANTIPHON_SUCCESS));
    if (!lives) printf("rank %d, all: result %d: %s\n", own_rank, of_all, antiphon_last_error());
    if (own_rank == victim && !lives) return 0;
    if (lives && is_concerned) {
        antiphon_comm_t again;
        OK(antiphon_comm_rebuild(group, 2, &again));
        OK(antiphon_comm_free(&group));
        group = again;
    }
    if (lives) OK(antiphon_barrier(group));
    OK(antiphon_comm_free(&group));
    if (lives) OK(antiphon_comm_free(&world));
    else go_on(world, ranks - 1, ranks - 1, victim);
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 4 || argc == 5);
    const char *fault = argv[1], *where = argc == 5 ? argv[4] : "calls";
    int victim = atoi(argv[2]);
    size_t count = (size_t)atol(argv[3]);
    bool lives = strcmp(fault, "abort") == 0 || strcmp(fault, "other") == 0;
    antiphon_comm_t comm = join();
    if (strcmp(where, "groups") == 0) return in_groups(comm, fault, victim, count, lives);
    antiphon_result_t result = calls(&comm, count, fault, own_rank == victim, where);
    if (comm == NULL) return 0;
    printf("rank %d: result %d: %s\n", own_rank, result, antiphon_last_error());
    if (own_rank == victim && strcmp(fault, "cut") == 0) return 0;
    if (strcmp(fault, "twice") == 0) return go_on_again(comm);
    /* Later calls say the same at once. */
    CHECK(antiphon_barrier(comm) != ANTIPHON_SUCCESS);
    int left = lives ? ranks : ranks - 1;
    if (!lives) {
        antiphon_comm_t none;
        CHECK(antiphon_comm_rebuild(comm, ranks, &none) == ANTIPHON_INVALID_ARGUMENT);
    }
    go_on(comm, left, left, victim);
    return 0;
}
