#!/usr/bin/env bash
# The main results from a fresh clone, and whether they are those that ARTIFACT.md names.
set -euo pipefail
cd "$(dirname "$0")/.."
make .venv/.installed
out=results/artifact
simshuffle=.venv/bin/simshuffle
"$simshuffle" run quickstart --out "$out/quickstart" --force
"$simshuffle" run paper/strategies --out "$out/strategies" --force
"$simshuffle" sweep abci-imagenet1k --out "$out/schedules" --force --over world_size=128,2048 --over \
  workload.exchange=local_shuffle,partial_local_shuffle:exchange_fraction=0.1,schedule=authors,partial_local_shuffle:exchange_fraction=0.1,schedule=streamlined
"$simshuffle" study validate --only testbed --out "$out/testbed" --force
"$simshuffle" results verify "$out/quickstart"
"$simshuffle" results verify "$out/strategies"
.venv/bin/python artifact/compare.py "$out"
