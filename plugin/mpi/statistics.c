/* What was called, for those who ask with ANTIPHON_DEBUG=info. */
#include "antiphon_mpi.h"
#include <stdio.h>
#include <string.h>

const char *const antiphon_mpi_names[ANTIPHON_MPI_KINDS] = {
    "allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "bcast", "reduce", "gather", "scatter", "barrier"};
static const char *const reasons[ANTIPHON_MPI_REASONS] = {
    [ANTIPHON_MPI_FOREIGN] = "other communicators", [ANTIPHON_MPI_TYPE] = "other types or operations",
    [ANTIPHON_MPI_UNEQUAL] = "unequal blocks",      [ANTIPHON_MPI_EMPTY] = "no bytes",
    [ANTIPHON_MPI_LARGE] = "large blocks",          [ANTIPHON_MPI_ARGUMENT] = "arguments for MPI to refuse",
    [ANTIPHON_MPI_COMPARED] = "to compare",         [ANTIPHON_MPI_FASTER] = "MPI is faster"};

/* The name of a plan stands between the first colon and the next comma of what antiphon_plan says. An alltoallv has none. */
void antiphon_mpi_ran(struct antiphon_mpi_group *group, enum antiphon_mpi_kind kind) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    const char *plan = kind == ANTIPHON_MPI_ALLTOALLV ? "direct" : antiphon_plan(group->handle);
    char name[ANTIPHON_MPI_PLAN_NAME];
    const char *colon = plan ? strstr(plan, ": ") : NULL;
    if (colon) plan = colon + 2;
    snprintf(name, sizeof name, "%.*s", plan ? (int)strcspn(plan, ",;") : 1, plan ? plan : "?");
    pthread_mutex_lock(&state->lock);
    struct antiphon_mpi_plan *at = state->plans, *last = at + ANTIPHON_MPI_PLANS - 1;
    while (at < last && at->calls > 0 && (at->kind != kind || strcmp(at->name, name) != 0)) at++;
    /* The last place counts all that find none. */
    if (at->calls == 0) {
        at->kind = kind;
        strcpy(at->name, at == last ? "others" : name);
    }
    at->calls++;
    pthread_mutex_unlock(&state->lock);
}

/* Counts what goes to MPI, and returns the group of what does not. */
struct antiphon_mpi_group *antiphon_mpi_decided(struct antiphon_mpi_group *group, enum antiphon_mpi_kind kind,
                                                enum antiphon_mpi_reason reason) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    if (reason == ANTIPHON_MPI_OURS) return group;
    if (!state->wants_statistics || !state->is_active) return NULL;
    pthread_mutex_lock(&state->lock);
    state->passed[kind][reason]++;
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

void antiphon_mpi_report(void) {
    const struct antiphon_mpi_state *state = &antiphon_mpi_state;
    char line[8192];
    size_t end = 0;
    const char *between = " ";
    line[0] = 0;
    for (const struct antiphon_mpi_plan *at = state->plans; at < state->plans + ANTIPHON_MPI_PLANS; at++) {
        if (at->calls == 0 || end >= sizeof line) continue;
        end += (size_t)snprintf(line + end, sizeof line - end, "%s%s %lu (%s)", between, antiphon_mpi_names[at->kind],
                                at->calls, at->name);
        between = ", ";
    }
    between = end ? "; to MPI: " : " to MPI: ";
    for (int kind = 0; kind < ANTIPHON_MPI_KINDS; kind++)
        for (int reason = 0; reason < ANTIPHON_MPI_REASONS; reason++) {
            unsigned long calls = state->passed[kind][reason];
            if (calls == 0 || end >= sizeof line) continue;
            end += (size_t)snprintf(line + end, sizeof line - end, "%s%s %lu (%s)", between, antiphon_mpi_names[kind], calls,
                                    reasons[reason]);
            between = ", ";
        }
    fprintf(stderr, "antiphon: rank 0 called%s\n", end ? line : " nothing");
}
