"""Installs PyTorch in the virtual environment whose Python runs this, for tests on a computer without a GPU.

    venv/bin/python tests/with_torch/install_torch.py [VERSION]

PyPI has only builds of PyTorch for CUDA, which want gigabytes of libraries that CPU tensors never call. So this installs PyTorch
without what it depends on, CUDA's small runtime, and in place of each library that is missing then one that has all its functions,
each of which ends the process with its name.
"""

import pathlib
import re
import subprocess
import sys
import sysconfig

PLAIN = ["filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions"]
RUNTIMES = {"2.8": "nvidia-cuda-runtime-cu12==12.8.*"}
#: Versions of symbols that the system's libraries define.
SYSTEM = ("GLIBC", "CXXABI", "GCC", "GOMP", "OMP", "QUADMATH", "GFORTRAN", "ZLIB")


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def lines_of(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def undefined(library: pathlib.Path) -> set[str]:
    """Functions that a library takes from libraries that are not the system's."""
    found = set()
    for line in lines_of("readelf", "--dyn-syms", "-W", str(library)):
        words = line.split()
        if len(words) >= 8 and words[6] == "UND" and words[4] == "GLOBAL":
            name, _, version = words[7].partition("@")
            if not version.lstrip("@").startswith(SYSTEM):
                found.add(name)
    return found


def defined(library: pathlib.Path) -> set[str]:
    words = (line.split() for line in lines_of("readelf", "--dyn-syms", "-W", str(library)))
    return {row[7].partition("@")[0] for row in words if len(row) >= 8 and row[6] not in ("UND", "Ndx")}


def needed(library: pathlib.Path) -> set[str]:
    dynamic = "\n".join(lines_of("readelf", "-d", str(library)))
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))


def main(version: str | None) -> None:
    runtime = RUNTIMES.get(".".join((version or "").split(".")[:2]), "nvidia-cuda-runtime==13.*")
    pip("--no-deps", f"torch=={version}" if version else "torch", runtime)
    pip(*PLAIN)
    site = pathlib.Path(sysconfig.get_path("purelib"))
    torch = site / "torch"
    libraries = [*torch.glob("*.so"), *torch.glob("lib/*.so*")]
    present = [*libraries, *site.glob("nvidia/**/*.so*")]
    # The driver is not replaced: whether it is there is how PyTorch finds out that there is no GPU.
    vendor = re.compile(r"lib(cu|nv|nccl).*\.so")
    missing = {name for library in libraries for name in needed(library) if vendor.match(name)}
    missing -= {library.name for library in present} | {"libcuda.so.1"}
    of_vendor = [library for library in libraries if needed(library) & missing]
    names = set.union(*map(undefined, of_vendor)) - set.union(*map(defined, present))
    names = sorted(name for name in names if re.match(r"(cu|nv|nccl|Nccl|NV)", name) and name.isidentifier())
    source = torch / "lib" / "missing.c"
    functions = "".join(f"void {name}(void) {{ missing(__func__); }}\n" for name in names)
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "static void missing(const char *name) {\n"
        '    fprintf(stderr, "%s: the library that has it is not installed\\n", name);\n    abort();\n}\n' + functions
    )
    stub = torch / "lib" / "libmissing.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-w", "-o", stub, source], check=True)
    for name in sorted(missing):
        link = torch / "lib" / name
        link.unlink(missing_ok=True)
        link.symlink_to(stub.name)
    said = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True)
    print(f"torch {said.stdout.strip()}: {len(names)} functions of {len(missing)} libraries end the process")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
