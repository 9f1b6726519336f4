"""A loader of `loaders` for `study audit`, which knows no laws: with_law.py NAME LAW, a law
as JSON."""

import importlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "loaders"))
LAW = json.loads(sys.argv[2])
loader = importlib.import_module(sys.argv[1])
state = loader.state


def make(run):
    run.law = LAW
    return loader.make(run)


def resume(run, states):
    run.law = LAW
    return loader.resume(run, states)
