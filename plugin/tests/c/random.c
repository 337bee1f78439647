/* Random calls: every collective, type and reduction, of no bytes up to many, in place and not, at any address, blocking and
 * begun, on groups that overlap, in several threads. What every call must give is worked out here, element by element.
 *
 *   random FOLDER [SEED [CALLS [MOST_BYTES [THREADS [rank-threads]]]]]
 *
 * All ranks draw the same numbers, so they make the same calls. With `rank-threads`, all ranks are threads of this process, which
 * find each other as processes do. */
#include "common.h"
#include <pthread.h>
#include <stdbool.h>

enum { GROUPS = 6, WINDOW = 12, GUARD = 64, MOST_RANKS = 16, SENTINEL = 0xa5 };
enum kind {
    ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL_V, MESSAGE, BARRIER, KINDS
};

static const size_t sizes_of[] = {4, 8, 4, 8, 1, 2, 2};

/* A group of ranks, as all of them know it. */
struct group {
    antiphon_comm_t comm;
    int members[MOST_RANKS], size, number; /* `number` is negative for who is not in it */
};

/* What a thread does. */
struct player {
    uint64_t seed;
    int own, ranks, calls;
    size_t most;
    struct group groups[GROUPS];
};

struct buffer {
    unsigned char *memory, *start;
    size_t bytes;
};

/* A call under way. */
struct call {
    bool is_open;
    struct group *group;
    uint64_t seed;
    enum kind kind;
    int dtype, op, root, number, size;
    size_t count;
    bool in_place;
    struct buffer send, recv;
    size_t counts[MOST_RANKS], offsets[MOST_RANKS], rcounts[MOST_RANKS], roffsets[MOST_RANKS];
    antiphon_request_t request;
};

static uint64_t mixed(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static uint64_t draw(uint64_t *state, uint64_t below) { return (*state = mixed(*state)) % below; }

static struct buffer buffer_of(size_t bytes, size_t shift) {
    struct buffer made = {.memory = malloc(bytes + 2 * GUARD + 64), .bytes = bytes};
    CHECK(made.memory != NULL);
    memset(made.memory, SENTINEL, bytes + 2 * GUARD + 64);
    made.start = made.memory + GUARD + shift;
    return made;
}

static void check_guards(const struct call *call, struct buffer buffer) {
    for (int at = 1; at <= GUARD; at++)
        if (buffer.start[-at] != SENTINEL || buffer.start[buffer.bytes + at - 1] != SENTINEL) {
            fprintf(stderr, "kind %d wrote outside its buffer\n", call->kind);
            exit(1);
        }
}

/* A number of the call: integers of any size, floats that are exact in all types. */
static int64_t value_of(const struct call *call, int rank, size_t index) {
    uint64_t random = mixed(call->seed ^ (uint64_t)index * 1315423911u);
    bool is_float = call->dtype == ANTIPHON_F32 || call->dtype == ANTIPHON_F64 || call->dtype >= ANTIPHON_F16;
    if (!is_float && call->op != ANTIPHON_AVG) return (int64_t)mixed(random + (uint64_t)rank);
    if (call->op == ANTIPHON_PROD) return 1 + (int64_t)(mixed(random + (uint64_t)rank) & 1);
    /* Sums of all ranks can be divided by their number without a rest, up to a half. */
    return ((int64_t)(random % 7) - 3) + (rank + (int64_t)(random >> 32 & 0xff)) % call->size;
}

static uint16_t half_of(float value, bool is_brain) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (is_brain) return (uint16_t)(bits >> 16);
    if (value == 0) return (uint16_t)(bits >> 16 & 0x8000);
    int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

static void put(int dtype, unsigned char *at, int64_t whole, double real) {
    float f = (float)real;
    int32_t i = (int32_t)whole;
    uint8_t u = (uint8_t)whole;
    uint16_t h = half_of(f, dtype == ANTIPHON_BF16);
    switch (dtype) {
    case ANTIPHON_F32: memcpy(at, &f, 4); break;
    case ANTIPHON_F64: memcpy(at, &real, 8); break;
    case ANTIPHON_I32: memcpy(at, &i, 4); break;
    case ANTIPHON_I64: memcpy(at, &whole, 8); break;
    case ANTIPHON_U8: *at = u; break;
    default: memcpy(at, &h, 2);
    }
}

static void put_value(const struct call *call, unsigned char *at, int rank, size_t index) {
    int64_t value = value_of(call, rank, index);
    put(call->dtype, at, value, (double)value);
}

static int64_t narrowed(int dtype, int64_t value) {
    switch (dtype) {
    case ANTIPHON_I32: return (int32_t)value;
    case ANTIPHON_U8: return (uint8_t)value;
    default: return value;
    }
}

/* The reduction of all ranks' elements. */
static void put_reduced(const struct call *call, unsigned char *at, size_t index) {
    int dtype = call->dtype;
    int64_t result = narrowed(dtype, value_of(call, 0, index));
    for (int rank = 1; rank < call->size; rank++) {
        int64_t next = narrowed(dtype, value_of(call, rank, index));
        switch (call->op) {
        case ANTIPHON_PROD: result = (int64_t)((uint64_t)result * (uint64_t)next); break;
        case ANTIPHON_MIN: result = next < result ? next : result; break;
        case ANTIPHON_MAX: result = next > result ? next : result; break;
        default: result = (int64_t)((uint64_t)result + (uint64_t)next);
        }
        result = narrowed(dtype, result);
    }
    double real = (double)result;
    if (call->op == ANTIPHON_AVG) {
        real /= call->size;
        result /= call->size;
    }
    put(dtype, at, result, real);
}

static void expect(const struct call *call, size_t from, size_t count, int rank, size_t index, const char *what) {
    size_t each = sizes_of[call->dtype];
    for (size_t at = 0; at < count; at++) {
        unsigned char wanted[8];
        if (rank < 0) put_reduced(call, wanted, index + at);
        else put_value(call, wanted, rank, index + at);
        if (memcmp(wanted, call->recv.start + (from + at) * each, each) == 0) continue;
        fprintf(stderr, "%s: kind %d, type %d, op %d, root %d, count %zu, in place %d, %d of %d ranks: element %zu is wrong\n",
                what, call->kind, call->dtype, call->op, call->root, call->count, call->in_place, call->number, call->size,
                from + at);
        exit(1);
    }
}

/* How many elements rank `from` sends to rank `to`. */
static size_t exchanged(const struct call *call, int from, int to) {
    return mixed(call->seed + (uint64_t)(from * MOST_RANKS + to)) % (call->count + 1);
}

static int sizes_in(const struct call *call, size_t *in, size_t *out) {
    size_t n = (size_t)call->size, count = call->count;
    bool is_root = call->number == call->root;
    *in = *out = count;
    switch (call->kind) {
    case ALL_GATHER: *out = count * n; break;
    case REDUCE_SCATTER: *in = count * n; break;
    case ALL_TO_ALL: *in = *out = count * n; break;
    case REDUCE: *out = is_root ? count : 0; break;
    case GATHER: *out = is_root ? count * n : 0; break;
    case SCATTER: *in = is_root ? count * n : 0; break;
    case ALL_TO_ALL_V: *in = *out = (count + 3) * n; break;
    case BARRIER: *in = *out = 0; break;
    default: break;
    }
    return 0;
}

static void fill_blocks(struct call *call, unsigned char *start, size_t blocks) {
    size_t each = sizes_of[call->dtype];
    for (size_t at = 0; at < blocks * call->count; at++) put_value(call, start + at * each, call->number, at);
}

/* Makes a call, or begins it. */
static void begin(struct call *call, bool is_blocking) {
    size_t each = sizes_of[call->dtype], in, out, n = call->count;
    uint64_t own = call->seed * 31 + (uint64_t)call->number;
    int dtype = call->dtype, op = call->op, root = call->root, number = call->number;
    antiphon_comm_t comm = call->group->comm;
    antiphon_request_t *request = &call->request;
    bool is_root = number == root;
    sizes_in(call, &in, &out);
    call->recv = buffer_of((call->in_place && in > out ? in : out) * each, draw(&own, 16));
    call->send = call->in_place ? call->recv : buffer_of(in * each, draw(&own, 16));
    unsigned char *send = call->send.start, *recv = call->recv.start;
    if (call->kind == ALL_GATHER && call->in_place) fill_blocks(call, recv + (size_t)number * n * each, 1);
    else if (call->kind == GATHER && is_root && call->in_place) fill_blocks(call, recv + (size_t)number * n * each, 1);
    else if (call->kind == REDUCE_SCATTER || call->kind == ALL_TO_ALL || (call->kind == SCATTER && is_root))
        fill_blocks(call, send, (size_t)call->size);
    else if (call->kind == BROADCAST) {
        send = recv;
        if (is_root) fill_blocks(call, recv, 1);
    } else if (call->kind == ALL_TO_ALL_V) {
        size_t s = 0, r = 0;
        for (int rank = 0; rank < call->size; rank++) {
            call->counts[rank] = exchanged(call, number, rank);
            call->rcounts[rank] = exchanged(call, rank, number);
            /* In place, what comes lies where what goes did. */
            if (call->in_place) call->counts[rank] = call->rcounts[rank] = exchanged(call, number < rank ? number : rank,
                                                                                     number < rank ? rank : number);
            call->offsets[rank] = s + (size_t)rank % 3;
            call->roffsets[rank] = call->in_place ? call->offsets[rank] : r + (size_t)(call->size - rank) % 2;
            for (size_t at = 0; at < call->counts[rank]; at++)
                put_value(call, send + (call->offsets[rank] + at) * each, number, (size_t)rank * (n + 1) + at);
            s = call->offsets[rank] + call->counts[rank];
            r = call->roffsets[rank] + call->rcounts[rank];
        }
    } else if (call->kind != SCATTER && call->kind != BARRIER && !(call->kind == MESSAGE && number != root))
        fill_blocks(call, send, 1);
    const void *from = in ? send : NULL;
    void *to = out ? recv : NULL;
    if (call->in_place) from = to = recv;
    int peer = (root + 1) % call->size;
    switch (call->kind) {
    case ALL_REDUCE:
        OK(is_blocking ? antiphon_all_reduce(from, to, n, dtype, op, comm)
                       : antiphon_all_reduce_start(from, to, n, dtype, op, comm, request));
        break;
    case ALL_GATHER:
        OK(is_blocking ? antiphon_all_gather(from, to, n, dtype, comm)
                       : antiphon_all_gather_start(from, to, n, dtype, comm, request));
        break;
    case REDUCE_SCATTER:
        OK(is_blocking ? antiphon_reduce_scatter(from, to, n, dtype, op, comm)
                       : antiphon_reduce_scatter_start(from, to, n, dtype, op, comm, request));
        break;
    case ALL_TO_ALL:
        OK(is_blocking ? antiphon_all_to_all(from, to, n, dtype, comm)
                       : antiphon_all_to_all_start(from, to, n, dtype, comm, request));
        break;
    case BROADCAST:
        OK(is_blocking ? antiphon_broadcast(recv, n, dtype, root, comm)
                       : antiphon_broadcast_start(recv, n, dtype, root, comm, request));
        break;
    case REDUCE:
        OK(is_blocking ? antiphon_reduce(from, to, n, dtype, op, root, comm)
                       : antiphon_reduce_start(from, to, n, dtype, op, root, comm, request));
        break;
    case GATHER:
        OK(is_blocking ? antiphon_gather(from, to, n, dtype, root, comm)
                       : antiphon_gather_start(from, to, n, dtype, root, comm, request));
        break;
    case SCATTER:
        OK(is_blocking ? antiphon_scatter(from, to, n, dtype, root, comm)
                       : antiphon_scatter_start(from, to, n, dtype, root, comm, request));
        break;
    case ALL_TO_ALL_V:
        OK(is_blocking ? antiphon_all_to_all_v(from, call->counts, call->offsets, to, call->rcounts, call->roffsets, dtype, comm)
                       : antiphon_all_to_all_v_start(from, call->counts, call->offsets, to, call->rcounts, call->roffsets, dtype,
                                                     comm, request));
        break;
    case MESSAGE:
        if (call->size == 1) break;
        if (is_root)
            OK(is_blocking ? antiphon_send(from, n, dtype, peer, comm)
                           : antiphon_send_start(from, n, dtype, peer, comm, request));
        if (number == peer)
            OK(is_blocking ? antiphon_recv(to, n, dtype, root, comm)
                           : antiphon_recv_start(to, n, dtype, root, comm, request));
        break;
    default: OK(is_blocking ? antiphon_barrier(comm) : antiphon_barrier_start(comm, request));
    }
    call->is_open = true;
}

/* Waits for a call, and compares. */
static void end(struct call *call, bool by_test) {
    bool is_root = call->number == call->root;
    size_t n = call->count, each = sizes_of[call->dtype];
    if (by_test)
        for (int done = 0; !done;) OK(antiphon_test(&call->request, &done));
    OK(antiphon_wait(&call->request));
    CHECK(call->request == NULL);
    switch (call->kind) {
    case ALL_REDUCE: expect(call, 0, n, -1, 0, "allreduce"); break;
    case ALL_GATHER:
        for (int rank = 0; rank < call->size; rank++) expect(call, (size_t)rank * n, n, rank, 0, "allgather");
        break;
    case REDUCE_SCATTER: expect(call, 0, n, -1, (size_t)call->number * n, "reduce_scatter"); break;
    case ALL_TO_ALL:
        for (int rank = 0; rank < call->size; rank++)
            expect(call, (size_t)rank * n, n, rank, (size_t)call->number * n, "alltoall");
        break;
    case BROADCAST: expect(call, 0, n, call->root, 0, "broadcast"); break;
    case REDUCE:
        if (is_root) expect(call, 0, n, -1, 0, "reduce");
        break;
    case GATHER:
        for (int rank = 0; is_root && rank < call->size; rank++) expect(call, (size_t)rank * n, n, rank, 0, "gather");
        break;
    case SCATTER:
        /* In place, the root's block stays where it is. */
        if (is_root && call->in_place) expect(call, (size_t)call->root * n, n, call->root, (size_t)call->root * n, "scatter");
        else expect(call, 0, n, call->root, (size_t)call->number * n, "scatter");
        break;
    case ALL_TO_ALL_V:
        for (int rank = 0; rank < call->size; rank++)
            expect(call, call->roffsets[rank], call->rcounts[rank], rank, (size_t)call->number * (n + 1), "alltoallv");
        break;
    case MESSAGE:
        if (call->size > 1 && call->number == (call->root + 1) % call->size) expect(call, 0, n, call->root, 0, "message");
        break;
    default: break;
    }
    check_guards(call, call->recv);
    if (!call->in_place) {
        check_guards(call, call->send);
        if (call->kind == ALL_REDUCE || call->kind == ALL_GATHER || call->kind == REDUCE || call->kind == GATHER)
            for (size_t at = 0; at < n; at++) {
                unsigned char wanted[8];
                put_value(call, wanted, call->number, at);
                CHECK(memcmp(wanted, call->send.start + at * each, each) == 0);
            }
        free(call->send.memory);
    }
    free(call->recv.memory);
    call->is_open = false;
}

static size_t random_count(uint64_t *state, size_t most) {
    switch (draw(state, 6)) {
    case 0: return draw(state, 4);
    case 1: return draw(state, 70);
    case 2: return draw(state, 1100) < most ? draw(state, 1100) % (most + 1) : 1;
    case 3: return (4096 + draw(state, 1000) - 500) % (most + 1);
    case 4: return (8192 + draw(state, 20000)) % (most + 1);
    default: return draw(state, most + 1);
    }
}

static void make_groups(struct player *player, antiphon_comm_t world) {
    int own = player->own, size = player->ranks;
    for (int index = 0; index < GROUPS; index++) {
        struct group *group = &player->groups[index];
        int colors[MOST_RANKS], keys[MOST_RANKS];
        for (int rank = 0; rank < size; rank++) {
            const int rules[GROUPS][2] = {{0, rank}, {0, -rank}, {rank % 2, 0}, {rank / 2, -rank}, {rank == 0 ? -1 : 7, 0},
                                          {rank == size - 1 ? -1 : 3, (rank * 5) % 7}};
            colors[rank] = rules[index][0];
            keys[rank] = rules[index][1];
        }
        OK(antiphon_comm_split(world, colors[own], keys[own], &group->comm));
        group->number = -1;
        if (colors[own] < 0) {
            CHECK(group->comm == NULL);
            continue;
        }
        /* In the order of keys, then of ranks. */
        for (int rank = 0; rank < size; rank++)
            if (colors[rank] == colors[own]) {
                int at = group->size++;
                for (; at > 0 && keys[group->members[at - 1]] > keys[rank]; at--) group->members[at] = group->members[at - 1];
                group->members[at] = rank;
            }
        for (int at = 0; at < group->size; at++)
            if (group->members[at] == own) group->number = at;
        int found;
        OK(antiphon_comm_rank(group->comm, &found));
        CHECK(found == group->number);
    }
}

static void *play(void *given) {
    struct player *player = given;
    struct call calls[WINDOW] = {0};
    for (int index = 0; index < player->calls; index++) {
        uint64_t state = mixed(player->seed * 1000003 + (uint64_t)index), own = state + (uint64_t)player->own * 77;
        struct group *group = &player->groups[draw(&state, GROUPS)];
        struct call made = {.group = group, .kind = (enum kind)draw(&state, KINDS), .dtype = (int)draw(&state, 7),
                            .op = (int)draw(&state, 5)};
        bool is_blocking = draw(&state, 3) == 0;
        made.in_place = draw(&state, 2) && made.kind != MESSAGE && made.kind != BARRIER;
        uint64_t root = draw(&state, 1000);
        size_t most = player->most / sizes_of[made.dtype];
        made.count = random_count(&state, most);
        made.seed = mixed(state);
        if (group->number < 0) continue;
        made.number = group->number;
        made.size = group->size;
        made.root = (int)(root % (uint64_t)group->size);
        if (made.kind == BARRIER) made.count = 0;
        if (made.kind == BROADCAST) made.in_place = true;
        if ((made.kind == REDUCE || made.kind == GATHER || made.kind == SCATTER) && made.number != made.root)
            made.in_place = false;
        /* Any of the calls under way is waited for; those before it on the same communicator end first. */
        struct call *place = &calls[draw(&own, WINDOW)];
        if (place->is_open) end(place, draw(&own, 2));
        *place = made;
        begin(place, is_blocking);
        if (is_blocking) end(place, false);
        if (draw(&own, 10) == 0)
            for (int at = 0; at < WINDOW; at++)
                if (calls[at].is_open) end(&calls[at], draw(&own, 2));
    }
    for (int at = 0; at < WINDOW; at++)
        if (calls[at].is_open) end(&calls[at], at % 2);
    return NULL;
}

/* All that one rank does: several threads, each with groups of its own. */
static void play_rank(antiphon_comm_t world, uint64_t seed, int calls, size_t most, int threads) {
    struct player players[8] = {{0}};
    pthread_t handles[8];
    int own, size;
    OK(antiphon_comm_rank(world, &own));
    OK(antiphon_comm_size(world, &size));
    CHECK(threads <= 8 && size <= MOST_RANKS);
    for (int thread = 0; thread < threads; thread++) {
        players[thread] = (struct player){seed + (uint64_t)thread, own, size, calls, most, {{0}}};
        make_groups(&players[thread], world);
    }
    for (int thread = 1; thread < threads; thread++) CHECK(pthread_create(&handles[thread], NULL, play, &players[thread]) == 0);
    play(&players[0]);
    for (int thread = 1; thread < threads; thread++) CHECK(pthread_join(handles[thread], NULL) == 0);
    OK(antiphon_barrier(world));
    for (int thread = 0; thread < threads; thread++)
        for (int group = 0; group < GROUPS; group++) OK(antiphon_comm_free(&players[thread].groups[group].comm));
    OK(antiphon_comm_free(&world));
}

struct rank_thread {
    int rank, size, calls, threads;
    uint64_t seed;
    size_t most;
};

static void *play_as_thread(void *given) {
    struct rank_thread *of = given;
    antiphon_comm_t world;
    OK(antiphon_comm_connect(of->rank, of->size, getenv("ANTIPHON_MASTER"), NULL, &world));
    play_rank(world, of->seed, of->calls, of->most, of->threads);
    return NULL;
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int calls = argc > 3 ? atoi(argv[3]) : 300, threads = argc > 5 ? atoi(argv[5]) : 1;
    size_t most = argc > 4 ? strtoull(argv[4], NULL, 10) : 200000;
    if (argc <= 6) {
        antiphon_comm_t world = join();
        play_rank(world, seed, calls, most, threads);
        return 0;
    }
    int size = atoi(getenv("ANTIPHON_SIZE"));
    struct rank_thread of[MOST_RANKS];
    pthread_t handles[MOST_RANKS];
    for (int rank = 0; rank < size; rank++) {
        of[rank] = (struct rank_thread){rank, size, calls, threads, seed, most};
        CHECK(pthread_create(&handles[rank], NULL, play_as_thread, &of[rank]) == 0);
    }
    for (int rank = 0; rank < size; rank++) CHECK(pthread_join(handles[rank], NULL) == 0);
    return 0;
}
