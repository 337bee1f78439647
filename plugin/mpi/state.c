/* The beginning and the end. */
#define _GNU_SOURCE /* getrandom, and addresses of interfaces */
#include "antiphon_mpi.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SECRET_BYTES = 32, LOOKS = 2000, MOST_MASTERS = 16 };

struct antiphon_mpi_state antiphon_mpi_state = {
    .comm = MPI_COMM_NULL, .tuned = MPI_COMM_NULL, .lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

/* How the ranks meet. */
struct meeting {
    char masters[MOST_MASTERS * (NI_MAXHOST + 8)]; /* where rank 0 listens, with commas */
    char secret[2 * SECRET_BYTES + 1];
};

static bool is_set(const char *variable) {
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* A port that no address of this machine uses; 0 if there is none. */
static unsigned free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_done = fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 &&
                   getsockname(fd, (struct sockaddr *)&address, &length) == 0;
    if (fd >= 0) close(fd);
    return is_done ? ntohs(address.sin_port) : 0;
}

/* Whether other machines may reach rank 0 there. */
static bool is_for_others(const struct ifaddrs *interface) {
    if (!interface->ifa_addr || !(interface->ifa_flags & IFF_UP) || interface->ifa_flags & IFF_LOOPBACK) return false;
    if (interface->ifa_addr->sa_family == AF_INET) return true;
    const struct sockaddr_in6 *address = (const void *)interface->ifa_addr;
    return interface->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr);
}

/* Adds the addresses of rank 0 that others may reach. Ranks try them in turn. */
static void list_masters(struct meeting *meeting, unsigned port) {
    struct ifaddrs *all = NULL;
    size_t length = 0, room = sizeof meeting->masters;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *interface = all; interface; interface = interface->ifa_next) {
        char host[NI_MAXHOST];
        if (!is_for_others(interface)) continue;
        bool is_v6 = interface->ifa_addr->sa_family == AF_INET6;
        socklen_t size = is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
        if (getnameinfo(interface->ifa_addr, size, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0) continue;
        const char *comma = length > 0 ? "," : "", *form = is_v6 ? "%s[%s]:%u" : "%s%s:%u";
        int added = snprintf(meeting->masters + length, room - length, form, comma, host, port);
        if (added < 0 || (size_t)added >= room - length) {
            meeting->masters[length] = 0;
            break;
        }
        length += (size_t)added;
    }
    freeifaddrs(all);
}

/* Leaves the masters empty if there are none. */
static void choose_meeting(struct meeting *meeting) {
    unsigned char bytes[SECRET_BYTES];
    unsigned port = free_port();
    if (port == 0 || getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) return;
    for (int index = 0; index < SECRET_BYTES; index++) snprintf(meeting->secret + 2 * index, 3, "%02x", bytes[index]);
    if (antiphon_mpi_state.is_one_machine)
        snprintf(meeting->masters, sizeof meeting->masters, "127.0.0.1:%u", port);
    else
        list_masters(meeting, port);
}

/* Whether someone has measured, or measures, what serves calls. */
static bool is_measured(void) {
    return is_set("ANTIPHON_MPI_TABLE") || is_set("ANTIPHON_MPI_TUNE") || is_set("ANTIPHON_TABLE");
}

/* What the ranks agree on: those that do not have the variable decide for all. Between machines, MPI may use a network that is faster
 * than TCP, so there libantiphon serves only if someone has measured; rank 0 says whether to look for that (is_useful). */
static bool is_wanted(int rank) {
    int wants[2] = {!is_set("ANTIPHON_DISABLE"), antiphon_mpi_state.is_one_machine || rank > 0 || is_measured()};
    PMPI_Allreduce(MPI_IN_PLACE, wants, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    const char *unmeasured = "the ranks are on several machines, and neither ANTIPHON_TABLE, ANTIPHON_MPI_TABLE nor "
                             "ANTIPHON_MPI_TUNE is set on rank 0";
    const char *why = !wants[0] ? "ANTIPHON_DISABLE is set" : !wants[1] ? unmeasured : NULL;
    if (why && rank == 0 && is_set("ANTIPHON_DEBUG"))
        fprintf(stderr, "antiphon: all calls go to MPI: %s\n", why);
    return !why;
}

/* How many ranks are on this machine. */
static int ranks_here(int rank) {
    MPI_Comm node;
    int here;
    PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    PMPI_Comm_size(node, &here);
    PMPI_Comm_free(&node);
    return here;
}

/* Whether libantiphon is to serve these ranks now that they have met. Between machines, a table that is for other ranks, or could not be
 * made, is none. */
static bool is_useful(int rank, antiphon_comm_t handle) {
    const struct antiphon_mpi_state *state = &antiphon_mpi_state;
    int has_table = 0;
    if (state->is_one_machine || state->compares || state->has_table) return true;
    if (antiphon_comm_has_table(handle, &has_table) == ANTIPHON_SUCCESS && has_table) return true;
    if (rank == 0)
        fprintf(stderr, "antiphon: all calls go to MPI: the ranks are on several machines, and there is no table for them\n");
    return false;
}

/* A rank of an MPI program may come to a call after hours, so there is no limit unless the environment sets one. */
static antiphon_result_t connect_patiently(int rank, int size, const struct meeting *meeting, antiphon_comm_t *handle) {
    antiphon_result_t result = antiphon_comm_connect(rank, size, meeting->masters, meeting->secret, handle);
    if (result == ANTIPHON_SUCCESS && !getenv("ANTIPHON_TIMEOUT")) antiphon_comm_set_timeout(*handle, INFINITY);
    return result;
}

static bool connect_ranks(int rank, int size, antiphon_comm_t *handle) {
    struct meeting meeting = {0};
    if (rank == 0) choose_meeting(&meeting);
    PMPI_Bcast(&meeting, sizeof meeting, MPI_BYTE, 0, MPI_COMM_WORLD);
    const char *why = "rank 0 has no port or address for others, or no random numbers";
    antiphon_result_t result = ANTIPHON_SYSTEM;
    if (meeting.masters[0]) {
        result = connect_patiently(rank, size, &meeting, handle);
        why = antiphon_last_error();
    }
    int failed = result == ANTIPHON_SUCCESS ? size : rank, first;
    PMPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (first == rank) fprintf(stderr, "antiphon: all calls go to MPI: rank %d could not connect: %s\n", rank, why);
    if (first == size) return true;
    if (result == ANTIPHON_SUCCESS) antiphon_comm_free(handle);
    return false;
}

/* MPI calls this when MPI_Finalize begins, whoever has called it: wrappers of other languages do not come here first. */
static int end(MPI_Comm comm, int keyval, void *attribute, void *extra) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    int rank;
    (void)comm, (void)keyval, (void)attribute, (void)extra;
    if (!state->is_active) return MPI_SUCCESS;
    antiphon_mpi_stop();
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (state->wants_statistics && rank == 0) antiphon_mpi_report();
    antiphon_mpi_end_choices();
    /* A rank that has left may be missed by one that is still in its last call. */
    PMPI_Barrier(state->comm);
    state->is_active = false;
    for (struct antiphon_mpi_group *group = state->groups, *next; group; group = next) {
        next = group->next;
        if (group->comm != MPI_COMM_NULL) PMPI_Comm_delete_attr(group->comm, state->keyval);
    }
    antiphon_mpi_end_table();
    PMPI_Comm_free(&state->comm);
    PMPI_Comm_free_keyval(&state->keyval);
    PMPI_Comm_free_keyval(&state->end);
    return MPI_SUCCESS;
}

void antiphon_mpi_start(void) {
    struct antiphon_mpi_state *state = &antiphon_mpi_state;
    antiphon_comm_t handle = NULL;
    int rank, size;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) return;
    int here = ranks_here(rank);
    state->is_one_machine = here == size;
    if (!is_wanted(rank) || !connect_ranks(rank, size, &handle)) return;
    const char *debug = getenv("ANTIPHON_DEBUG");
    state->wants_statistics = debug && strcmp(debug, "info") == 0;
    state->looks = sysconf(_SC_NPROCESSORS_ONLN) >= here ? LOOKS : 1;
    antiphon_mpi_begin_choices(rank);
    antiphon_mpi_know_types();
    PMPI_Comm_dup(MPI_COMM_WORLD, &state->comm);
    /* It fails only where it was done before. */
    antiphon_comm_set_idle(handle, antiphon_mpi_awaiting, NULL);
    if (!antiphon_mpi_begin_table(rank, size, handle) || !is_useful(rank, handle)) {
        antiphon_comm_free(&handle);
        antiphon_mpi_end_table();
        antiphon_mpi_end_choices();
        PMPI_Comm_free(&state->comm);
        return;
    }
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, antiphon_mpi_forget, &state->keyval, NULL);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end, &state->end, NULL);
    PMPI_Comm_set_attr(MPI_COMM_SELF, state->end, state);
    int is_attached = antiphon_mpi_attach(MPI_COMM_WORLD, handle) == MPI_SUCCESS;
    PMPI_Allreduce(MPI_IN_PLACE, &is_attached, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    state->is_active = is_attached;
}

int MPI_Init(int *argc, char ***argv) {
    int code = PMPI_Init(argc, argv);
    if (code == MPI_SUCCESS) antiphon_mpi_start();
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS) antiphon_mpi_start();
    return code;
}
