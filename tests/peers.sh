#!/usr/bin/env bash
# The tests that hold recorded answers against the programs that gave them: `make peers`.
# Each set of libraries has an environment of its own, as they contradict each other. Debian has
# the programs: apt-get install opensm ibsim-utils simgrid libsimgrid-dev
set -euo pipefail
cd "$(dirname "$0")/.."
HOME_OF=.venv-peers
: "${PYTHON:=python3}"
export SIMSHUFFLE_PEERS=1  # without it these tests are skipped

# peers NAME "WITH THEIR NEEDS" "WITHOUT" TEST...: a set, and its tests, none of which may be skipped
peers() {
  local name=$1 libraries=$2 alone=$3 bin=$HOME_OF/$1/bin
  shift 3
  echo "== $name: $libraries $alone"
  [ -x "$bin/python" ] || "$PYTHON" -m venv "$HOME_OF/$name"
  # shellcheck disable=SC2086  # several words each
  "$bin/pip" install --quiet --disable-pip-version-check --constraint constraints-test.txt \
    --editable . pytest hypothesis $libraries
  "$bin/pip" uninstall --quiet --yes torchvision
  # shellcheck disable=SC2086
  [ -z "$alone" ] || "$bin/pip" install --quiet --disable-pip-version-check --no-deps \
    --constraint constraints-test.txt $alone
  tests "$bin/python" "$@"
}

tests() {
  local python=$1 report
  shift
  report=$("$python" -m pytest -q -rs -p no:cacheprovider "$@" | tee /dev/stderr)
  if grep -q SKIPPED <<<"$report"; then
    echo "A test of programs that should be there was skipped." >&2
    exit 1
  fi
}

PATH=$PATH:/usr/sbin
BUFFERS=tests/contracts/test_orders_of_buffers.py::test_what_is_recorded_is_what_the_library_hands_out
ORDERS=tests/contracts/test_orders_of_libraries.py::test_the_library_still_answers_what_was_recorded
RESUMES=tests/contracts/test_resumes.py::test_the_library_still_does_what_was_recorded
ISSUES=tests/contracts/test_known_issues.py::test_the_auditor_finds_it_in_the_library

for program in opensm ibsim smpirun smpicc; do
  command -v "$program" > /dev/null || {
    echo "$program is missing: apt-get install opensm ibsim-utils simgrid libsimgrid-dev" >&2
    exit 1
  }
done

# without torchvision, which belongs to other builds of torch: the test has a stand-in
peers orders "torch webdataset litdata libcachesim mosaicml-streaming" "" \
  "$ORDERS[torch]" "$ORDERS[mosaicml-streaming]" "$ORDERS[litdata]" "$BUFFERS[webdataset]" \
  "$RESUMES[mosaicml_streaming]" "$RESUMES[mosaicml_streams]" "$RESUMES[litdata_streaming]" \
  "$RESUMES[webdataset_tars]" "$ISSUES[webdataset]" \
  tests/units/test_fetching.py::test_libcachesim_still_counts_what_was_recorded \
  tests/physics/test_page_cache.py::test_libcachesim_still_counts_what_was_recorded \
  tests/physics/test_cache_tier.py::test_libcachesim_still_counts_what_was_recorded
NEEDS="jax jaxtyping async-lru equinox haliax"
peers pipelines "datasets ray $NEEDS" levanter \
  "$BUFFERS[datasets]" "$BUFFERS[ray]" "$BUFFERS[levanter]"
peers marin "$NEEDS" marin-levanter "$BUFFERS[marin-levanter]"
# accelerate and transformers of two versions, which constraints cannot name; of torchtitan and
# Megatron-Bridge one file each
peers trainers "torch torchdata datasets lightning accelerate==1.15.0 transformers==5.24.0" \
  torchtitan \
  "$RESUMES[stateful_dataloader]" "$RESUMES[torchdata_nodes]" "$RESUMES[hugging_face]" \
  "$RESUMES[hugging_face_interleave]" "$ISSUES[accelerate-repaired]" \
  "$ISSUES[transformers-repaired]" "$ISSUES[lightning]" "$ISSUES[lightning-first-epoch]" \
  "$ISSUES[torchtitan]" "$ISSUES[torchtitan-unguarded]" "$ISSUES[torchtitan-same-ranks]" \
  "$ISSUES[datasets]" "$ISSUES[datasets-one-run]"
peers trainers-before "torch accelerate==1.13.0 transformers==4.56.2" "" \
  "$ISSUES[accelerate]" "$ISSUES[accelerate-first-epoch]" "$ISSUES[transformers]"
peers megatron "torch megatron-energon" megatron-bridge \
  "$RESUMES[energon]" "$RESUMES[megatron_bridge]" "$ISSUES[energon]" "$ISSUES[energon-same-ranks]"
echo "== programs"
tests "$HOME_OF/orders/bin/python" tests/physics/test_smpi.py::test_smpi_answers_as_recorded \
  tests/contracts/test_opensm.py::test_opensm_still_computes_what_was_recorded
echo "All peers still answer what was recorded."
