/* Ranks that are processes, and call NCCL as programs do.
 *
 *   ranks COUNT MODE
 *
 * Each rank prints a line, in the order of the ranks: what went wrong, or "right". */
#include "nccl_by_hand.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 4096

struct job {
    ncclUniqueId ids[2];
    volatile int is_ready;
    /* How many ranks have come to a point of a program. */
    volatile int are_there;
    char said[16][512];
};

static struct job *job;
static int ranks, rank;
static cudaStream_t stream;
static uint64_t input, output;

static void say(const char *what, int code, const char *more) {
    snprintf(job->said[rank], sizeof job->said[rank], "%s %d%s%s", what, code, *more ? ": " : "", more);
    exit(0);
}

/* An error ends the rank. A communicator that does not block may be at work still; `finish` waits for it. */
#define CHECK(call)                                  \
    do {                                             \
        int code_ = (call);                          \
        if (code_ && code_ != ncclInProgress)        \
            say(#call, code_, "");                   \
    } while (0)

static int number(int of_rank, int at) { return of_rank * 1000 + at; }

static void put(uint64_t to, int count, int of_rank) {
    int values[MOST];
    for (int at = 0; at < count; at++) values[at] = number(of_rank, at);
    CHECK(cuMemcpyHtoDAsync_v2(to, values, count * sizeof(int), stream));
}

static int got(int at) {
    int value;
    CHECK(cuMemcpyDtoHAsync_v2(&value, output + at * sizeof(int), sizeof value, stream));
    return value;
}

static void expect(const char *what, int at, int wanted) {
    if (got(at) != wanted) say(what, got(at), "this is wrong");
}

/* What NCCL says, and a rest for other processes: there may be fewer cores than ranks. */
static ncclResult_t asked(ncclComm_t comm, ncclResult_t *error) {
    ncclResult_t result = ncclCommGetAsyncError(comm, error);
    if (!result && *error == ncclInProgress) usleep(100);
    return result;
}

/* Waits for the stream, and for what NCCL says then. */
static void finish(const char *what, ncclComm_t comm) {
    ncclResult_t error = ncclSuccess;
    do CHECK(asked(comm, &error));
    while (error == ncclInProgress);
    CHECK(cuStreamSynchronize(stream));
    CHECK(ncclCommGetAsyncError(comm, &error));
    if (error) say(what, error, ncclGetLastError(comm));
}

static void collectives(ncclComm_t comm) {
    void *in = (void *)input, *out = (void *)output;
    int sum = 1000 * ranks * (ranks - 1) / 2, n = 5;
    put(input, n, rank);
    CHECK(ncclAllReduce(in, out, n, ncclInt32, ncclSum, comm, stream));
    finish("all reduce", comm);
    for (int at = 0; at < n; at++) expect("all reduce", at, sum + ranks * at);
    put(output, n, rank);
    CHECK(ncclAllReduce(out, out, n, ncclInt32, ncclMax, comm, stream));
    finish("in place", comm);
    for (int at = 0; at < n; at++) expect("in place", at, number(ranks - 1, at));
    CHECK(ncclAllGather(in, out, n, ncclInt32, comm, stream));
    finish("all gather", comm);
    for (int from = 0; from < ranks; from++) expect("all gather", from * n + 1, number(from, 1));
    put(input, n * ranks, rank);
    CHECK(ncclReduceScatter(in, out, n, ncclInt32, ncclSum, comm, stream));
    finish("reduce scatter", comm);
    expect("reduce scatter", 2, sum + ranks * (rank * n + 2));
    CHECK(ncclAlltoAll(in, out, n, ncclInt32, comm, stream));
    finish("all to all", comm);
    for (int from = 0; from < ranks; from++) expect("all to all", from * n, number(from, rank * n));
    /* NCCL does not promise that it works in place. */
    if (!getenv("REAL_NCCL")) {
        put(output, n * ranks, rank);
        CHECK(ncclAlltoAll(out, out, n, ncclInt32, comm, stream));
        finish("all to all in place", comm);
        for (int from = 0; from < ranks; from++) expect("all to all in place", from * n + 1, number(from, rank * n + 1));
    }
    CHECK(ncclBroadcast(in, out, n, ncclInt32, ranks - 1, comm, stream));
    finish("broadcast", comm);
    expect("broadcast", 3, number(ranks - 1, 3));
    CHECK(ncclReduce(in, out, n, ncclInt32, ncclSum, 0, comm, stream));
    finish("reduce", comm);
    expect("reduce", 4, rank == 0 ? sum + ranks * 4 : number(ranks - 1, 4));
    /* In place at the root; the others have no place for a result. */
    put(output, n, rank);
    CHECK(ncclReduce(out, rank == 0 ? out : NULL, n, ncclInt32, ncclMax, 0, comm, stream));
    finish("reduce in place", comm);
    for (int at = 0; at < n; at++) expect("reduce in place", at, number(rank == 0 ? ranks - 1 : rank, at));
    CHECK(ncclReduce(in, out, n, ncclInt32, ncclSum, ranks - 1, comm, stream));
    finish("another root", comm);
    expect("another root", 4, rank == ranks - 1 ? sum + ranks * 4 : number(rank == 0 ? ranks - 1 : rank, 4));
    CHECK(ncclAllReduce(in, out, 0, ncclInt32, ncclSum, comm, stream));
    finish("nothing", comm);
    put(input, n, rank);
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce(in, out, n, ncclInt32, ncclSum, comm, stream));
    CHECK(ncclGroupEnd());
    finish("in a group", comm);
    expect("in a group", 3, sum + ranks * 3);
}

/* Everybody sends to everybody, in one group, which has another one inside. */
static void messages(ncclComm_t comm) {
    put(input, 3 * ranks, rank);
    CHECK(ncclGroupStart());
    for (int peer = 0; peer < ranks; peer++) {
        CHECK(ncclSend((void *)(input + peer * 12), 3, ncclInt32, peer, comm, stream));
        CHECK(ncclGroupStart());
        CHECK(ncclRecv((void *)(output + peer * 12), 3, ncclInt32, peer, comm, stream));
        CHECK(ncclGroupEnd());
    }
    CHECK(ncclGroupEnd());
    finish("messages", comm);
    for (int peer = 0; peer < ranks; peer++) expect("messages", peer * 3 + 1, number(peer, rank * 3 + 1));
}

/* Nothing of a group happens before its end. In the second turn NCCL has something to do in it, too. */
static void group_of_one(ncclComm_t comm) {
    void *in = (void *)input, *out = (void *)output, *far = (void *)(output + 400);
    int sum = 1000 * ranks * (ranks - 1) / 2, n = 5, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int turn = 0; turn < 2; turn++) {
        put(output, 300, -1);
        put(input, n, rank);
        CHECK(ncclGroupStart());
        CHECK(ncclAllReduce(in, out, n, ncclInt32, ncclSum, comm, stream));
        CHECK(ncclGroupStart());
        CHECK(ncclAllGather(in, far, n, ncclInt32, comm, stream));
        CHECK(ncclGroupEnd());
        if (turn) {
            CHECK(ncclAllReduce(in, out, 0, ncclInt32, ncclSum, comm, stream));
            CHECK(ncclSend(in, 2, ncclInt32, next, comm, stream));
            CHECK(ncclRecv((void *)(output + 800), 2, ncclInt32, before, comm, stream));
        }
        CHECK(ncclReduce(in, rank == 0 ? (void *)(output + 40) : NULL, n, ncclInt32, ncclMax, 0, comm, stream));
        for (int at = 0; at < 300; at++) expect("before the end", at, number(-1, at));
        CHECK(ncclGroupEnd());
        finish("group", comm);
        for (int at = 0; at < n; at++) expect("sum in a group", at, sum + ranks * at);
        for (int at = 0; at < n; at++) expect("maximum in a group", 10 + at, rank == 0 ? number(ranks - 1, at) : number(-1, 10 + at));
        for (int at = 0; at < n * ranks; at++) expect("gathered in a group", 100 + at, number(at / n, at % n));
        if (turn) expect("message in a group", 201, number(before, 1));
    }
}

/* Two communicators in one group. Ranks name them in different orders, in one stream and in two. */
static void group_of_two(ncclComm_t comm, ncclComm_t second) {
    int sum = 1000 * ranks * (ranks - 1) / 2, n = 5;
    cudaStream_t other;
    CHECK(cuStreamCreate(&other, 1));
    for (int turn = 0; turn < 4; turn++) {
        put(output, 300, -1);
        put(input, n, rank);
        CHECK(cuStreamSynchronize(stream));
        CHECK(ncclGroupStart());
        for (int call = 0; call < 4; call++) {
            int is_second = (call + rank) % 2;
            CHECK(ncclAllReduce((void *)input, (void *)(output + 400 * is_second + 40 * (call / 2)), n, ncclInt32, call / 2 ? ncclMax : ncclSum,
                                is_second ? second : comm, is_second && turn % 2 ? other : stream));
        }
        CHECK(ncclGroupEnd());
        CHECK(cuStreamSynchronize(other));
        finish("two communicators", comm);
        finish("two communicators", second);
        for (int at = 0; at < n; at++) {
            expect("first", at, sum + ranks * at);
            expect("first", 10 + at, number(ranks - 1, at));
            expect("second", 100 + at, sum + ranks * at);
            expect("second", 110 + at, number(ranks - 1, at));
        }
    }
}

/* A communicator in two streams of a group: whatever comes later in either waits for both, and they wait for what came before. */
static void group_in_streams(ncclComm_t comm) {
    int n = 5, sum = 1000 * ranks * (ranks - 1) / 2;
    cudaStream_t other;
    CHECK(cuStreamCreate(&other, 1));
    for (int turn = 0; turn < 4; turn++) {
        put(output, 300, -1);
        put(input, n, rank + turn);
        CHECK(ncclGroupStart());
        CHECK(ncclAllGather((void *)input, (void *)(output + 400), n, ncclInt32, comm, other));
        CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
        CHECK(ncclAllGather((void *)input, (void *)(output + 800), n, ncclInt32, comm, other));
        CHECK(ncclGroupEnd());
        finish("streams", comm);
        for (int at = 0; at < n; at++) expect("sum in streams", at, sum + 1000 * ranks * turn + ranks * at);
        for (int at = 0; at < n * ranks; at++) {
            expect("gathered in streams", 100 + at, number(at / n + turn, at % n));
            expect("gathered last in streams", 200 + at, number(at / n + turn, at % n));
        }
    }
}

/* A graph with calls of all kinds, of which some are in a group, is launched again and again with other data. */
static void graph(ncclComm_t comm) {
    void *recorded, *executable, *in = (void *)input, *own = (void *)(output + 400), *all = (void *)(output + 800);
    uint64_t places[] = {output, output + 200, output + 400, output + 800, output + 1600};
    int sum = 1000 * ranks * (ranks - 1) / 2, n = 5;
    /* One call of this size comes before the graph, so its plan is known. */
    put(input, 100, rank);
    CHECK(ncclAllReduce(in, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    finish("before the graph", comm);
    for (int at = 0; at < 5; at++) put(places[at], 40, -1);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(ncclAllReduce(in, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    CHECK(ncclAllReduce(own, own, n, ncclInt32, ncclMax, comm, stream));
    CHECK(ncclGroupStart());
    CHECK(ncclAllGather(in, all, n, ncclInt32, comm, stream));
    CHECK(ncclReduce(in, rank == 0 ? (void *)(output + 200) : NULL, n, ncclInt32, ncclSum, 0, comm, stream));
    CHECK(ncclGroupEnd());
    /* In place, and one that takes what the one before has left. */
    CHECK(ncclAlltoAll((void *)(output + 1600), (void *)(output + 1600), n, ncclInt32, comm, stream));
    CHECK(ncclBroadcast((void *)output, (void *)output, n, ncclInt32, 0, comm, stream));
    CHECK(cuStreamEndCapture(stream, &recorded));
    CHECK(cuGraphInstantiateWithFlags(&executable, recorded, 0));
    CHECK(cuGraphDestroy(recorded));
    for (int at = 0; at < n; at++) expect("while the graph was recorded", at, number(-1, at));
    for (int turn = 1; turn < 5; turn++) {
        int of = rank + turn, more = 1000 * ranks * turn;
        put(input, n, of);
        put(output + 400, n, of);
        put(output + 1600, n * ranks, of);
        CHECK(cuGraphLaunch(executable, stream));
        /* A call beside the graph, of the same plan. */
        CHECK(ncclAllReduce(in, (void *)(output + 2400), n, ncclInt32, ncclMax, comm, stream));
        if (turn % 2) finish("graph", comm);
        for (int at = 0; at < n; at++) {
            expect("sum in a graph", at, sum + more + ranks * at);
            expect("maximum in a graph", 100 + at, number(ranks - 1 + turn, at));
            expect("reduced in a graph", 50 + at, rank == 0 ? sum + more + ranks * at : number(-1, at));
            expect("beside the graph", 600 + at, number(ranks - 1 + turn, at));
        }
        for (int at = 0; at < n * ranks; at++) {
            expect("gathered in a graph", 200 + at, number(at / n + turn, at % n));
            expect("exchanged in a graph", 400 + at, number(at / n + turn, rank * n + at % n));
        }
    }
    finish("graph", comm);
    CHECK(cuGraphExecDestroy(executable));
}

/* Streams fork while a graph is recorded. Calls of one communicator follow each other nevertheless: those of one plan share its memory. */
static void forked(ncclComm_t comm) {
    enum { BRANCHES = 3, N = 30 };
    void *recorded, *executable, *event;
    cudaStream_t branches[BRANCHES] = {stream};
    int sum = 1000 * ranks * (ranks - 1) / 2;
    for (int of = 1; of < BRANCHES; of++) CHECK(cuStreamCreate(&branches[of], 1));
    CHECK(cuEventCreate(&event, 2));
    for (int of = 0; of < BRANCHES; of++) put(output + 400 * of, N, -1);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    CHECK(cuEventRecord(event, stream));
    for (int of = 1; of < BRANCHES; of++) CHECK(cuStreamWaitEvent(branches[of], event, 0));
    for (int of = 0; of < BRANCHES; of++) {
        void *in = (void *)(input + 400 * of), *out = (void *)(output + 400 * of);
        CHECK(ncclAllReduce(in, out, N, ncclInt32, ncclSum, comm, branches[of]));
        CHECK(ncclAllReduce(out, out, N, ncclInt32, ncclMax, comm, branches[of]));
    }
    for (int of = 1; of < BRANCHES; of++) {
        CHECK(cuEventRecord(event, branches[of]));
        CHECK(cuStreamWaitEvent(stream, event, 0));
    }
    CHECK(cuStreamEndCapture(stream, &recorded));
    CHECK(cuGraphInstantiateWithFlags(&executable, recorded, 0));
    CHECK(cuGraphDestroy(recorded));
    for (int turn = 0; turn < 4; turn++) {
        for (int of = 0; of < BRANCHES; of++) put(input + 400 * of, N, rank + turn + 7 * of);
        CHECK(cuGraphLaunch(executable, stream));
        finish("forked graph", comm);
        for (int at = 0; at < BRANCHES * N; at++) {
            int more = 1000 * ranks * (turn + 7 * (at / N));
            expect("sum in a branch", 100 * (at / N) + at % N, sum + more + ranks * (at % N));
        }
    }
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuEventDestroy_v2(event));
    for (int of = 1; of < BRANCHES; of++) CHECK(cuStreamSynchronize(branches[of]));
}

/* Calls follow each other without anybody waiting: each has other inputs, and every third one is in place. */
static void row(ncclComm_t comm) {
    enum { CALLS = 9, N = 40 };
    cudaStream_t other;
    CHECK(cuStreamCreate(&other, 1));
    for (int turn = 0; turn < 2; turn++) {
        for (int call = 0; call < CALLS; call++) {
            uint64_t from = call % 3 ? input + call * N * sizeof(int) : output + call * N * sizeof(int);
            int values[N];
            for (int at = 0; at < N; at++) values[at] = number(rank, at) + 7 * call + turn;
            CHECK(cuMemcpyHtoDAsync_v2(from, values, sizeof values, stream));
        }
        /* In the second turn, half of the calls are in another stream. */
        CHECK(cuStreamSynchronize(stream));
        for (int call = 0; call < CALLS; call++) {
            uint64_t to = output + call * N * sizeof(int), from = call % 3 ? input + call * N * sizeof(int) : to;
            CHECK(ncclAllReduce((void *)from, (void *)to, N, ncclInt32, ncclSum, comm, turn && call % 2 ? other : stream));
        }
        CHECK(cuStreamSynchronize(other));
        finish("row", comm);
        for (int call = 0; call < CALLS; call++)
            for (int at = 0; at < N; at++)
                expect("row", call * N + at, 1000 * ranks * (ranks - 1) / 2 + ranks * (at + 7 * call + turn));
    }
}

/* Small and large calls by turns; large ones have several blocks of a kernel. */
static void sizes(ncclComm_t comm) {
    int counts[] = {5, MOST, 100, MOST, 5, MOST - 3};
    for (int call = 0; call < 6; call++) {
        int n = counts[call];
        put(input, n, rank + call);
        CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
        finish("sizes", comm);
        for (int at = 0; at < n; at += at < n - 40 ? 37 : 1)
            expect("sizes", at, 1000 * ranks * (ranks - 1) / 2 + ranks * (at + 1000 * call));
    }
}

/* One thread has both ranks of a communicator, and so has to call in groups. */
static void pair(void) {
    ncclUniqueId id;
    ncclComm_t both[2];
    cudaStream_t streams[2] = {stream};
    CHECK(cuStreamCreate(&streams[1], 1));
    CHECK(ncclGetUniqueId(&id));
    CHECK(ncclGroupStart());
    for (int at = 0; at < 2; at++) CHECK(ncclCommInitRank(&both[at], 2, id, at));
    CHECK(ncclGroupEnd());
    put(input, 8, rank);
    CHECK(cuStreamSynchronize(stream));
    CHECK(ncclGroupStart());
    for (int at = 0; at < 2; at++)
        CHECK(ncclAllReduce((void *)(input + 16 * at), (void *)(output + 400 * at), 4, ncclInt32, ncclSum, both[at], streams[at]));
    CHECK(ncclGroupEnd());
    for (int at = 0; at < 2; at++) CHECK(cuStreamSynchronize(streams[at]));
    for (int at = 0; at < 8; at++) expect("pair", at / 4 * 100 + at % 4, number(rank, at % 4) + number(rank, at % 4 + 4));
    for (int at = 0; at < 2; at++) CHECK(ncclCommDestroy(both[at]));
    say("right", 0, "");
}

/* A group that is only simulated, and one with a call that is wrong, do nothing; calls after them do. */
static void group_of_nothing(ncclComm_t comm) {
    int n = 5, sum = 1000 * ranks * (ranks - 1) / 2;
    put(output, 100, -1);
    put(input, n, rank);
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    CHECK(ncclGroupSimulateEnd(NULL));
    CHECK(ncclGroupStart());
    CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    ncclSend((void *)input, 1, ncclInt32, ranks, comm, stream);
    int code = ncclGroupEnd();
    if (code != ncclInvalidArgument) say("wrong group", code, "");
    finish("nothing", comm);
    for (int at = 0; at < 100; at++) expect("nothing", at, number(-1, at));
    CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    finish("after nothing", comm);
    for (int at = 0; at < n; at++) expect("after nothing", at, sum + ranks * at);
}

/* Even and odd ranks, in descending order; where there are more than two, the last rank is in neither. */
static void split(ncclComm_t comm) {
    ncclComm_t half = NULL, alone;
    int is_out = ranks > 2 && rank == ranks - 1, members = (ranks - (ranks > 2) + 1 - rank % 2) / 2, number_there = -1;
    CHECK(ncclCommSplit(comm, is_out ? -1 : rank % 2, -rank, &half, NULL));
    if (is_out != (half == NULL)) say("split", is_out, "whose communicator is wrong");
    if (half) {
        CHECK(ncclCommUserRank(half, &number_there));
        if (number_there != members - 1 - rank / 2) say("split", number_there, "is another rank");
        put(input, 1, rank);
        CHECK(ncclAllGather((void *)input, (void *)output, 1, ncclInt32, half, stream));
        finish("split", half);
        for (int at = 0; at < members; at++) expect("split", at, number(2 * (members - 1 - at) + rank % 2, 0));
        CHECK(ncclCommDestroy(half));
    }
    int device = 0;
    CHECK(ncclCommInitAll(&alone, 1, &device));
    put(input, 1, rank);
    CHECK(ncclAllReduce((void *)input, (void *)output, 1, ncclInt32, ncclSum, alone, stream));
    finish("alone", alone);
    expect("alone", 0, number(rank, 0));
    CHECK(ncclCommDestroy(alone));
}

/* Whether so many ranks have come in time. */
static int come(int wanted) {
    for (int turn = 0; turn < 30000 && job->are_there < wanted; turn++) usleep(1000);
    return job->are_there >= wanted;
}

/* Waits until a communicator has done what it was given, and says what is wrong. */
static void ready(const char *what, ncclComm_t comm) {
    ncclResult_t error = ncclSuccess;
    do CHECK(asked(comm, &error));
    while (error == ncclInProgress);
    if (error) say(what, error, ncclGetLastError(comm));
}

/* An AllReduce and an AllGather of the first ranks. */
static void first_ranks(const char *what, int count, ncclComm_t comm) {
    int n = 5, sum = 1000 * count * (count - 1) / 2, there = -1, number_there = -1;
    CHECK(ncclCommCount(comm, &there));
    CHECK(ncclCommUserRank(comm, &number_there));
    if (there != count || number_there != rank) say(what, number_there, "is another rank");
    put(input, n, rank);
    CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    ready(what, comm);
    CHECK(ncclAllGather((void *)input, (void *)(output + 400), n, ncclInt32, comm, stream));
    finish(what, comm);
    for (int at = 0; at < n; at++) expect(what, at, sum + count * at);
    for (int at = 0; at < n * count; at++) expect(what, 100 + at, number(at / n, at % n));
}

/* A call of a communicator whose calls were given up must not be done without a word. */
static void given_up(ncclComm_t comm) {
    ncclResult_t error = ncclSuccess, result = ncclAllReduce((void *)input, (void *)output, 5, ncclInt32, ncclSum, comm, stream);
    do CHECK(asked(comm, &error));
    while (error == ncclInProgress);
    CHECK(cuStreamSynchronize(stream));
    CHECK(ncclCommGetAsyncError(comm, &error));
    if ((!result || result == ncclInProgress) && !error) say("given up", result, "a call is done");
}

/* All ranks but the last one, and then all again, of which the last one is new. With an abort, the last one never calls what the others
 * have called before. */
static void shrunk_and_grown(ncclComm_t comm, int aborts) {
    ncclComm_t few = NULL, all = NULL;
    int last = ranks - 1;
    if (!aborts) first_ranks("before", ranks, comm);
    if (rank < last) {
        if (aborts) CHECK(ncclAllReduce((void *)input, (void *)output, 5, ncclInt32, ncclSum, comm, stream));
        CHECK(ncclCommShrink(comm, &last, 1, &few, NULL, aborts));
        ready("shrunk", few);
        first_ranks("shrunk", last, few);
        if (rank == 0) {
            CHECK(ncclCommGetUniqueId(few, &job->ids[1]));
            __sync_fetch_and_add(&job->are_there, 1);
        }
        CHECK(ncclCommGrow(few, ranks, rank == 0 ? &job->ids[1] : NULL, -1, &all, NULL));
    } else {
        if (!come(1)) say("grown", job->are_there, "no id");
        CHECK(ncclCommGrow(NULL, ranks, &job->ids[1], rank, &all, NULL));
    }
    ready("grown", all);
    first_ranks("grown", ranks, all);
    CHECK(ncclCommDestroy(all));
    if (few) CHECK(ncclCommDestroy(few));
    if (aborts && rank < last) given_up(comm);
    if (aborts) CHECK(ncclCommAbort(comm));
    else CHECK(ncclCommDestroy(comm));
    say("right", 0, "");
}

/* The last rank never calls what the others have called. They give it up, and go on without that rank. */
static void revoked(ncclComm_t comm) {
    ncclComm_t few = NULL;
    int last = ranks - 1;
    if (rank < last) {
        if (ncclCommRevoke(comm, 7) == ncclSuccess) say("revoked", 7, "there is no such flag");
        CHECK(ncclAllReduce((void *)input, (void *)output, 5, ncclInt32, ncclSum, comm, stream));
        CHECK(ncclCommRevoke(comm, 0));
        ready("revoked", comm);
        CHECK(cuStreamSynchronize(stream));
        CHECK(ncclCommShrink(comm, &last, 1, &few, NULL, 0));
        ready("shrunk", few);
        first_ranks("shrunk", last, few);
        CHECK(ncclCommDestroy(few));
        given_up(comm);
        __sync_fetch_and_add(&job->are_there, 1);
    }
    if (!come(last)) say("revoked", job->are_there, "ranks have gone on");
    CHECK(ncclCommAbort(comm));
    say("right", 0, "");
}

/* Whether so many ranks have said what they have to say, in time. */
static int have_said(int wanted) {
    for (int turn = 0; turn < 60000; turn++) {
        int said = 0;
        for (int at = 0; at < ranks; at++) said += job->said[at][0] != 0;
        if (said >= wanted) return 1;
        usleep(1000);
    }
    return 0;
}

/* The system refuses this process sockets: all local ones, or those that do not wait. */
static void refuse_sockets(const char *which) {
    int type = offsetof(struct seccomp_data, args[1]), all = !strcmp(which, "all");
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, type),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, all ? SOCK_STREAM : SOCK_NONBLOCK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* Ends without a word. A child that it has forked may hold its sockets. */
static void leave(void) {
    if (getenv("OTHER_FORKS") && fork() == 0) {
        for (int at = 0; at < 3; at++) close(at);
        have_said(ranks - 1);
        _exit(0);
    }
    _exit(86);
}

/* What NCCL says in the end, and at most so long. */
static ncclResult_t told(ncclComm_t comm, ncclResult_t unwanted) {
    ncclResult_t error = unwanted;
    for (int turn = 0; turn < 30000 && error == unwanted; turn++) {
        CHECK(ncclCommGetAsyncError(comm, &error));
        usleep(1000);
    }
    return error;
}

/* The last rank comes late to a call, and the others end the communicator before. */
static void late(ncclComm_t comm, const char *mode) {
    int is_last = rank == ranks - 1, n = 5, begin = time(NULL), is_blocking = !strcmp(mode, "late");
    put(input, n, rank);
    if (is_last) {
        /* Whoever is blocked by the end cannot say that it is there. */
        if (!come(ranks - 1)) say("late", job->are_there, "they were blocked");
        /* Longer than such ends would take that do not wait for calls. */
        if (is_blocking) sleep(12);
    }
    CHECK(ncclAllReduce((void *)input, (void *)output, n, ncclInt32, ncclSum, comm, stream));
    if (is_last) finish("late", comm);
    else if (is_blocking) __sync_fetch_and_add(&job->are_there, 1);
    if (!is_last && !is_blocking) {
        CHECK(told(comm, ncclInProgress));
        CHECK(ncclCommFinalize(comm));
        __sync_fetch_and_add(&job->are_there, 1);
        CHECK(told(comm, ncclInProgress));
    }
    CHECK(ncclCommDestroy(comm));
    if (!is_last && is_blocking && time(NULL) - begin < 10) say("late", time(NULL) - begin, "did not wait");
    for (int at = 0; at < n; at++) expect("late", at, 1000 * ranks * (ranks - 1) / 2 + ranks * at);
    say("right", 0, "");
}

static void run(const char *mode) {
    int device, is_last = rank == ranks - 1;
    void *context;
    if (is_last && getenv("OTHER_TABLE")) setenv("ANTIPHON_TABLE", getenv("OTHER_TABLE"), 1);
    if (is_last && getenv("OTHER_NAME")) setenv("FAKE_CUDA_NAME", getenv("OTHER_NAME"), 1);
    if (is_last && getenv("OTHER_HARDWARE")) setenv("ANTIPHON_TABLE_ANY_HARDWARE", getenv("OTHER_HARDWARE"), 1);
    if (is_last && getenv("OTHER_HOST")) setenv("ANTIPHON_HOST", getenv("OTHER_HOST"), 1);
    if (is_last && getenv("OTHER_LACKS")) setenv("FAKE_CUDA_LACKS", getenv("OTHER_LACKS"), 1);
    if (is_last && getenv("OTHER_SLOW_MS")) setenv("FAKE_CUDA_SLOW_MS", getenv("OTHER_SLOW_MS"), 1);
    if (is_last && getenv("OTHER_REFUSES")) refuse_sockets(getenv("OTHER_REFUSES"));
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAllocAsync(&input, MOST * sizeof(int), stream));
    CHECK(cuMemAllocAsync(&output, MOST * sizeof(int), stream));
    if (rank == 0) {
        for (int at = 0; at < 2; at++) CHECK(ncclGetUniqueId(&job->ids[at]));
        __sync_synchronize();
        job->is_ready = 1;
    }
    while (!job->is_ready) usleep(100);
    ncclComm_t comm, second;
    void *in = (void *)input, *out = (void *)output;
    ncclResult_t error = ncclInProgress;
    if (!strcmp(mode, "early") || !strncmp(mode, "nonblocking", 11)) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        int is_early = !strcmp(mode, "early") || !strcmp(mode, "nonblocking early abort");
        int result = ncclCommInitRankConfig(&comm, is_early ? ranks + 1 : ranks, job->ids[0], rank, &config);
        if (result != ncclInProgress) say("init", result, "");
        /* One rank is missing, so it cannot be ready. */
        if (strstr(mode, "early abort")) {
            CHECK(ncclCommAbort(comm));
            say("right", 0, "");
        }
        if (is_early) say("too early", ncclAllReduce(in, out, 1, ncclInt32, ncclSum, comm, stream), "");
        while (error == ncclInProgress) CHECK(asked(comm, &error));
        CHECK(error);
        if (strstr(mode, "shrunk")) shrunk_and_grown(comm, !!strstr(mode, "abort"));
        if (strstr(mode, "revoked")) revoked(comm);
        if (strstr(mode, "abort")) {
            /* The last rank never comes to the call. */
            if (!is_last) CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
            CHECK(ncclCommAbort(comm));
            say("right", 0, "");
        }
        if (strstr(mode, "late")) late(comm, mode);
        collectives(comm);
        group_of_one(comm);
        CHECK(ncclCommDestroy(comm));
        say("right", 0, "");
    }
    if (!strcmp(mode, "pair")) pair();
    CHECK(ncclCommInitRank(&comm, ranks, job->ids[0], rank));
    if (!strcmp(mode, "right")) {
        /* The second communicator numbers the ranks the other way round. */
        CHECK(ncclGroupStart());
        CHECK(ncclCommInitRank(&second, ranks, job->ids[1], ranks - 1 - rank));
        CHECK(ncclGroupEnd());
        collectives(comm);
        messages(comm);
        split(comm);
        put(input, 2, rank);
        CHECK(ncclBroadcast(in, out, 2, ncclInt32, 0, second, stream));
        finish("second", second);
        expect("second", 0, number(ranks - 1, 0));
        /* All are done with the second communicator when they have met here. */
        CHECK(ncclAllReduce(in, out, 1, ncclInt32, ncclSum, comm, stream));
        finish("end", comm);
        CHECK(ncclCommFinalize(second));
        /* The real NCCL finalizes in the background, and says nothing about handles that are gone. */
        int is_fake = !getenv("REAL_NCCL"), late;
        if (is_fake) {
            late = ncclAllReduce(in, out, 1, ncclInt32, ncclSum, second, stream);
            if (late != ncclInvalidUsage) say("after the end", late, "");
        }
        CHECK(ncclCommDestroy(second));
        if (is_fake) {
            late = ncclCommCount(second, &device);
            if (late != ncclInvalidArgument) say("after destroy", late, "");
        }
        CHECK(ncclCommDestroy(comm));
        say("right", 0, "");
    }
    if (!strcmp(mode, "groups") || !strcmp(mode, "streams")) {
        CHECK(ncclCommInitRank(&second, ranks, job->ids[1], ranks - 1 - rank));
        group_of_one(comm);
        group_of_two(comm, second);
        if (!strcmp(mode, "streams")) group_in_streams(comm);
        if (!getenv("REAL_NCCL")) group_of_nothing(comm);
        CHECK(ncclCommDestroy(second));
        CHECK(ncclCommDestroy(comm));
        say("right", 0, "");
    }
    if (!strcmp(mode, "simulated row") && rank == 0) {
        /* A call that no other rank knows of. */
        CHECK(ncclGroupStart());
        CHECK(ncclAllReduce((void *)input, (void *)output, 33, ncclInt32, ncclSum, comm, stream));
        CHECK(ncclGroupSimulateEnd(NULL));
    }
    if (!strcmp(mode, "row") || !strcmp(mode, "simulated row") || !strcmp(mode, "sizes")) {
        strcmp(mode, "sizes") ? row(comm) : sizes(comm);
        CHECK(ncclCommDestroy(comm));
        say("right", 0, "");
    }
    if (!strncmp(mode, "shrunk", 6)) shrunk_and_grown(comm, !!strstr(mode, "abort"));
    if (!strcmp(mode, "revoked")) revoked(comm);
    if (!strcmp(mode, "graph") || !strcmp(mode, "forked graph")) {
        if (*mode == 'g') graph(comm);
        else forked(comm);
        CHECK(ncclCommDestroy(comm));
        say("right", 0, "");
    }
    put(input, 100, rank);
    if (!strcmp(mode, "late")) late(comm, mode);
    /* The last rank ends between two launches, or while the others wait for it. */
    if (!strncmp(mode, "gone graph", 10)) {
        void *recorded, *executable;
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuStreamBeginCapture_v2(stream, 0));
        CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
        CHECK(cuStreamEndCapture(stream, &recorded));
        CHECK(cuGraphInstantiateWithFlags(&executable, recorded, 0));
        CHECK(cuGraphLaunch(executable, stream));
        finish("first", comm);
        /* They are all done with it. */
        __sync_fetch_and_add(&job->are_there, 1);
        if (!come(ranks)) say("gone graph", job->are_there, "");
        if (is_last) leave();
        if (strstr(mode, "idle")) told(comm, ncclSuccess);
        CHECK(cuGraphLaunch(executable, stream));
    }
    /* The first rank gives up, and lives on. The last one never calls. */
    if (!strcmp(mode, "gives up")) {
        if (!is_last) {
            CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
            __sync_fetch_and_add(&job->are_there, 1);
        }
        if (!come(ranks - 1)) say("gives up", job->are_there, "");
        if (rank == 0) CHECK(ncclCommAbort(comm));
        if (rank == 0 || is_last) say("right", 0, have_said(ranks - 2) ? "" : "it waits for ever");
    }
    if (!strcmp(mode, "graph fault")) {
        void *recorded, *executable;
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuStreamBeginCapture_v2(stream, 0));
        CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
        CHECK(cuStreamEndCapture(stream, &recorded));
        CHECK(cuGraphInstantiateWithFlags(&executable, recorded, 0));
        for (int turn = 0; turn < 3; turn++) CHECK(cuGraphLaunch(executable, stream));
    }
    if (!strcmp(mode, "group fault") || !strcmp(mode, "group error")) {
        int is_wrong = is_last && !strcmp(mode, "group error");
        for (int turn = 0; turn < 3; turn++) {
            CHECK(ncclGroupStart());
            CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
            CHECK(ncclAllGather(in, (void *)(output + 400), 4, ncclInt32, comm, stream));
            if (is_wrong) ncclSend(in, 1, ncclInt32, ranks, comm, stream);
            CHECK(ncclGroupEnd());
        }
    }
    /* The last rank is gone before the second call. */
    if (!strcmp(mode, "gone")) {
        CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
        finish("first", comm);
        /* Whoever has not looked yet could be told already that the last rank is gone. */
        __sync_fetch_and_add(&job->are_there, 1);
        if (!come(ranks)) say("gone", job->are_there, "");
        if (is_last) leave();
        CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
    }
    if (!strcmp(mode, "counts")) CHECK(ncclAllReduce(in, out, 4 + is_last, ncclInt32, ncclSum, comm, stream));
    if (!strcmp(mode, "operations")) CHECK(ncclAllReduce(in, out, 4, ncclInt32, is_last ? ncclMax : ncclSum, comm, stream));
    if (!strcmp(mode, "kinds"))
        CHECK(is_last ? ncclAllGather(in, out, 4, ncclInt32, comm, stream) : ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
    if (!strcmp(mode, "ends")) {
        if (rank == 0) CHECK(ncclSend(in, 4, ncclInt32, 1, comm, stream));
        if (rank == 1) CHECK(ncclRecv(out, 5, ncclInt32, 0, comm, stream));
    }
    /* Both wait for the other one to receive. */
    if (!strcmp(mode, "order")) {
        CHECK(ncclSend(in, 4, ncclInt32, 1 - rank, comm, stream));
        CHECK(ncclRecv(out, 4, ncclInt32, 1 - rank, comm, stream));
    }
    if (!strcmp(mode, "absent") && !is_last) CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
    if (!strcmp(mode, "fault"))
        for (int call = 0; call < 3; call++) CHECK(ncclAllReduce(in, out, 4, ncclInt32, ncclSum, comm, stream));
    if (!strcmp(mode, "host")) CHECK(ncclAllReduce(&ranks, out, 1, ncclInt32, ncclSum, comm, stream));
    if (!strcmp(mode, "arguments")) {
        int codes[] = {ncclAllReduce(in, out, 1, (ncclDataType_t)77, ncclSum, comm, stream),
                       ncclAllReduce(in, out, 1, ncclInt32, (ncclRedOp_t)77, comm, stream),
                       ncclAllReduce(NULL, out, 1, ncclInt32, ncclSum, comm, stream),
                       ncclBroadcast(in, out, 1, ncclInt32, ranks, comm, stream),
                       ncclSend(in, 1, ncclInt32, -1, comm, stream),
                       ncclAllReduce(in, out, (size_t)-1, ncclInt32, ncclSum, comm, stream)};
        for (int at = 0; at < 6; at++)
            if (codes[at] != ncclInvalidArgument) say("arguments", at, "was accepted");
        CHECK(ncclGroupStart());
        ncclSend(in, 1, ncclInt32, ranks, comm, stream);
        say("group", ncclGroupEnd(), "");
    }
    finish("after", comm);
    say("right", 0, "");
}

int main(int count, char **args) {
    if (count != 3) return 2;
    ranks = atoi(args[1]);
    job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[16];
    for (rank = 0; rank < ranks; rank++)
        if ((children[rank] = fork()) == 0) run(args[2]);
    for (int at = 0; at < ranks; at++) {
        int status;
        waitpid(children[at], &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status)) printf("exit %d\n", WEXITSTATUS(status));
        else if (!WIFEXITED(status)) printf("signal %d\n", WTERMSIG(status));
        else printf("%s\n", job->said[at]);
    }
    return 0;
}
