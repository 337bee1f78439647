/* Processes fork while calls are under way: what their children do with what they have inherited stays theirs. */
#include "common.h"
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 300000, CALLS = 100 };

/* Every call of a child fails at once, and everything can be freed. */
static void use_as_child(antiphon_comm_t comm, antiphon_request_t waited, antiphon_request_t tested, void *memory) {
    /* A child that hangs is killed. */
    alarm(20);
    int done = 0;
    void *more;
    int64_t number = 1;
    CHECK(antiphon_wait(&waited) == ANTIPHON_INVALID_ARGUMENT && waited == NULL);
    CHECK(strstr(antiphon_last_error(), "fork") != NULL);
    CHECK(antiphon_test(&tested, &done) == ANTIPHON_INVALID_ARGUMENT && done == 1 && tested == NULL);
    CHECK(antiphon_all_reduce(&number, &number, 1, ANTIPHON_I64, ANTIPHON_SUM, comm) != ANTIPHON_SUCCESS);
    CHECK(antiphon_alloc(comm, 100000, &more) != ANTIPHON_SUCCESS);
    OK(antiphon_comm_abort(comm));
    OK(antiphon_free(comm, memory));
    OK(antiphon_comm_free(&comm));
    exit(0);
}

/* How many long messages rank 0 has read where they lay, by its statistics. */
static long read_in_place(const char *statistics) {
    const char *line = strstr(statistics, "\"in_place\": ");
    CHECK(line != NULL);
    return strtol(strchr(line, ':') + 1, NULL, 10);
}

static void check_statistics(const char *path) {
    char text[65536] = "";
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    /* If the system allows that at all, what was allocated is also read where it lies after a child has freed it. */
    CHECK(read_in_place(text) == 0 || read_in_place(text) > CALLS);
}

int main(int arguments, char **argument) {
    CHECK(arguments > 1);
    char path[4096];
    snprintf(path, sizeof path, "%s/statistics", argument[1]);
    setenv("ANTIPHON_STATS", path, 1);
    antiphon_comm_t comm = join();
    void *memory;
    OK(antiphon_alloc(comm, COUNT * sizeof(int64_t), &memory));
    OK(antiphon_broadcast(memory, COUNT, ANTIPHON_I64, ranks - 1, comm));
    int before = (own_rank + ranks - 1) % ranks, after = (own_rank + 1) % ranks;
    int64_t received[2] = {0}, sent[2] = {own_rank, own_rank + 100};
    antiphon_request_t requests[2] = {NULL, NULL};
    for (int at = 0; at < 2 && ranks > 1; at++)
        OK(antiphon_recv_start(&received[at], 1, ANTIPHON_I64, before, comm, &requests[at]));
    for (int child = 0; child < 3 && ranks > 1; child++) {
        pid_t process = fork();
        CHECK(process >= 0);
        if (process == 0) use_as_child(comm, requests[0], requests[1], memory);
        int status;
        CHECK(waitpid(process, &status, 0) == process);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    /* No message is sent before all children have ended. */
    OK(antiphon_barrier(comm));
    for (int at = 0; at < 2 && ranks > 1; at++) OK(antiphon_send(&sent[at], 1, ANTIPHON_I64, after, comm));
    for (int at = 0; at < 2 && ranks > 1; at++) {
        OK(antiphon_wait(&requests[at]));
        CHECK(received[at] == before + 100 * at);
    }
    int64_t *vector = memory;
    for (int call = 0; call < CALLS; call++) {
        int64_t sum = own_rank;
        OK(antiphon_all_reduce(&sum, &sum, 1, ANTIPHON_I64, ANTIPHON_SUM, comm));
        CHECK(sum == ranks * (ranks - 1) / 2);
        if (own_rank == ranks - 1) fill(vector, COUNT, call);
        OK(antiphon_broadcast(vector, COUNT, ANTIPHON_I64, ranks - 1, comm));
        CHECK(vector[0] == element(call, 0) && vector[COUNT - 1] == element(call, COUNT - 1));
    }
    OK(antiphon_free(comm, memory));
    OK(antiphon_comm_free(&comm));
    if (own_rank == 0) check_statistics(path);
    return 0;
}
