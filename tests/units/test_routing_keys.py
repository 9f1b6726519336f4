"""The key `cluster.routing`: its short form, what is warned of, and where the routing that was used
is named."""

import json

import pytest

from simshuffle import run
from simshuffle.cli import main
from simshuffle.fabric.routing import Ecmp, UpDown
from simshuffle.job.scenario.scenario import from_dict, load_scenario
from simshuffle.studies.simulation.text import list_notes
from tests.small import small

PLAIN = {"sweep": {}, "workload.exchange": "local_shuffle"}


def checked(*values, code=0):
    sets = [f"{key}={value}" for key, value in PLAIN.items()] + list(values)
    assert (
        main(["check", "quickstart", *(part for text in sets for part in ("--set", text))]) == code
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ecmp", Ecmp()),
        ("ecmp:queue_pairs=4", Ecmp(queue_pairs=4)),
        ("ecmp:queue_pairs=4,ports=64,salt=none", Ecmp(queue_pairs=4, ports=64, salt="none")),
        ({"kind": "ecmp", "ports": 64}, Ecmp(ports=64)),
        ("up_down", UpDown()),
        ({"kind": "up_down", "roots": ["spine.0"]}, UpDown(roots=["spine.0"])),
    ],
)
def test_the_short_form_names_a_routing(text, rule):
    scenario = load_scenario("quickstart", {**PLAIN, "cluster.routing": text})
    assert scenario.cluster.routing == rule
    assert from_dict(scenario.to_dict(), "again") == scenario


def test_a_key_of_a_named_routing_can_be_set_and_swept():
    base = load_scenario("quickstart", {**PLAIN, "cluster.routing": "ecmp"})
    assert base.with_values({"cluster.routing.queue_pairs": 3}).cluster.routing.queue_pairs == 3
    runs = base.combinations({"cluster.routing": ["d_mod_k", "ecmp:queue_pairs=4"]})
    assert [single.cluster.routing.kind for single in runs.values()] == ["d_mod_k", "ecmp"]
    assert len(runs) == 2


def test_no_routing_is_named_by_default():
    scenario = load_scenario("quickstart", PLAIN)
    assert scenario.cluster.routing is None
    assert "routing" not in scenario.to_dict()["cluster"]


def test_check_names_the_routing_of_each_run(capsys):
    checked()
    assert "Routing: d_mod_k.\n" in capsys.readouterr().out
    checked("cluster.routing=ecmp:queue_pairs=4")
    told = capsys.readouterr().out
    assert "Routing: ecmp (queue_pairs 4, ports 16384, salt per_switch).\n" in told
    assert "Warning" not in told
    checked('sweep={"cluster.routing": [d_mod_k, min_hop]}')
    told = " ".join(capsys.readouterr().out.split())
    assert "Routing: d_mod_k (local @64 routing=d_mod_k)." in told
    assert "Routing: min_hop (local @64 routing=min_hop)." in told


def test_check_warns_of_polarisation(capsys):
    checked("cluster.routing=ecmp:salt=none")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Warning" in line]
    assert line.startswith(
        "Warning: cluster.routing.salt: lets switches on one route make the same"
    )
    assert "got none. Write per_switch" in line
    # on two levels no way has two choices; nor has a run on one host any way
    keys = '"kind": fat_tree, levels: 2, arity: 18, link_bandwidth: 12.5 GB/s'
    tree = f"cluster.topology={{{keys}}}"
    one_hca = ["cluster.host.hcas=1", "workload.allreduce.rings=1"]
    checked("cluster.routing=ecmp:salt=none", tree, *one_hca)
    assert "Warning" not in capsys.readouterr().out
    checked("cluster.routing=ecmp:salt=none", "world_size=4")
    assert "Warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("routing", "told"),
    [(None, "d_mod_k"), ("random_static", "random_static"), ({"kind": "adaptive"}, "adaptive")],
)
def test_a_result_names_the_routing_that_was_used(routing, told):
    given = {} if routing is None else {"cluster__routing": routing}
    result = run(small(**given))
    (facts,) = result.meta["runs"].values()
    assert facts["routing"].startswith(told)
    assert f", routing {facts['routing']}." in list_notes(result)[0]
    assert json.dumps(facts["routing"])
