"""Links of epochs of which a part was simulated, scaled to the whole."""

import pandas as pd
import pytest

from simshuffle.report.links import links_of_whole_epochs


def tables(simulated):
    """10 s of 25 iterations: cables at 100 B/s carried 500 B and 200 B; a server was in use for
    90 % of that. All iterations last ``simulated`` / 25 times as long, less 5 s."""
    epochs = pd.DataFrame(
        {"run": ["a"], "epoch": [1], "iterations": [250], "iterations_simulated": [simulated]}
    ).assign(epoch_s=95.0)
    links = pd.DataFrame({"run": ["a"] * 3, "epoch": [1] * 3, "link": ["x", "y", "opens"]}).assign(
        capacity=[100.0, 100.0, 50.0], nbytes=[500.0, 200.0, 0.0], mean_utilisation=[0.5, 0.2, 0.9]
    )
    return links, epochs


def test_bytes_and_use_are_those_of_all_iterations():
    """Ten times the iterations: 5,000 B and 2,000 B; 5,000 B at 100 B/s are 50 of 95 s, and the
    server works for 90 of them."""
    found = links_of_whole_epochs(*tables(25))
    assert found["nbytes"].tolist() == [5000.0, 2000.0, 0.0]
    assert found["mean_utilisation"].tolist() == pytest.approx([50 / 95, 20 / 95, 90 / 95])


def test_links_of_whole_epochs_stay_as_they_are():
    links, epochs = tables(250)
    assert links_of_whole_epochs(links, epochs) is links
