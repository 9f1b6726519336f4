"""Every verb that takes a scenario answers for the runs of its sweep, or refuses: none answers
silently for the scenario without it."""

from typing import Any

import pytest

from simshuffle.errors import InputError
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.swept import runs_followed, single_run
from simshuffle.studies.participants import read_participants
from simshuffle.study.options import fill_options
from simshuffle.study.registry import own_verbs
from simshuffle.study.study import Request
from tests.shared import needs_extensions
from tests.small import small

OPTIONS: dict[str, dict[str, Any]] = {
    "study loader": {},
    "study ablate": {
        "start": "importance_exchange:schedule=authors",
        "end": "importance_pair:schedule=authors",
        "seeds": 1,
    },
    "study oracle": {"strategies": ["data"]},
}
"""What the verbs are asked beside the scenario."""
ELSEWHERE = {"study tta", "study validate", "train"}
"""Verbs that take a training too, and those whose sweeps other tests look at."""
SAID = {("congestion", "workload.exchange"), ("plan", "world_size"), ("plan", "workload.exchange")}
"""Verbs that choose one value of a swept key, and say which."""
PARTIAL = "partial_local_shuffle:exchange_fraction"


def asked(name: str, scenario: Scenario) -> Request[Any]:
    verb = own_verbs()[name]
    values = {"scenario": scenario, **OPTIONS.get(name, {})}
    return verb.make_request(fill_options(verb.options, values, name))[1]


def verbs_of_a_scenario() -> list[str]:
    """Verbs with an argument that is a scenario."""
    return [
        name
        for name, verb in own_verbs().items()
        if "scenario" in verb.options.__dataclass_fields__ and name not in ELSEWHERE
    ]


def swept(**axes: list[Any]) -> Scenario:
    scenario = small(
        workload__model="vgg16",
        workload__checkpoint=CHECKPOINT,
        workload__exchange=f"{PARTIAL}=0.1",
    )
    return scenario.model_copy(
        update={"sweep": {key.replace("__", "."): values for key, values in axes.items()}}
    )


CHECKPOINT = {"period": "30 min", "mode": "synchronous", "layout": "sharded"}
AXES = {
    "seed": [3, 4],
    "world_size": [6, 5],
    "workload.local_batch_size": [10, 5],
    "workload.exchange": ["local_shuffle", f"{PARTIAL}=0.1", f"{PARTIAL}=0.3,schedule=authors"],
}


@pytest.mark.parametrize("key", AXES)
@pytest.mark.parametrize("name", verbs_of_a_scenario())
def test_a_verb_follows_a_sweep_or_refuses_it_or_does_not_depend_on_it(name, key):
    """The first value alone and all values must not be asked alike, unless each alone is."""
    if (name, key) in SAID:
        pytest.skip("has a test of its own")
    axis = {key.replace(".", "__"): AXES[key]}
    try:
        whole = decided(asked(name, swept(**axis)))
    except InputError as error:
        said = str(error)
        assert key in said or "--start" in said
        # the remedy is one that helps
        assert f"--set '{key}={AXES[key][0]}'" in said or "exchange_fraction=0.1" in said
        asked(name, swept(**axis).with_values({key: AXES[key][1]}))
        return
    single = [decided(asked(name, swept().with_values({key: value}))) for value in AXES[key]]
    alike = all(each == single[0] for each in single)
    assert alike or whole not in single


def decided(request: Request[Any]) -> str:
    """What decides the cells of a request, in words."""
    documents = "".join(request.documents.values())
    return f"{documents} {request.asked} {request.values}"


@needs_extensions
def test_a_sweep_of_one_value_is_that_value():
    for name in ("study oracle", "accuracy", "study hiding"):
        assert decided(asked(name, swept(seed=[5]))) == decided(
            asked(name, swept().with_values({"seed": 5}))
        )


def test_runs_of_other_keys_are_refused_with_all_of_them():
    scenario = swept(**{"seed": [1, 2], "workload__local_batch_size": [5, 10], "epochs": [2]})
    with pytest.raises(InputError) as caught:
        single_run(scenario, "simshuffle study oracle")
    message = str(caught.value)
    assert "sweep.seed" in message and "sweep.workload.local_batch_size" in message
    assert "epochs" not in message
    assert "is not followed by simshuffle study oracle" in message
    assert len(runs_followed(scenario, "a verb", ("seed", "workload"))) == 4


def test_a_collective_of_several_sizes_is_refused_unless_the_hosts_are_named(tmp_path):
    path = tmp_path / "swept.yaml"
    path.write_text(swept(world_size=[2, 4]).to_yaml())
    with pytest.raises(InputError, match=r"sweep\.world_size"):
        read_participants(str(path), {}, None, None)
    assert read_participants(str(path), {}, 3, None).world_size == 3 * small().cluster.host.gpus
    assert read_participants(str(path), {"world_size": 2}, None, None).world_size == 2


@needs_extensions
def test_verbs_that_choose_one_of_the_swept_values_say_which():
    exchanges = swept(workload__exchange=AXES["workload.exchange"])
    congestion = asked("congestion", exchanges)
    assert congestion.about == "All patterns send the samples of partial-0.1 streamlined."
    plan = asked("plan", swept(world_size=[6, 5]))
    assert plan.about.startswith("This is for 8 ranks, the scenario's own number")
    assert "--set world_size=6" in plan.about
