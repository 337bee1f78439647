/* Runs a kernel on an image of the memory of all ranks. The test puts the list KERNELS before it.
 *
 *   kernel IMAGE BASE GRID BLOCKS THREADS CALLS NAME
 *
 * The image is mapped at BASE, and written back after the calls. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct Start {
    HostBlock *block;
    unsigned thread, number, threads;
    void (*kernel)(const Block *);
    const Block *grid;
};

static void *begin(void *given) {
    const Start &start = *(const Start *)given;
    host_block = start.block;
    threadIdx.x = start.thread;
    blockIdx.x = start.number;
    blockDim.x = start.threads;
    start.kernel(start.grid);
    return nullptr;
}

static void launch(void (*kernel)(const Block *), const Block *grid, unsigned blocks, unsigned threads) {
    HostBlock *all = new HostBlock[blocks];
    Start *starts = new Start[blocks * threads];
    pthread_t *running = new pthread_t[blocks * threads];
    for (unsigned number = 0; number < blocks; number++) pthread_barrier_init(&all[number].barrier, nullptr, threads);
    for (unsigned at = 0; at < blocks * threads; at++) {
        starts[at] = {&all[at / threads], at % threads, at / threads, threads, kernel, grid};
        if (pthread_create(&running[at], nullptr, begin, &starts[at])) abort();
    }
    for (unsigned at = 0; at < blocks * threads; at++) pthread_join(running[at], nullptr);
    for (unsigned number = 0; number < blocks; number++) pthread_barrier_destroy(&all[number].barrier);
    delete[] all;
    delete[] starts;
    delete[] running;
}

int main(int count, char **args) {
    if (count != 8) return 2;
    auto number = [&](int at) { return strtoull(args[at], nullptr, 10); };
    int file = open(args[1], O_RDWR);
    struct stat status;
    if (file < 0 || fstat(file, &status)) return 3;
    void *base = (void *)number(2);
    if (mmap(base, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != base) return 4;
    void (*kernel)(const Block *) = nullptr;
    for (const NamedKernel &named : KERNELS) {
        if (!strcmp(args[7], named.name)) kernel = named.kernel;
    }
    if (!kernel) return 5;
    for (unsigned long long call = 0; call < number(6); call++) launch(kernel, (const Block *)number(3), number(4), number(5));
    return 0;
}
