# make demo   the main job at 2048 GPUs, from nothing but python3
# make test   the whole test suite; SHARD=2/4 for the second of four parts
# make check  formatting, lint, types, import rules, and the package without its extensions
# make core   all tests of physics, contracts and orders that need no extension, without extensions
# make fuzz   100,000 odd inputs for all readers, counted by outcome; FUZZ='--inputs 1000 --only scenario' for fewer
# make coverage  the share of lines that the tests run, in one process; about an hour
# make mutants  which changed lines no test notices; SEED=1 COUNT=40 ROOM=exchange draw others, fewer, of one folder
# make benchmark  the speeds that must not fall, beside the last committed ones; WRITE=1 adds a row for each
# make windows  the tables of windows against whole epochs in docs/windows.md; about half an hour
# make reference  the pages of keys, tables and verbs in docs/reference, and the list of public names
# make docs   the documentation as a site, in site/
# make artifact  the main results, and whether they are the expected ones (ARTIFACT.md)
# make validation  the tables of predicted against measured in docs/reference/validation.md
# make peers  recorded answers of loaders, caches, OpenSM and SMPI against the programs themselves, each installed; about fifteen minutes
# make wheel  the wheels and the sdist, checked, installed and used in an empty folder
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := results/demo
# modules are compiled when they are first imported, and most never are; an installation is faster
# and 160 MB smaller. The variable below would have every process compile them anew.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE =

.PHONY: peers wheel demo test coverage check core format benchmark fuzz mutants windows validation reference docs artifact clean

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "simshuffle needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "This Python cannot make virtual environments; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml plugins/testbed/pyproject.toml constraints-test.txt | $(BIN)/python
	$(PIP_INSTALL) --constraint constraints-test.txt --editable '.[test]' --editable ./plugins/testbed
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/simshuffle run paper/strategies --interval --out $(DEMO) --force

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(if $(SHARD),--shard $(SHARD))

# one process, as coverage sees no others
coverage: $(VENV)/.installed-test
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage report --format total

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.core_alone

core: $(VENV)/.installed-test
	$(BIN)/python -m tests.core_alone --tests

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/.installed-test
	$(BIN)/python benchmarks/speed_history.py $(if $(WRITE),--write)

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz $(FUZZ)

SEED ?= 1
COUNT ?= 40
mutants: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.mutants --seed $(SEED) --count $(COUNT) --room '$(ROOM)'

windows: $(VENV)/.installed-test
	$(BIN)/python benchmarks/windows.py

validation: $(VENV)/.installed-test
	$(BIN)/python benchmarks/validation_tables.py

reference: $(VENV)/.installed-test
	$(BIN)/python docs/make_reference.py
	$(BIN)/python -m tests.golden.make_public_api

# the variable keeps mkdocs-material from printing what it thinks of other versions of mkdocs
docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

artifact: $(VENV)/.installed
	artifact/run.sh

peers:
	PYTHON=$(PYTHON) tests/peers.sh

wheel:
	PYTHON=$(PYTHON) tests/wheel.sh

clean:
	rm -rf $(VENV) .venv-peers results site dist
