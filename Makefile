# Everything a checkout needs. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DATA_DIR ?= ./data
SEED ?= 0
SEEDS ?= 100
# Tests wait more than they compute, so there are more processes than cores. WORKERS=0 runs them in one, as a debugger wants it.
WORKERS ?= 4
PYTEST = $(BIN)/python tools/run_tests.py $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help setup setup-cluster run cluster test test-long sim lint wheel-check bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv with pinned dependencies and build the compiled hot path

# A virtual environment holds absolute paths, so one that was moved here from elsewhere is made anew.
ifneq ($(file <$(STAMP)),$(CURDIR))
.PHONY: $(STAMP)
endif

# The compiled module goes first: where the build fails, an old one must not stand in for the new source.
$(STAMP): pyproject.toml setup.py constraints.txt src/braidmq/hot/_native.pyx $(wildcard src/braidmq/hot/*.pxi)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "BraidMQ needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
		echo "Name another one with: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot create virtual environments. On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@rm -f $(STAMP) src/braidmq/hot/_native*.so
	@echo "setting up $(VENV) ..."
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,schemas,compression,spark,connect,iceberg,postgres,otel,cluster]'
	@$(BIN)/python -c 'from braidmq import hot; print("hot path:", hot.IMPLEMENTATION)'
	@tools/setup_java.sh $(BIN)/python
	@printf '%s' '$(CURDIR)' >$(STAMP)

setup-cluster: setup ## install etcd, which the nodes of a cluster run themselves
	@tools/setup_etcd.sh

run: setup ## a broker (FlyMQ on 127.0.0.1:9092, BlipMQ on 7878, fq on 8765) with sample traffic and a pipeline, its data in ./data
	@exec $(BIN)/braid dev --data-dir $(DATA_DIR)

cluster: setup ## three nodes with an etcd of their own on 127.0.0.1, their data in ./data/cluster; says what to try
	@exec $(BIN)/braid cluster start --data-dir $(DATA_DIR)/cluster

test: setup ## run the tests (ARGS="-k name" narrows them down)
	@tools/setup_test_programs.sh
	@$(PYTEST) $(ARGS)

test-long: setup ## run the tests with the long proofs at full length
	@tools/setup_test_programs.sh
	@BRAID_TEST_LONG=1 $(PYTEST) --timeout 3600 $(ARGS)

sim: setup ## simulate a cluster under faults (SEEDS=1000 for more, SEED=N for where to begin)
	@$(BIN)/braid sim --seed $(SEED) --seeds $(SEEDS)

lint: setup ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/mypy

wheel-check: setup ## build the source distribution and a wheel, and try the wheel where nothing of this checkout is in reach
	@$(BIN)/python tools/wheel_check.py

bench: setup ## measure, beside the peers that are installed
	@$(BIN)/python bench/run.py $(ARGS)

docs: setup ## write the generated reference pages, and the site of the documentation into ./site
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/site.py

clean: ## remove what the other targets made, except ./data
	@rm -rf $(VENV) build dist site src/*.egg-info src/braidmq/hot/_native*.so .mypy_cache .ruff_cache .hypothesis
	@find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
