/* Work goes on while a sum is under way: the library carries it on in a thread of its own.
 *
 *   cc overlap.c $(pkg-config --cflags --libs antiphon) -o overlap && mpirun -n 2 ./overlap
 */
#include <antiphon.h>
#include <stdio.h>
#include <stdlib.h>

static void check(antiphon_result_t result) {
    if (result != ANTIPHON_SUCCESS) {
        fprintf(stderr, "antiphon: %s\n", antiphon_last_error());
        exit(1);
    }
}

int main(void) {
    antiphon_comm_t comm;
    int rank;
    check(antiphon_comm_from_env(&comm));
    check(antiphon_comm_rank(comm, &rank));

    enum { LAYERS = 4, COUNT = 100000 };
    double *layer[LAYERS];
    antiphon_request_t request[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layer[i] = malloc(COUNT * sizeof **layer);
        if (layer[i] == NULL) return 1;
        /* The next layer is worked out while the sums of those before are under way. */
        for (int j = 0; j < COUNT; j++) layer[i][j] = rank + i * 1e-3 * j;
        check(antiphon_all_reduce_start(layer[i], layer[i], COUNT, ANTIPHON_F64, ANTIPHON_SUM, comm, &request[i]));
    }
    for (int i = 0; i < LAYERS; i++) {
        check(antiphon_wait(&request[i]));
        printf("rank %d: layer %d begins with %.3f\n", rank, i, layer[i][0]);
        free(layer[i]);
    }
    check(antiphon_comm_free(&comm));
    return 0;
}
