"""Tuning from Python, with functions of a program among the candidates."""

import json
import pathlib
import subprocess
import sys
import threading

import antiphon
import pytest
from ranks import together

COMMAND = pathlib.Path(sys.executable).with_name("antiphon")


def test_a_candidate_of_the_program_competes_and_wrong_ones_are_refused():
    said = together(
        2,
        """
import json, numpy as np
calls = []
def right(comm, call):
    assert call.x is call.out and call.collective == "all_reduce" and call.op == "sum" and call.dtype == "f64"
    calls.append(len(call.x))
    comm.all_reduce(call.out, call.op)
def wrong(comm, call):
    comm.all_reduce(call.out)
    if comm.rank == 1:
        call.out[0] += 1
def failing(comm, call):
    if comm.rank == 0:
        raise ValueError("not today")
    comm.all_reduce(call.out)
def gathering(comm, call):
    assert call.collective == "all_gather" and call.op is None and len(call.out) == 2 * len(call.x)
    comm.all_gather(call.x, call.out)
candidates = {"right": (right, ["all_reduce"]), "wrong": (wrong, ["all_reduce"]), "failing": (failing, ["all_reduce"]),
              "gathering": (gathering, ["all_gather"])}
tuning = comm.tune(candidates, collectives=["all_reduce", "all_gather"], sizes=[800, 8000], dtype="float64", budget=3.0, timeout=20.0)
assert len(calls) >= 5 and 100 in calls
assert tuning.table["format"] == "antiphon-table/1" and tuning.table["key"]["ranks"] == 2
# A guideline may ask for a half of an AllReduce, too.
assert {row["collective"] for row in tuning.rows} - {"reducescatter"} == {"allreduce", "allgather"}
assert "<table>" in tuning._repr_html_()
# Stock is one of the textbook algorithms, which is not measured again.
assert {one["collective"] for one in tuning.same if one["same_as"] == "stock"} >= {"allreduce", "allgather"}
x = np.full(100, 1.0 + rank)
assert (comm.all_reduce(x) == 3).all()
print(json.dumps(sorted({(one["name"], one["rank"], "not today" in one["why"]) for one in tuning.refused})))
""",
    )
    # Both ranks know the same table. What a rank knows of the failure of another is less than that rank itself.
    refused = [json.loads(line) for line in said]
    assert refused[0] == refused[1] == [["failing", 0, True], ["wrong", 1, False]]


def test_ranks_that_are_threads_tune_too(tmp_path):
    made = [None, None]

    def work(number, comm):
        made[number] = comm.tune({"mine": lambda comm, call: comm.all_reduce(call.out)}, collectives=["all_reduce"], sizes=[400], budget=0.5)

    threads = [threading.Thread(target=work, args=it) for it in enumerate(antiphon.Communicator.local(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0].table == made[1].table and made[0].refused == []
    made[0].save(tmp_path / "table.json")
    assert json.loads((tmp_path / "table.json").read_text()) == made[0].table
    assert list(tmp_path.iterdir()) == [tmp_path / "table.json"]


def test_what_makes_no_sense_is_refused():
    (comm,) = antiphon.Communicator.local(1)
    for wrong in [
        {"candidates": {"mine": 7}},
        {"when": {"nobody": bool}},
        {"candidates": {"mine": lambda comm, call: None}, "when": {"mine": 7}},
        {"collectives": ["all_sum"]},
        {"dtype": "float128"},
        {"op": "xor"},
        {"budget": 0.0},
        {"timeout": float("nan")},
    ]:
        with pytest.raises(antiphon.ArgumentError):
            comm.tune(**{"sizes": [64], "budget": 0.1, **wrong})


def table_with_function():
    """A table for two ranks on one machine that names a function for 100 float32 in place."""
    key = {"ranks": 2, "machines": [0, 0], "version": antiphon.__version__, "policy": 1}
    part = {"from_bytes": 400, "to_bytes": 401, "function": "mine", "dtype": "f32", "op": "sum", "evidence": []}
    ranges = [{"from_bytes": 0, "to_bytes": None, "plan": None, "evidence": []}]
    cells = [{"collective": "allreduce", "ranges": ranges, "functions": [part]}]
    return {"format": "antiphon-table/1", "key": key, "cells": cells, "plans": {}}


def test_a_function_serves_the_calls_for_which_the_table_names_it(tmp_path):
    table = tmp_path / "table.json"
    table.write_text(json.dumps(table_with_function()))
    said = together(
        2,
        """
import json, numpy as np
calls = []
def mine(comm, call):
    calls.append(call.x.size)
    comm.all_reduce(call.out)
comm.all_reduce(np.ones(100, np.float32), out=None)
before = len(calls)
names = comm.use_candidates({"mine": (mine, ["all_reduce"]), "other": mine})
def served(x, **how):
    before = len(calls)
    made = comm.all_reduce(x, out=how.pop("out", x), **how)
    if how.get("async_"):
        made.wait()
    assert (x == 2).all() or how.get("op") == "max"
    return len(calls) > before
ones = np.ones
print(json.dumps([before, names, served(ones(100, np.float32)), comm.last_plan(), served(ones(101, np.float32)), served(ones(50)),
                  served(ones(100, np.float32), op="max"), served(ones(100, np.float32), async_=True)]))
""",
        ANTIPHON_TABLE=str(table),
    )
    for line in said:
        plan = "allreduce of 100 f32: function mine, because the table names it"
        assert json.loads(line) == [0, ["mine"], True, plan, False, False, False, False]


@pytest.mark.skipif(not COMMAND.exists(), reason="the wheel has no command")
def test_a_candidate_that_hangs_or_crashes_is_quarantined(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import antiphon, os, time
def right(comm, call):
    comm.all_reduce(call.out)
def hanging(comm, call):
    while comm.rank == 1:
        pass
    comm.all_reduce(call.out)
def crashing(comm, call):
    if comm.rank == 1:
        os.abort()
    comm.all_reduce(call.out)
comm = antiphon.Communicator.from_env()
made = comm.tune({name: (function, ["all_reduce"]) for name, function in [("right", right), ("hanging", hanging), ("crashing", crashing)]})
assert made is None
"""
    )
    line = "tune --ranks 2 --collective allreduce,allgather --sizes 1KB --budget 4s --launches 1 --timeout 2s -o table.json --json --"
    run = subprocess.run([COMMAND, *line.split(), sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    refused = {one["name"]: (one["rank"], one["why"]) for one in told["refused"]}
    assert set(refused) == {"hanging", "crashing"} and all(rank == 1 for rank, _ in refused.values()), refused
    assert "did not return" in refused["hanging"][1] and "signal: 6" in refused["crashing"][1]
    assert {cell["collective"] for cell in json.loads((tmp_path / "table.json").read_text())["cells"]} == {"allreduce", "allgather"}


def test_a_predicate_says_which_calls_its_function_can_do(tmp_path):
    table = tmp_path / "table.json"
    said = table_with_function()
    said["cells"][0]["functions"][0]["to_bytes"] = 800
    table.write_text(json.dumps(said))
    lines = together(
        2,
        """
import json, numpy as np
calls, asked = [], []
def even(comm, call):
    assert call.count == len(call.x) and call.count % 2 == 0
    calls.append(call.count)
    comm.all_reduce(call.out)
def can(call):
    assert call.x is None and call.out is None
    asked.append((call.collective, call.op, call.root, call.dtype, call.count))
    if call.count == 150:
        raise ValueError("as a test")
    return call.count % 2 == 0
assert comm.use_candidates({"mine": (even, ["all_reduce"])}, when={"mine": can}) == ["mine"]
for count in (100, 101, 150, 98):
    assert (comm.all_reduce(np.ones(count, np.float32)) == 2).all()
# It may be asked more than once about a call.
served = [list(calls), list(dict.fromkeys(one[4] for one in asked)), asked[0][:4]]
calls.clear()
# 100 and 75 elements.
tuning = comm.tune({"even": (even, ["all_reduce"])}, when={"even": can}, collectives=["all_reduce"], sizes=[400, 300], budget=1.0, timeout=20.0)
assert calls and 100 in calls and tuning.refused == []
print(json.dumps(served))
""",
        ANTIPHON_TABLE=str(table),
    )
    for line in lines:
        assert json.loads(line) == [[100], [100, 101, 150], ["all_reduce", "sum", None, "f32"]]
