"""Runs PyTorch's own tests of backends (`torch.testing._internal.distributed.distributed_test`) with the backend antiphon:

    python pytorch_suite.py RANKS [PART OF A NAME …]

Ranks are forked, so a test takes half a second. It prints a line for each test that was not skipped: `ok NAME` or `failed NAME`, then what
went wrong.
"""

import os
import pathlib
import sys
import tempfile
import unittest
from datetime import timedelta

SECONDS = 60


def main(ranks: str, parts: list[str], folder: pathlib.Path) -> None:
    (folder / "barrier").touch()
    (folder / "test_dir").mkdir()
    # Tests that are for some backends only are those of Gloo, which is for CPU tensors too.
    os.environ.update(BACKEND="gloo", WORLD_SIZE=ranks, TEMP_DIR=str(folder), OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")
    import torch.distributed as dist
    import torch.multiprocessing
    import torch.testing._internal.distributed.distributed_test as suite

    class WithAntiphon(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, test_name, file_name, pipe, **_):
            test = cls(test_name)
            test.rank, test.file_name = rank, file_name
            limit = timedelta(seconds=suite.CUSTOM_PG_TIMEOUT.get(test_name, SECONDS))
            own = {"init_method": test.init_method, "world_size": int(ranks), "rank": rank, "timeout": limit}
            dist.init_process_group("antiphon", **own)
            test._barrier()
            test.run_test(test_name, pipe)
            test._barrier()
            dist.destroy_process_group()
            os._exit(0)

    for name in unittest.TestLoader().getTestCaseNames(WithAntiphon):
        is_wanted = not parts or any(part in name for part in parts)
        if is_wanted and "cuda" not in name and "nccl" not in name:
            report(name, WithAntiphon(name), folder / "output")


def report(name: str, test: unittest.TestCase, output: pathlib.Path) -> None:
    """Runs a test; what the ranks print is shown if it fails."""
    result = unittest.TestResult()
    sys.stdout.flush()
    own = [os.dup(1), os.dup(2)]
    with output.open("w") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
        test.run(result)
        for standard, kept in zip((1, 2), own):
            os.dup2(kept, standard)
            os.close(kept)
    faults = [text for _, text in result.failures + result.errors]
    if faults:
        print(f"failed {name}\n{output.read_text(errors='replace')}", *faults, sep="\n", flush=True)
    elif not result.skipped:
        print(f"ok {name}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(sys.argv[1], sys.argv[2:], pathlib.Path(made))
