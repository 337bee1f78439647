/* Every collective with long vectors, in place and not, next to what it must give.
 *
 *   large BYTES          the longest vector of each call has so many bytes
 *   large BYTES huge     only a broadcast and an allgather of bytes
 *
 * A rank uses two vectors of BYTES, and the library may copy one: 3 · BYTES for each rank. */
#include "common.h"
#include <stdbool.h>

static int64_t *one, *other;

/* That `count` elements are those of a rank, from `index` on, or the sum of all ranks'. */
static void expect(const int64_t *found, size_t count, int rank, size_t index) {
    for (size_t at = 0; at < count; at++)
        CHECK(found[at] == (rank < 0 ? sum_of(index + at) : element(rank, index + at)));
}

/* Blocks of all ranks, of which each is the beginning, or this rank's part, of that rank's vector. */
static void expect_all(const int64_t *found, size_t count, size_t index) {
    for (int rank = 0; rank < ranks; rank++) expect(found + rank * count, count, rank, index);
}

static void fill_part(int64_t *vector, size_t count, size_t index) {
    for (size_t at = 0; at < count; at++) vector[at] = element(own_rank, index + at);
}

static void clear(int64_t *vector, size_t count) { memset(vector, 0x5a, count * sizeof *vector); }

static void sums(antiphon_comm_t comm, size_t count, size_t part, int root) {
    bool is_root = own_rank == root;
    for (int in_place = 0; in_place < 2; in_place++) {
        int64_t *to = in_place ? one : other;
        fill(one, count, own_rank);
        clear(other, count);
        OK(antiphon_all_reduce(one, to, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
        expect(to, count, -1, 0);
        fill(one, count, own_rank);
        clear(other, count);
        OK(antiphon_reduce(one, is_root ? to : NULL, count, ANTIPHON_I64, ANTIPHON_SUM, root, comm));
        if (is_root) expect(to, count, -1, 0);
        if (!in_place || !is_root) expect(one, count, own_rank, 0);
        fill(one, part * ranks, own_rank);
        clear(other, part);
        OK(antiphon_reduce_scatter(one, to, part, ANTIPHON_I64, ANTIPHON_SUM, comm));
        expect(to, part, -1, own_rank * part);
    }
}

static void moves(antiphon_comm_t comm, size_t count, size_t part, int root) {
    bool is_root = own_rank == root;
    size_t counts[64], offsets[64], place = own_rank * part;
    for (int rank = 0; rank < ranks; rank++) counts[rank] = part, offsets[rank] = part * rank;
    for (int in_place = 0; in_place < 2; in_place++) {
        int64_t *to = in_place ? one : other;
        fill(one, count, own_rank);
        OK(antiphon_broadcast(one, count, ANTIPHON_I64, root, comm));
        expect(one, count, root, 0);

        clear(to, count);
        fill_part(in_place ? one + place : one, part, 0);
        OK(antiphon_all_gather(one, to, part, ANTIPHON_I64, comm));
        expect_all(to, part, 0);

        clear(to, count);
        fill_part(in_place && is_root ? one + place : one, part, 0);
        OK(antiphon_gather(one, is_root ? to : NULL, part, ANTIPHON_I64, root, comm));
        if (is_root) expect_all(to, part, 0);

        fill(one, count, own_rank);
        clear(other, count);
        OK(antiphon_all_to_all(one, to, part, ANTIPHON_I64, comm));
        expect_all(to, part, place);

        fill(one, count, own_rank);
        clear(other, count);
        OK(antiphon_all_to_all_v(one, counts, offsets, to, counts, offsets, ANTIPHON_I64, comm));
        expect_all(to, part, place);

        fill(one, count, own_rank);
        clear(other, count);
        to = in_place && is_root ? one : other;
        OK(antiphon_scatter(is_root ? one : NULL, to, part, ANTIPHON_I64, root, comm));
        if (to == one) expect(one, part * ranks, root, 0);
        else expect(other, part, root, place);
    }
}

static void messages(antiphon_comm_t comm, size_t count) {
    int next = (own_rank + 1) % ranks, previous = (own_rank + ranks - 1) % ranks;
    antiphon_request_t sent;
    fill(one, count, own_rank);
    clear(other, count);
    OK(antiphon_send_start(one, count, ANTIPHON_I64, next, comm, &sent));
    OK(antiphon_recv(other, count, ANTIPHON_I64, previous, comm));
    OK(antiphon_wait(&sent));
    expect(other, count, previous, 0);
}

/* More bytes than 32 bits can count; each rank's part is whole words. */
static void huge(antiphon_comm_t comm, size_t bytes) {
    size_t count = bytes / sizeof(int64_t) / ranks * ranks, part = count / ranks;
    bytes = count * sizeof(int64_t);
    int64_t *vector = vector_of(count);
    fill(vector, count, own_rank);
    OK(antiphon_broadcast(vector, bytes, ANTIPHON_U8, ranks - 1, comm));
    expect(vector, count, ranks - 1, 0);
    clear(vector, count);
    fill(vector + own_rank * part, part, own_rank);
    OK(antiphon_all_gather(vector, vector, bytes / ranks, ANTIPHON_U8, comm));
    expect_all(vector, part, 0);
    free(vector);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    size_t bytes = strtoull(argv[1], NULL, 10), count = bytes / sizeof(int64_t);
    antiphon_comm_t comm = join();
    CHECK(ranks <= 64);
    if (argc > 2) huge(comm, bytes);
    else {
        size_t part = count / ranks;
        one = vector_of(count);
        other = vector_of(count);
        sums(comm, count, part, ranks - 1);
        moves(comm, count, part, ranks / 2);
        messages(comm, count);
        OK(antiphon_barrier(comm));
        free(one);
        free(other);
    }
    OK(antiphon_comm_free(&comm));
    return 0;
}
