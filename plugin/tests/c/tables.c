/* Each rank is given a table of its own, or none: the arguments by rank, `-` for none. One sum, and what has served it. */
#include "common.h"

int main(int argc, char **argv) {
    const char *number = getenv("ANTIPHON_RANK");
    CHECK(number != NULL && atoi(number) + 1 < argc);
    const char *table = argv[1 + atoi(number)];
    if (strcmp(table, "-") != 0) CHECK(setenv("ANTIPHON_TABLE", table, 1) == 0);
    antiphon_comm_t comm = join();
    float vector[256];
    for (int index = 0; index < 256; index++) vector[index] = own_rank + index;
    OK(antiphon_all_reduce(vector, vector, 256, ANTIPHON_F32, ANTIPHON_SUM, comm));
    for (int index = 0; index < 256; index++) CHECK(vector[index] == ranks * (ranks - 1) / 2 + ranks * index);
    printf("plan: %s\n", antiphon_plan(comm));
    OK(antiphon_comm_free(&comm));
    return 0;
}
