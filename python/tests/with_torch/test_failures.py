"""Ranks of a training job that die, and jobs that are started again."""

import pytest
from torchrun import IS_OLD, says, torchrun


def test_a_killed_rank_is_named_by_all_others(tmp_path):
    code = """
import signal
x = torch.ones(100)
dist.all_reduce(x)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        CALL
except Exception as error:
    with open(os.path.join(os.environ["FOLDER"], f"{rank}"), "w") as file:
        file.write(f"{type(error).__name__}: {error}")
os._exit(0)
"""
    for name, call in [("blocking", "dist.all_reduce(x)"), ("async", "dist.all_reduce(x, async_op=True).wait()")]:
        folder = tmp_path / name
        folder.mkdir()
        _, run = torchrun(folder, 3, code.replace("CALL", call), end=False, FOLDER=str(folder))
        assert run.returncode != 0
        for rank in (0, 2):
            text = (folder / str(rank)).read_text()
            assert text.startswith("PeerLostError: ") and "rank 1" in text, text


def test_elastic_torchrun_starts_a_job_again(tmp_path):
    said, run = torchrun(
        tmp_path,
        2,
        """
import signal
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
x = torch.ones(10)
dist.all_reduce(x)
if attempt == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(10):
    dist.all_reduce(x)
say("attempt", attempt, x[0].item())
""",
        options=["--max-restarts", "2"],
    )
    assert run.returncode == 0, run.stderr
    assert said == ["attempt 1 2048.0"]


def test_who_does_not_come_is_named(tmp_path):
    said = says(
        tmp_path,
        2,
        """
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    try:
        dist.all_reduce(torch.ones(3))
    except Exception as error:
        say(type(error).__name__, "rank 1" in str(error))
    store.set("over", "yes")
else:
    store.wait(["over"], datetime.timedelta(seconds=60))
""",
        LIMIT="1",
    )
    assert said == ["TimeoutError_ True"]


@pytest.mark.skipif(IS_OLD, reason="PyTorch 1.13 counts the ranks of both groups under one name")
def test_a_group_can_be_made_again_in_the_same_process(tmp_path):
    said = says(
        tmp_path,
        2,
        """
x = torch.ones(3)
dist.all_reduce(x)
dist.destroy_process_group()
dist.init_process_group(BACKEND, timeout=limit)
dist.all_reduce(x)
say(x.tolist())
""",
    )
    assert said == ["[4.0, 4.0, 4.0]"]
