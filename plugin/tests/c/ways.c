/* How long messages travel.
 *
 *   ways FOLDER plain|denied|tcp|nowhere|rdma
 *
 * `denied`: the system does not let this process read the memory of others. Rank 0 writes FOLDER/statistics.json. */
#define _GNU_SOURCE
#include "common.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void deny(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0);
    char here, there = 0;
    struct iovec into = {&here, 1}, from = {&there, 1};
    CHECK(process_vm_readv(getpid(), &into, 1, &from, 1, 0) == -1 && errno == EPERM);
}

/* The communicator cannot be made, and the reason has this text. */
static void refused(const char *name, const char *value, const char *why) {
    antiphon_comm_t comm;
    CHECK(setenv(name, value, 1) == 0);
    CHECK(antiphon_comm_from_env(&comm) == ANTIPHON_INVALID_ARGUMENT);
    if (strstr(antiphon_last_error(), why) == NULL) fprintf(stderr, "%s\n", antiphon_last_error()), exit(1);
    exit(0);
}

int main(int count_of_words, char **words) {
    CHECK(count_of_words == 3);
    const char *way = words[2];
    char path[4096];
    snprintf(path, sizeof path, "%s/statistics.json", words[1]);
    CHECK(setenv("ANTIPHON_STATS", path, 1) == 0 && setenv("ANTIPHON_DEBUG", "info", 1) == 0);
    if (strcmp(way, "nowhere") == 0) refused("ANTIPHON_INTERFACE", "nowhere7", "; hint: it has ");
    if (strcmp(way, "rdma") == 0) refused("ANTIPHON_TRANSPORT", "rdma", "auto, shm and tcp");
    if (strcmp(way, "denied") == 0) deny();
    if (strcmp(way, "tcp") == 0) {
        CHECK(setenv("ANTIPHON_TRANSPORT", "tcp", 1) == 0 && setenv("ANTIPHON_INTERFACE", "127.0.0.0/8", 1) == 0);
    }
    antiphon_comm_t comm = join();
    size_t lengths[] = {3000, 70000, 300000};
    for (int round = 0; round < 12; round++) {
        size_t count = lengths[round % 3];
        int64_t *send = vector_of(count), *recv = vector_of(count * ranks);
        fill(send, count, own_rank);
        OK(antiphon_all_gather(send, recv, count, ANTIPHON_I64, comm));
        for (size_t at = 0; at < count * ranks; at++) CHECK(recv[at] == element(at / count, at % count));
        OK(antiphon_all_reduce(send, send, count, ANTIPHON_I64, ANTIPHON_SUM, comm));
        for (size_t at = 0; at < count; at++) CHECK(send[at] == sum_of(at));
        free(send), free(recv);
    }
    OK(antiphon_barrier(comm));
    OK(antiphon_comm_free(&comm));
    return 0;
}
