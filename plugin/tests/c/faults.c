/* One rank fails in the middle of its calls: all others get an error that names it, and end. */
#include "common.h"
#include <signal.h>
#include <unistd.h>

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
            if (strcmp(fault, "kill") == 0) kill(getpid(), SIGKILL);
            if (strcmp(fault, "stop") == 0) kill(getpid(), SIGSTOP);
            if (strcmp(fault, "exit") == 0) _exit(0);
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
    /* Later calls say the same at once. */
    CHECK(antiphon_barrier(comm) != ANTIPHON_SUCCESS);
    OK(antiphon_comm_free(&comm));
    free(vector);
    return 0;
}
