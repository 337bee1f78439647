"""The command ``antiphon``, which the wheel has inside."""

from __future__ import annotations

import os
import pathlib
import sys


def path() -> pathlib.Path | None:
    """Where the command is, if this wheel has it."""
    found = pathlib.Path(__file__).with_name("bin") / "antiphon"
    return found if found.is_file() else None


def main() -> None:
    """Becomes the command."""
    found = path()
    if found is None:
        sys.exit("antiphon: this wheel was built without the command; `make wheel` builds one that has it")
    if not os.access(found, os.X_OK):
        found.chmod(0o755)
    os.execv(found, ["antiphon", *sys.argv[1:]])


if __name__ == "__main__":
    main()
