"""Planning from Python."""

import antiphon
import pytest
from antiphon import _command
from ranks import together

pytestmark = pytest.mark.skipif(_command.path() is None, reason="this wheel was built without the command")


def test_a_plan_says_how_good_it_is():
    topology = antiphon.Topology("ring:4")
    assert topology.ranks == 4 and topology.machines == [[0, 1, 2, 3]]
    assert [(link["from"], link["to"]) for link in topology.links] == [(0, 1), (1, 2), (2, 3), (3, 0)]
    plan = antiphon.synthesize(topology, "allgather", 1_000_000)
    # Three messages of a quarter over each link: α = 0.5 µs, 0.00002 µs for each byte.
    assert plan.makespan == pytest.approx(3 * (0.5 + 250_000 * 0.00002))
    assert plan.bound <= plan.makespan and plan.gap == pytest.approx(plan.makespan / plan.bound - 1)
    assert max(transfer["end_us"] for transfer in plan.timeline) == pytest.approx(plan.makespan)
    assert len(plan.timeline) == 12 and "ring:4" in repr(plan)


def test_topologies_and_plans_draw_themselves():
    import xml.etree.ElementTree as tree

    topology = antiphon.Topology("ring:4")
    assert tree.fromstring(topology._repr_svg_()).tag.endswith("svg")
    plan = antiphon.synthesize("ring:4", "allgather", "1MB", strategy="classic")
    picture = tree.fromstring(plan._repr_svg_())
    assert sum(1 for part in picture.iter() if part.tag.endswith("rect")) == len(plan.timeline)
    assert "<svg" in plan._repr_html_()


def test_nonsense_is_refused_with_what_is_known():
    with pytest.raises(antiphon.ArgumentError, match="unknown topology `nonsense`.*ndv2"):
        antiphon.Topology("nonsense:4")
    with pytest.raises(antiphon.Error, match="everywhere"):
        antiphon.synthesize("ring:4", "everywhere", "1MB")


def test_a_plan_is_what_communicators_run(tmp_path):
    plan = antiphon.synthesize("clique:2", "allgather", "64KB")
    plan.save(tmp_path / "plan.json")
    said = together(
        2,
        """
import numpy as np
got = comm.all_gather(np.full(8000, rank, np.float32))
assert (got[:8000] == 0).all() and (got[8000:] == 1).all()
print(comm.last_plan())
""",
        ANTIPHON_TABLE=str(tmp_path / "plan.json"),
    )
    assert all("no table" not in line for line in said), said
