/* Which of both serves a call: libantiphon, or the MPI that is there.
 *
 * Without ANTIPHON_MPI_TUNE, libantiphon serves whatever it can. With it, the first blocking calls of each kind and size
 * class of a communicator are made by both in turn, as the program makes them, and timed. Then all ranks add up their
 * times, so that all come to the same choice after the same call: whoever took less time serves from then on, also calls
 * that are only begun. The variable names a file. Choices that it holds are not made again; rank 0 adds new ones at the end.
 *
 * No rank asks another one before a call. All ranks make the same blocking calls of one kind, size and communicator in the
 * same order (collectives.c), so all are at the same turn. */
#include "antiphon_mpi.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Of each side, the first calls prepare something and do not count, nor do the longest, which something else may have
 * disturbed. */
enum { CLASSES = 64, UNCOUNTED = 2, COUNTED = 12, LONGEST = 2, SIDES = 2, LINE = 256 };
enum { UNKNOWN, ANTIPHON, MPI };

/* Calls of one kind and size class in one communicator. */
struct antiphon_mpi_choice {
    unsigned char taken;
    unsigned char turns;
    double *times; /* of both sides, while they are compared */
};

/* A choice that was made, or that the file holds. */
struct antiphon_mpi_known {
    int kind, ranks, class, taken;
    double times[SIDES]; /* in seconds, on average over the ranks */
    struct antiphon_mpi_known *next;
};

static const char *const sides[] = {"", "antiphon", "mpi"};
static const char format[] = "antiphon-mpi-tune/1";

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Bytes of an element. */
size_t antiphon_mpi_element(antiphon_dtype_t dtype) {
    switch (dtype) {
    case ANTIPHON_U8: return 1;
    case ANTIPHON_F16:
    case ANTIPHON_BF16: return 2;
    case ANTIPHON_F32:
    case ANTIPHON_I32: return 4;
    default: return 8;
    }
}

/* Sizes of a block up to twice the least of them. Blocks of an alltoallv differ between ranks, and a barrier has none. */
static int class_of(const struct antiphon_mpi_call *call) {
    size_t bytes = call->count * antiphon_mpi_element(call->dtype);
    int class = 0;
    if (call->kind == ANTIPHON_MPI_ALLTOALLV || call->kind == ANTIPHON_MPI_BARRIER) return 0;
    while (bytes > 1) bytes /= 2, class++;
    return class;
}

/* A rank that cannot count turns would make another choice than the others. */
static void *must(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "antiphon: there is no memory to compare with MPI\n");
    PMPI_Abort(MPI_COMM_WORLD, MPI_ERR_NO_MEM);
    abort();
}

static struct antiphon_mpi_choice *choice_of(struct antiphon_mpi_group *group, const struct antiphon_mpi_call *call) {
    struct antiphon_mpi_choice **of_kind = &group->choices[call->kind];
    if (!*of_kind) {
        *of_kind = must(calloc(CLASSES, sizeof **of_kind));
        for (const struct antiphon_mpi_known *at = antiphon_mpi_state.known_choices; at; at = at->next)
            if (at->kind == (int)call->kind && at->ranks == group->size)
                (*of_kind)[at->class].taken = (unsigned char)at->taken;
    }
    return &(*of_kind)[class_of(call)];
}

static bool is_mpis(struct antiphon_mpi_group *group, const struct antiphon_mpi_call *call) {
    if (choice_of(group, call)->taken != MPI) return false;
    antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_FASTER);
    return true;
}

/* Whether libantiphon makes a blocking call that it can make. `group` is NULL if it cannot. */
bool antiphon_mpi_ours(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call) {
    call->choice = NULL;
    if (!group || !antiphon_mpi_state.compares) return group;
    struct antiphon_mpi_choice *choice = choice_of(group, call);
    if (choice->taken != UNKNOWN) return !is_mpis(group, call);
    if (!choice->times) choice->times = must(calloc(SIDES * COUNTED, sizeof *choice->times));
    call->choice = choice;
    call->group = group;
    call->began = now();
    if (choice->turns % SIDES == 0) return true;
    antiphon_mpi_decided(group, call->kind, ANTIPHON_MPI_COMPARED);
    return false;
}

/* The same for a call that is only begun, whose time says nothing. */
bool antiphon_mpi_ours_begun(struct antiphon_mpi_group *group, struct antiphon_mpi_call *call) {
    call->choice = NULL;
    return group && !(antiphon_mpi_state.compares && is_mpis(group, call));
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Of two choices for the same calls, which two communicators have made, the later one stays. */
static void keep(int kind, int ranks, int class, int taken, const double times[SIDES], struct antiphon_mpi_known **list) {
    struct antiphon_mpi_known *at = *list;
    while (at && (at->kind != kind || at->ranks != ranks || at->class != class)) at = at->next;
    if (!at) {
        at = must(malloc(sizeof *at));
        *at = (struct antiphon_mpi_known){.kind = kind, .ranks = ranks, .class = class, .next = *list};
        *list = at;
    }
    at->taken = taken;
    memcpy(at->times, times, sizeof at->times);
}

/* All ranks have the same sums, so they make the same choice. */
static void choose(struct antiphon_mpi_group *group, const struct antiphon_mpi_call *call) {
    struct antiphon_mpi_choice *choice = call->choice;
    double own[SIDES] = {0}, sums[SIDES];
    for (int side = 0; side < SIDES; side++) {
        double *times = choice->times + side * COUNTED;
        qsort(times, COUNTED, sizeof *times, by_size);
        for (int call = 0; call < COUNTED - LONGEST; call++) own[side] += times[call] / (COUNTED - LONGEST);
    }
    PMPI_Allreduce(own, sums, SIDES, MPI_DOUBLE, MPI_SUM, group->comm);
    choice->taken = sums[0] <= sums[1] ? ANTIPHON : MPI;
    free(choice->times);
    choice->times = NULL;
    for (int side = 0; side < SIDES; side++) sums[side] /= group->size;
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    pthread_mutex_lock(&state->lock);
    keep((int)call->kind, group->size, class_of(call), choice->taken, sums, &state->new_choices);
    pthread_mutex_unlock(&state->lock);
}

/* The end of a blocking call. */
void antiphon_mpi_timed(const struct antiphon_mpi_call *call) {
    struct antiphon_mpi_choice *choice = call->choice;
    if (!choice) return;
    double time = now() - call->began;
    int side = choice->turns % SIDES, round = choice->turns / SIDES - UNCOUNTED;
    if (round >= 0) choice->times[side * COUNTED + round] = time;
    choice->turns++;
    if (choice->turns == SIDES * (UNCOUNTED + COUNTED)) choose(call->group, call);
}

/* The end of a blocking call that MPI has made. */
int antiphon_mpi_theirs(const struct antiphon_mpi_call *call, int code) {
    antiphon_mpi_timed(call);
    return code;
}

void antiphon_mpi_forget_choices(struct antiphon_mpi_group *group) {
    for (int kind = 0; kind < ANTIPHON_MPI_KINDS; kind++) {
        for (int class = 0; group->choices[kind] && class < CLASSES; class++) free(group->choices[kind][class].times);
        free(group->choices[kind]);
    }
}

/* What the file was made with, on its first line. */
static void head(char *line) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    PMPI_Get_library_version(library, &length);
    library[strcspn(library, "\r\n")] = 0;
    snprintf(line, LINE, "%.40s %.40s, %.160s", format, antiphon_version(), library);
}

/* Reads a line as it was written. */
static bool parse(const char *line, struct antiphon_mpi_known **list) {
    char kind[32], side[32];
    unsigned long long from, to;
    int ranks, found = 0, class = 0, taken;
    double times[SIDES];
    if (sscanf(line, "%31s %d %llu %llu %31s %lf %lf", kind, &ranks, &from, &to, side, &times[0], &times[1]) != 7)
        return false;
    while (found < ANTIPHON_MPI_KINDS && strcmp(kind, antiphon_mpi_names[found]) != 0) found++;
    for (taken = MPI; taken > UNKNOWN && strcmp(side, sides[taken]) != 0;) taken--;
    while (class < CLASSES - 1 && 1ULL << class < from) class++;
    if (found == ANTIPHON_MPI_KINDS || taken == UNKNOWN || ranks < 2 || (from > 0 && 1ULL << class != from)) return false;
    for (int index = 0; index < SIDES; index++) times[index] *= 1e-6;
    keep(found, ranks, class, taken, times, list);
    return true;
}

/* If rank 0 has a file for choices, calls are compared. Rank 0 reads it, and all get what it has read. */
void antiphon_mpi_begin_choices(int rank) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    char line[LINE], expected[LINE];
    const char *path = rank == 0 ? getenv("ANTIPHON_MPI_TUNE") : NULL;
    int compares = path && *path;
    PMPI_Bcast(&compares, 1, MPI_INT, 0, MPI_COMM_WORLD);
    state->compares = compares;
    if (!compares) return;
    if (path) path = state->choices_file = must(strdup(path));
    FILE *file = rank == 0 ? fopen(path, "r") : NULL;
    head(expected);
    bool is_fit = file && fgets(line, sizeof line, file);
    if (is_fit) {
        line[strcspn(line, "\n")] = 0;
        is_fit = strcmp(line, expected) == 0;
        if (!is_fit) fprintf(stderr, "antiphon: %s is for another MPI or version; it is made anew\n", path);
    }
    for (int number = 2;; number++) {
        if (!is_fit || !fgets(line, sizeof line, file)) line[0] = 0;
        PMPI_Bcast(line, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
        if (!line[0]) break;
        if (line[0] == '#' || parse(line, &state->known_choices)) continue;
        if (rank == 0) fprintf(stderr, "antiphon: %s:%d: this is no choice\n", path, number);
    }
    if (file) fclose(file);
}

static void write_list(FILE *file, const struct antiphon_mpi_known *list) {
    for (const struct antiphon_mpi_known *at = list; at; at = at->next) {
        unsigned long long from = 1ULL << at->class, to = 2 * from - 1;
        bool has_size = at->kind != ANTIPHON_MPI_ALLTOALLV && at->kind != ANTIPHON_MPI_BARRIER;
        fprintf(file, "%s %d %llu %llu %s %.3f %.3f\n", antiphon_mpi_names[at->kind], at->ranks, has_size ? from : 0,
                has_size ? to : 0, sides[at->taken], 1e6 * at->times[0], 1e6 * at->times[1]);
    }
}

/* Rank 0 adds the new choices to the file. A reader sees the old one or the new one. */
static void write_choices(const char *path) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    char line[LINE];
    size_t length = strlen(path) + 32;
    char *part = must(malloc(length));
    snprintf(part, length, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(part, "w");
    bool is_written = file;
    if (file) {
        head(line);
        fprintf(file, "%s\n# collective, ranks, bytes of a block from and to, choice, us of antiphon and mpi\n", line);
        write_list(file, state->known_choices);
        write_list(file, state->new_choices);
        is_written = !ferror(file);
        is_written = fclose(file) == 0 && is_written && rename(part, path) == 0;
    }
    if (!is_written) {
        fprintf(stderr, "antiphon: %s cannot be written\n", path);
        unlink(part);
    }
    free(part);
}

static void drop(struct antiphon_mpi_known **list) {
    while (*list) {
        struct antiphon_mpi_known *first = *list;
        *list = first->next;
        free(first);
    }
}

void antiphon_mpi_end_choices(void) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    if (state->choices_file && state->new_choices) write_choices(state->choices_file);
    free(state->choices_file);
    state->choices_file = NULL;
    state->compares = false;
    drop(&state->known_choices);
    drop(&state->new_choices);
}
