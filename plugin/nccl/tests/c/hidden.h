/* Functions that a library has and does not export. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* The address of a function that a library has, and does not export. Its name may be mangled: `part` is a part of it. */
static void *hidden(void *library, const char *part) {
    struct link_map *map;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map)) fail(dlerror());
    int file = open(map->l_name, O_RDONLY);
    struct stat status;
    if (file < 0 || fstat(file, &status)) fail(map->l_name);
    char *base = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (base == MAP_FAILED) fail("mmap");
    ElfW(Ehdr) *head = (ElfW(Ehdr) *)base;
    ElfW(Shdr) *sections = (ElfW(Shdr) *)(base + head->e_shoff);
    for (int at = 0; at < head->e_shnum; at++) {
        if (sections[at].sh_type != SHT_SYMTAB) continue;
        ElfW(Sym) *symbols = (ElfW(Sym) *)(base + sections[at].sh_offset);
        const char *names = base + sections[sections[at].sh_link].sh_offset;
        for (size_t i = 0; i < sections[at].sh_size / sizeof *symbols; i++) {
            const char *name = names + symbols[i].st_name;
            if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC && symbols[i].st_value && strstr(name, part) && !strstr(name, ".cold"))
                return (void *)(map->l_addr + symbols[i].st_value);
        }
    }
    return NULL;
}
