/* Candidates of a program's own: a right one, one that can only do some calls, wrong ones, one that fails on a rank, and some that
 * write where they must not. */
#include "common.h"

struct counted {
    int fault; /* 0: right; 1: the last rank's result is wrong; 2: rank 0 refuses; 3: writes beyond; 4: changes what it was given. */
    int calls;
};

static int sum(antiphon_comm_t comm, const struct antiphon_call *call, void *user) {
    struct counted *own = user;
    int rank, size;
    own->calls++;
    CHECK(call->collective == ANTIPHON_ALL_REDUCE && call->dtype == ANTIPHON_F64 && call->op == ANTIPHON_SUM);
    CHECK(call->send == call->recv);
    OK(antiphon_comm_rank(comm, &rank));
    OK(antiphon_comm_size(comm, &size));
    if (own->fault == 2 && rank == 0) return 17;
    antiphon_result_t result =
        antiphon_all_reduce(call->send, call->recv, call->count, call->dtype, call->op, comm);
    if (own->fault == 1 && rank == size - 1) ((double *)call->recv)[0] += 1;
    if (own->fault == 3) ((double *)call->recv)[call->count] = 1;
    return result;
}

static int gather(antiphon_comm_t comm, const struct antiphon_call *call, void *user) {
    struct counted *own = user;
    own->calls++;
    CHECK(call->collective == ANTIPHON_ALL_GATHER && call->send != call->recv);
    antiphon_result_t result = antiphon_all_gather(call->send, call->recv, call->count, call->dtype, comm);
    if (own->fault == 4) ((double *)call->send)[0] += 1;
    return result;
}

/* A right one that can only do even numbers of elements, and says so. */
static int even_sum(antiphon_comm_t comm, const struct antiphon_call *call, void *user) {
    CHECK(call->count % 2 == 0);
    return sum(comm, call, user);
}

static int is_even(const struct antiphon_call *call, void *user) {
    CHECK(user != NULL && call->send == NULL && call->recv == NULL);
    CHECK(call->collective == ANTIPHON_ALL_REDUCE && call->dtype == ANTIPHON_F64 && call->op == ANTIPHON_SUM);
    return call->count % 2 == 0;
}

/* One whose predicate does not answer the same on all ranks. */
static int differs(const struct antiphon_call *call, void *user) {
    (void)call, (void)user;
    return own_rank == 0;
}

/* The table with a candidate's name in it, as if it had won: then the candidate serves. */
static void named(antiphon_comm_t comm, FILE *table, const char *folder, struct counted *right, struct counted *even) {
    static char text[1 << 20];
    char path[4096];
    text[fread(text, 1, sizeof text - 1, table)] = 0;
    char *cells = strstr(text, "\"cells\"");
    CHECK(cells != NULL);
    snprintf(path, sizeof path, "%s/named-%d.json", folder, own_rank);
    FILE *changed = fopen(path, "w");
    CHECK(changed != NULL);
    fprintf(changed,
            "%.*s\"cells\": [{\"collective\": \"allreduce\","
            " \"ranges\": [{\"from_bytes\": 0, \"to_bytes\": null, \"plan\": null, \"evidence\": []}],"
            " \"functions\": [{\"from_bytes\": 800, \"to_bytes\": 801, \"function\": \"right\", \"dtype\": \"f64\","
            " \"op\": \"sum\", \"evidence\": []},"
            " {\"from_bytes\": 1000, \"to_bytes\": 2000, \"function\": \"even\", \"dtype\": \"f64\","
            " \"op\": \"sum\", \"evidence\": []}]}], \"plans\": {}}\n",
            (int)(cells - text), text);
    CHECK(fclose(changed) == 0);
    OK(antiphon_use_table(comm, path));
    double x[151];
    for (int round = 0; round < 2; round++) {
        int before = right->calls;
        for (int index = 0; index < 100; index++) x[index] = own_rank + index;
        OK(antiphon_all_reduce(x, x, 100, ANTIPHON_F64, ANTIPHON_SUM, comm));
        for (int index = 0; index < 100; index++) CHECK(x[index] == ranks * (ranks - 1) / 2 + ranks * index);
        CHECK(right->calls == before + round);
        CHECK(round == 0 || strstr(antiphon_plan(comm), "function right") != NULL);
        OK(antiphon_use_candidates(comm));
    }
    /* The table leaves both to the function, which can only do one of them. */
    for (size_t count = 150; count < 152; count++) {
        int before = even->calls;
        for (size_t index = 0; index < count; index++) x[index] = own_rank;
        OK(antiphon_all_reduce(x, x, count, ANTIPHON_F64, ANTIPHON_SUM, comm));
        for (size_t index = 0; index < count; index++) CHECK(x[index] == ranks * (ranks - 1) / 2);
        CHECK(even->calls == before + (count == 150));
    }
    CHECK(antiphon_use_table(comm, "/nowhere/table.json") == ANTIPHON_INVALID_ARGUMENT);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char path[4096];
    antiphon_comm_t comm = join();
    snprintf(path, sizeof path, "%s/table.json", argv[1]);
    struct counted right = {0, 0}, wrong = {1, 0}, failing = {2, 0}, beyond = {3, 0}, changing = {4, 0};
    struct counted even = {0, 0}, unsure = {0, 0};
    OK(antiphon_tune_candidate(comm, "right", ANTIPHON_ALL_REDUCE, sum, &right));
    OK(antiphon_tune_candidate(comm, "wrong", ANTIPHON_ALL_REDUCE, sum, &wrong));
    OK(antiphon_tune_candidate(comm, "failing", ANTIPHON_ALL_REDUCE, sum, &failing));
    OK(antiphon_tune_candidate(comm, "beyond", ANTIPHON_ALL_REDUCE, sum, &beyond));
    OK(antiphon_tune_candidate(comm, "changing", ANTIPHON_ALL_GATHER, gather, &changing));
    OK(antiphon_tune_candidate_when(comm, "even", ANTIPHON_ALL_REDUCE, even_sum, is_even, &even));
    OK(antiphon_tune_candidate_when(comm, "unsure", ANTIPHON_ALL_REDUCE, sum, differs, &unsure));
    CHECK(antiphon_tune_candidate(comm, "none", ANTIPHON_ALL_REDUCE, NULL, NULL) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_tune_candidate(comm, NULL, ANTIPHON_ALL_REDUCE, sum, &right) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(antiphon_tune_candidate(comm, "none", 99, sum, &right) == ANTIPHON_INVALID_ARGUMENT);
    /* The one with fewer candidates first: what it leaves of the time is for the other. */
    const int collectives[] = {ANTIPHON_ALL_GATHER, ANTIPHON_ALL_REDUCE};
    const size_t sizes[] = {1024};
    struct antiphon_tune_options options = {
        .collectives = collectives, .collective_count = 2, .sizes = sizes, .size_count = 1,
        .dtype = ANTIPHON_F64, .op = ANTIPHON_SUM, .budget = 8.0, .timeout = 20.0,
    };
    OK(antiphon_tune(comm, &options, path));
    /* The right one was checked, timed, and checked once more; the others were called once, to see what they do. */
    CHECK(right.calls >= 5 && wrong.calls == 1 && failing.calls == 1 && beyond.calls == 1 && changing.calls == 1);
    CHECK(even.calls >= 5 && (ranks == 1 || unsure.calls == 0));
    options.budget = -1;
    CHECK(antiphon_tune(comm, &options, path) == ANTIPHON_INVALID_ARGUMENT);
    CHECK(strstr(antiphon_last_error(), "budget") != NULL);
    /* The communicator works as before. */
    double x[128];
    for (int index = 0; index < 128; index++) x[index] = own_rank + index;
    OK(antiphon_all_reduce(x, x, 128, ANTIPHON_F64, ANTIPHON_SUM, comm));
    for (int index = 0; index < 128; index++) CHECK(x[index] == ranks * (ranks - 1) / 2 + ranks * index);
    /* And the table is there before anybody goes on. */
    OK(antiphon_barrier(comm));
    FILE *table = fopen(path, "r");
    CHECK(table != NULL);
    named(comm, table, argv[1], &right, &even);
    fclose(table);
    OK(antiphon_comm_free(&comm));
    return 0;
}
