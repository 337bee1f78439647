/* One rank fails in the middle of its calls: all others get an error that names it, and go on without it. */
#include "common.h"
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

int main(int argc, char **argv) {
    CHECK(argc == 4);
    const char *fault = argv[1];
    int victim = atoi(argv[2]);
    size_t count = (size_t)atol(argv[3]);
    antiphon_comm_t comm = join();
    int64_t *vector = vector_of(count);
    antiphon_result_t result = ANTIPHON_SUCCESS;
    for (int call = 0; result == ANTIPHON_SUCCESS && call < 1000000; call++) {
        if (own_rank == victim && call == 5) {
            if (strcmp(fault, "kill") == 0 || strcmp(fault, "twice") == 0) kill(getpid(), SIGKILL);
            if (strcmp(fault, "stop") == 0) kill(getpid(), SIGSTOP);
            if (strcmp(fault, "exit") == 0) _exit(0);
            if (strcmp(fault, "cut") == 0) cut();
            if (strcmp(fault, "abort") == 0) OK(antiphon_comm_abort(comm));
            if (strcmp(fault, "other") == 0) count++;
            if (strcmp(fault, "free") == 0) {
                OK(antiphon_comm_free(&comm));
                return 0;
            }
        }
        fill(vector, count - (count > 0 && own_rank == victim && call >= 5), own_rank);
        result = antiphon_all_reduce(vector, vector, count, ANTIPHON_I64, ANTIPHON_SUM, comm);
    }
    printf("rank %d: result %d: %s\n", own_rank, result, antiphon_last_error());
    if (own_rank == victim && strcmp(fault, "cut") == 0) return 0;
    if (strcmp(fault, "twice") == 0) return go_on_again(comm);
    /* Later calls say the same at once. */
    CHECK(antiphon_barrier(comm) != ANTIPHON_SUCCESS);
    bool lives = strcmp(fault, "abort") == 0 || strcmp(fault, "other") == 0;
    int left = lives ? ranks : ranks - 1;
    if (!lives) {
        antiphon_comm_t none;
        CHECK(antiphon_comm_rebuild(comm, ranks, &none) == ANTIPHON_INVALID_ARGUMENT);
    }
    go_on(comm, left, left, victim);
    free(vector);
    return 0;
}
