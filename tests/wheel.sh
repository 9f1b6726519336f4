#!/usr/bin/env bash
# The wheels as a user gets them: built, checked, installed with what they name and nothing else, and
# used in an empty folder: `make wheel`.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PYTHON:=python3}"
export PYTHONDONTWRITEBYTECODE=  # it would have every process compile all modules anew
unset PYTHONPATH  # it would put a checkout before what is installed
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$PYTHON" -m venv "$work/tools"
"$work/tools/bin/pip" install --no-compile --quiet --disable-pip-version-check build twine
rm -rf dist
dist=$PWD/dist
"$work/tools/bin/python" -m build --outdir dist . > "$work/build.log" || {
  cat "$work/build.log"
  exit 1
}
"$work/tools/bin/python" -m build --wheel --outdir dist plugins/testbed > "$work/build.log" || {
  cat "$work/build.log"
  exit 1
}
"$work/tools/bin/twine" check --strict dist/*

"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/pip" install --no-compile --quiet --disable-pip-version-check dist/simshuffle-*.whl
mkdir "$work/empty"
cd "$work/empty"
PATH=$work/venv/bin:$PATH
simshuffle --version
simshuffle list > listed
grep -q paper/strategies listed
simshuffle check quickstart > checked
simshuffle --quiet run quickstart --set world_size=8 --out first > ran
simshuffle --quiet run quickstart --set world_size=16 --out second > ran
simshuffle compare first second > compared
if simshuffle report first second --out page.html 2> refused; then exit 1; fi
grep -q "pip install 'simshuffle\[page\]'" refused
pip install --no-compile --quiet --disable-pip-version-check "$(echo "$dist"/simshuffle-*.whl)[page]"
simshuffle report first second --out page.html > reported
simshuffle figure breakdown first --out breakdown.pdf > drawn
simshuffle results verify first > verified
simshuffle new mine --hosts 8 --samples 1000000 --sample-size 110kB --batch-size 32 \
  --batch-time 0.1s --gradients 100MB > made
simshuffle check mine.yaml > checked
python - << 'HERE'
from pathlib import Path

import simshuffle

assert "site-packages" in simshuffle.__file__, simshuffle.__file__
result = simshuffle.run("mine.yaml")
assert "epoch_s" in result.table("epochs"), result.table("epochs")
assert Path("page.html").stat().st_size > 100_000
HERE
if simshuffle machine testbed 2> refused; then exit 1; fi
grep -q plugins/testbed refused
pip install --no-compile --quiet --disable-pip-version-check --no-deps "$dist"/simshuffle_testbed-*.whl
simshuffle machine testbed --help > testbed-help
echo "The wheel works where there is nothing else."
