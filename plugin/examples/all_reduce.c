/* The mean of a vector over all ranks.
 *
 *   cc all_reduce.c $(pkg-config --cflags --libs antiphon) -o all_reduce
 *   mpirun -n 4 ./all_reduce        (or torchrun, srun, or ANTIPHON_RANK, ANTIPHON_SIZE and ANTIPHON_MASTER by hand)
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
    int rank, size;
    check(antiphon_comm_from_env(&comm));
    check(antiphon_comm_rank(comm, &rank));
    check(antiphon_comm_size(comm, &size));

    enum { COUNT = 1 << 20 };
    float *gradient;
    check(antiphon_alloc(comm, COUNT * sizeof *gradient, (void **)&gradient));
    for (int i = 0; i < COUNT; i++) gradient[i] = (float)rank;
    check(antiphon_all_reduce(gradient, gradient, COUNT, ANTIPHON_F32, ANTIPHON_AVG, comm));

    printf("rank %d of %d: mean %.2f, by %s\n", rank, size, gradient[COUNT - 1], antiphon_plan(comm));
    check(antiphon_free(comm, gradient));
    check(antiphon_comm_free(&comm));
    return 0;
}
