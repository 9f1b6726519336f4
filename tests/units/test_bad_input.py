"""Bad input that no row of `tests/data/refusals*.txt` can hold."""

import copy

import pytest

from simshuffle.errors import ScenarioError
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.spec.library import write_yaml


def test_check_refuses_what_run_refuses_with_the_same_words(refused):
    for assignment in (
        "world_size=5000",
        "cluster.ssd.capacity=100",
        "sweep={world_size: [8, many]}",
    ):
        arguments = ["quickstart", "--set", assignment]
        assert refused(["check", *arguments]) == refused(["run", *arguments])


def test_a_shard_that_does_not_fit_counts_what_is_received(refused):
    # 4 ranks of 8 a host: half of 65,000 x 30,769 B is 1 GB, and a tenth more
    setting = ["--set", "world_size=8", "--set", "cluster.ssd.capacity=1.05 GB"]
    message = refused(
        [
            "run",
            "quickstart",
            *setting,
            "--set",
            "workload.exchange=partial_local_shuffle:exchange_fraction=0.1",
        ]
    )
    assert all(text in message for text in ("  - workload.exchange: ", "1.1 GB", "1.05 GB"))


# -------------------------------------------------------------------------------------------- files


def test_a_binary_file_and_an_endless_nesting_are_no_scenario(refused):
    binary = refused(["run", "s.yaml"], {"s.yaml": bytes(range(256))})
    assert all(text in binary for text in ("s.yaml: ", "UTF-8", "other bytes", "Save it"))
    assert "within one another" in refused(["run", "s.yaml"], {"s.yaml": "[" * 20000})


def leaves(values, path=()):
    """Key paths of a nested dict, inner and outer."""
    out = []
    for key, value in values.items():
        out.append((*path, key))
        if isinstance(value, dict) and key != "source":
            out += leaves(value, (*path, key))
    return out


RESOLVED = load_scenario(
    "abci-imagenet1k", {"cluster": "small-fat-tree", "world_size": 8, "workload.allreduce.rings": 1}
).to_dict()
# the size of a network is built as it is asked for, so only small numbers there
SIZES = {"levels", "arity", "hosts", "links_per_switch", "gpus", "hcas"}


@pytest.mark.parametrize(
    "value", [None, {}, "~nobody-of-that-name/y", 10**400, -1], ids=lambda v: repr(v)[:30]
)
def test_every_key_refuses_or_takes_what_it_was_not_made_for(value, tmp_path):
    broken = {}
    for path in leaves(RESOLVED):
        if path[-1] in SIZES and value == 10**400:
            continue  # the network is built as large as it is asked for
        values = copy.deepcopy(RESOLVED)
        at = values
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value
        (tmp_path / "s.yaml").write_text(write_yaml(values))
        try:
            load_scenario(tmp_path / "s.yaml")
        except ScenarioError:
            continue
        except Exception as error:  # noqa: BLE001
            broken[".".join(path)] = f"{type(error).__name__}: {error}"
    assert broken == {}
