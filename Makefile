# Every target makes its own virtual environment; nothing is expected but Python 3.11 (or later), pip, venv and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One more than the cores of a small machine: a third of the time tests wait for servers and processes.
JOBS ?= 3

BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed
RESTATE := @restatedev/restate-server@1.7.12
REPEATS ?= 3
SCALE ?= 1

.PHONY: demo docs test test-long test-pythons bench check format clean help

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1 — /'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "resurgam needs Python 3.11 or later; call make with PYTHON=python3.11")'
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## an order whose worker is killed twice, and finishes
	@$(BIN)/resurgam demo

check: $(STAMP)  ## format check, lint, types, import contracts
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/basedpyright --level error
	@$(BIN)/lint-imports --no-logo > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/codespell --skip '.git,.venv*,*_cache,.hypothesis,site' .
	@echo "format, lint, types, import contracts and spelling are fine"

docs: $(STAMP)  ## the documentation as a site, in site/; warnings are errors
	@$(BIN)/python tools/reference.py --check
	@$(BIN)/zensical build --strict --clean
	@echo "open site/index.html"

test: check  ## everything that must hold before a change lands
	@$(BIN)/python -m pytest -n $(JOBS) -m 'not long'

test-long: $(STAMP)  ## thousands of random programs
	@$(BIN)/python -m pytest -n $(JOBS) -m long -o timeout=3600 tests

test-pythons: $(STAMP)  ## the named programs on every Python >= 3.11 of this machine, each replaying the others' histories
	@$(BIN)/python tests/support/pythons.py

$(BENCH_STAMP): benchmarks/requirements.txt benchmarks/requirements-restate.txt
	@echo "setting up $(BENCH_VENV) ..."
	@$(PYTHON) -m venv $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/requirements.txt
	@{ $(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/requirements-restate.txt \
		&& npm install --silent --no-audit --no-fund --no-save --prefix $(BENCH_VENV) $(RESTATE); } > $(BENCH_VENV)/restate.log 2>&1 \
		|| echo "Restate cannot be installed here and is not measured; see $(BENCH_VENV)/restate.log"
	@touch $(BENCH_STAMP)

bench: $(STAMP) $(BENCH_STAMP)  ## beside the raw limit, DBOS and Restate, and what grows with what; takes an hour or more
	@$(BIN)/python benchmarks/limit.py --repeats $(REPEATS) --scale $(SCALE)
	@$(BIN)/python benchmarks/compare.py $(BENCH_VENV)/bin/python --repeats $(REPEATS) --scale $(SCALE)
	@$(BIN)/python benchmarks/postgres.py $(BENCH_VENV)/bin/python --repeats $(REPEATS) --scale $(SCALE)
	@$(BIN)/python benchmarks/growth.py --scale $(SCALE)
	@$(BENCH_VENV)/bin/python benchmarks/plot.py
	@$(BIN)/python benchmarks/publish.py

format: $(STAMP)  ## put the code into shape
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

clean:  ## remove what was made
	rm -rf $(VENV) $(BENCH_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site
