"""Near partners pay where the network has most to do, and only there. None of it is put in;
docs/mechanisms.md has 1024 GPUs."""

import pytest

from simshuffle import load_scenario, run

FEW = {"world_size": 256, "workload.dataset.num_samples": 5120, "epochs": 1}
SCOPES = ("all", "rack", "leaf", "host")


def epochs(**values):
    """Seconds of the epoch by scope of the partners."""
    result = run(
        load_scenario(
            "paper/near-partners",
            FEW | {key.replace("__", "."): value for key, value in values.items()},
        )
    )
    return {
        scope: result.epochs.loc[
            result.epochs["run"].str.endswith(f"partner_scope={scope}"), "epoch_s"
        ].item()
        for scope in SCOPES
    }


def test_what_is_sent_behind_the_computing_costs_the_same_with_all_partners():
    seconds = epochs()
    assert max(seconds.values()) == pytest.approx(min(seconds.values()), rel=0.02)


def test_what_is_waited_for_costs_less_the_nearer_the_partner():
    seconds = epochs(workload__exchange__schedule__overlap=False)
    assert seconds["all"] > 1.02 * seconds["rack"]
    assert seconds["rack"] > seconds["leaf"] > seconds["host"]
