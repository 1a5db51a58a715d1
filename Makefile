# Needs Python (3.11 or later) and make, nothing else. PYTHON=python3.13 picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-long lint bench clean

demo: $(VENV)/.installed  ## which routing policy serves the embedded workload best
	$(BIN)/headway compare

test: lint  ## lint, strict types, layers, and all tests but the long ones
	$(BIN)/python -m pytest -n $(WORKERS) -m "not long"

test-long: $(VENV)/.installed-dev  ## every test, the whole property suite included
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed  ## CPU time and peak memory on fixed scenarios
	$(BIN)/python benchmarks/bench.py

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("headway needs Python 3.11 or later; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# The package is installed in place, so only a change of pyproject.toml asks for a new installation.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.installed
