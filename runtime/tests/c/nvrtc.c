/* Compiles a CUDA source with NVRTC, which needs neither a GPU nor a driver.
 *
 *   nvrtc LIBNVRTC SOURCE ARCH OUT     ARCH is sm_80 for a cubin, or compute_80 for PTX
 *
 * Headers are those in the folder of the source. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc_program *nvrtc_program_t;

static void *library;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why ? why : "");
    exit(1);
}

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail("NVRTC has no function", name);
    return found;
}

int main(int count, char **args) {
    if (count != 5) fail("usage", "nvrtc LIBNVRTC SOURCE ARCH OUT");
    library = dlopen(args[1], RTLD_NOW);
    if (!library) fail("dlopen", dlerror());
    FILE *file = fopen(args[2], "r");
    static char source[1 << 20];
    if (!file || fread(source, 1, sizeof source - 1, file) == 0) fail("no source", args[2]);
    int (*create)(nvrtc_program_t *, const char *, const char *, int, const char **, const char **) = function("nvrtcCreateProgram");
    int (*compile)(nvrtc_program_t, int, const char **) = function("nvrtcCompileProgram");
    int (*log_size)(nvrtc_program_t, size_t *) = function("nvrtcGetProgramLogSize");
    int (*get_log)(nvrtc_program_t, char *) = function("nvrtcGetProgramLog");
    int is_ptx = strncmp(args[3], "compute_", 8) == 0;
    int (*size_of)(nvrtc_program_t, size_t *) = function(is_ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize");
    int (*get)(nvrtc_program_t, char *) = function(is_ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN");
    nvrtc_program_t program;
    if (create(&program, source, args[2], 0, NULL, NULL)) fail("nvrtcCreateProgram", NULL);
    char arch[64], folder[4096];
    snprintf(arch, sizeof arch, "-arch=%s", args[3]);
    snprintf(folder, sizeof folder, "-I%s", args[2]);
    char *name = strrchr(folder, '/');
    if (name) *name = 0;
    const char *options[] = {arch, folder, "-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "--ptxas-options=-v"};
    int failed = compile(program, sizeof options / sizeof *options, options);
    size_t size = 0;
    static char log[1 << 20];
    if (log_size(program, &size) == 0 && size <= sizeof log && get_log(program, log) == 0) fputs(log, stdout);
    if (failed) fail("nvrtcCompileProgram", args[2]);
    if (size_of(program, &size)) fail("size", NULL);
    char *code = malloc(size);
    if (!code || get(program, code)) fail("result", NULL);
    /* PTX ends with a zero. */
    if (is_ptx) size = strlen(code);
    FILE *out = fopen(args[4], "w");
    if (!out || fwrite(code, 1, size, out) != size || fclose(out)) fail("cannot write", args[4]);
    return 0;
}
