# `make` lists the targets. They need Python 3.11 or newer and make, and install everything else
# into .venv on first use. Java 17 or newer is the machine's, or else comes from a wheel.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Tests start hundreds of Python processes. Without bytecode files, which some images turn off, each
# process would compile all that it imports: a third of the time that a broker takes to start.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Variables a caller may set: make test ARGS='-k journal', make sim SEEDS=1000, make sim SEEDS=17:18
# (seed 17 in all six simulators), make sim-mutants SECONDS=60, make fuzz SEED=7 EXAMPLES=5000.
ARGS ?=
# Tests of real processes may fail on a busy machine: failed tests run once more, alone.
FAILED := --last-failed --last-failed-no-failures none
WORKERS ?= 4
PYTEST := $(BIN)/pytest
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
EXAMPLES ?= 1000
SANITIZERS := -fsanitize=address,undefined
RUNS ?= 30
SEEDS ?= 200
SECONDS ?= 30
KILLS ?= 50
BROKERS ?= 1
KILL_TESTS := kill_rounds cluster_processes cluster_clients transactions_kill consumer_groups_kills
KILL_SEED ?= $(SEED)
MUTANT_SEED ?= 1
FAULT_SEED ?= 1
UNIT := api core encryption process reading record security storage client
# The Pythons that make dist tries; by default all versions from 3.11 on that are on the PATH.
PYTHONS ?=
COUNT ?= 200
MINUTES ?= 60

.PHONY: help demo test unit check bench bench-cluster sim sim-mutants mutants fuzz kills chaos
.PHONY: clients pipelines crash-pipelines kill-loads versus-faults dist sanitize
.PHONY: docs setup format clean

help: ## List these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 17

demo: $(READY) ## Replay real flights through NATS, log and Spark; kill both; check every record
	@$(BIN)/strandline demo $(ARGS)

test: check ## All checks, then all tests (ARGS='-k word' to choose)
	@$(PYTEST) -n $(WORKERS) --dist loadfile $(ARGS) || case $$? in \
		1) echo "Failed tests, once more and alone:" && $(PYTEST) $(FAILED) $(ARGS) ;; \
		*) exit 1 ;; esac

unit: $(READY) ## Tests that start no broker and no other process, for the inner loop; a minute
	@$(PYTEST) -q -n $(WORKERS) -m 'not slow and not spark' tests/golden \
		$(UNIT:%=tests/unit/%) $(ARGS)

check: $(READY) ## Lint, format, types, layers; under a minute
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports >.venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@echo "ruff, mypy and import-linter: clean"

bench: $(READY) ## Run the benchmarks briefly; results go to benchmarks/results (ARGS=--help)
	@$(BIN)/python benchmarks/run_all.py $(ARGS)

bench-cluster: $(READY) ## Three brokers beside JetStream R3, then 50 kills of the leader; 30 min
	@$(BIN)/python -m benchmarks.cluster $(ARGS)
	@$(BIN)/python -m benchmarks.cluster --connections 1 --appenders 1 --label lone $(ARGS)
	@$(BIN)/python -m benchmarks.failover --kills 50

clients: $(READY) ## The examples in other languages, NATS and Flight, built from registries
	@CLIENTS=all $(PYTEST) tests/integration/jetstream/test_example_clients.py \
		tests/integration/test_flight_go.py $(ARGS)

sim: $(READY) ## Run all simulators from seeds (SEEDS=N, or FROM:TO without TO); a seed repeats
	@$(BIN)/python -m simulation histories --seeds $(SEEDS)

sim-mutants: $(READY) ## Is each seeded bug found, and in how many seeds? (SECONDS=n for each)
	@$(BIN)/python -m simulation bugs --seconds $(SECONDS)

mutants: $(READY) ## Make single mistakes from a seed: do tests notice? (COUNT=n MINUTES=n)
	@nice $(BIN)/python tests/mutation --seed $(MUTANT_SEED) --count $(COUNT) \
		--minutes $(MINUTES) $(ARGS)

fuzz: $(READY) ## Search every property from a random seed (SEED=n EXAMPLES=n ARGS='-k storage')
	@echo "seed $(SEED), $(EXAMPLES) examples a property; the same seed repeats the run"
	@PROPERTY_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -m 'hypothesis and not spark' \
		--hypothesis-seed=$(SEED) --timeout 3600 -n $(WORKERS) $(ARGS)

sanitize: $(READY) ## Fuzz the compiled functions with gcc's sanitizers (SEED=n EXAMPLES=n)
	@rm -rf build/sanitized && mkdir -p build/sanitized && cp -r src/strandline build/sanitized
	@CFLAGS='-g -O1 $(SANITIZERS) -fno-sanitize-recover=all' LDFLAGS='$(SANITIZERS)' \
		$(BIN)/python setup.py --quiet build_ext --force --build-lib build/sanitized \
		--build-temp build/sanitized
	@echo "seed $(SEED), $(EXAMPLES) examples a property; the same seed repeats the run"
	@LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		PYTHONMALLOC=malloc PYTHONPATH=build/sanitized PROPERTY_EXAMPLES=$(EXAMPLES) \
		$(BIN)/pytest -p no:cacheprovider --hypothesis-seed=$(SEED) --timeout 3600 \
		tests/property/test_{speedups,nats_protocol}.py $(ARGS)

kills: $(READY) ## Kill brokers -9 at random under load (KILLS=n KILL_SEED=n ARGS='-k transactions')
	@KILLS=$(KILLS) KILL_SEED=$(KILL_SEED) $(BIN)/pytest -p no:cacheprovider -s \
		-k 'kill or lost' $(KILL_TESTS:%=tests/integration/test_%.py) $(ARGS)

chaos: $(READY) ## Inject faults into real clusters under load, and check them (ARGS=--help)
	@nice $(BIN)/python -m chaos --results benchmarks/results $(ARGS)

kill-loads: $(READY) ## Kill loads without Spark -9 at random (KILLS=n MINUTES=n ARGS=--help)
	@nice $(BIN)/python -m tests.loads --kills $(KILLS) --minutes $(MINUTES) \
		--out benchmarks/results $(ARGS)

versus-faults: $(READY) ## Inject the same faults into us, JetStream, Redis, Kafka: what is lost?
	@$(BIN)/python -m benchmarks.versus_faults --seed $(FAULT_SEED) $(ARGS)

pipelines: $(READY) ## Run every pipeline file of the docs on Spark, twice where that matters
	@PIPELINE_FILES=copy,transform,aggregate,merge,repartition,clean,load,parquet \
		$(BIN)/pytest -p no:cacheprovider tests/spark/test_pipeline_files.py $(ARGS)

crash-pipelines: $(READY) ## Kill pipelines on Spark -9 at random, check them (RUNS=n BROKERS=3)
	@$(BIN)/python tests/spark/crash --runs $(RUNS) --brokers $(BROKERS) --seed $(SEED) \
		--out benchmarks/results $(ARGS)

dist: $(READY) ## Build wheel, sdist and SBOM; run README and quickstart with them (PYTHONS=…)
	@rm -rf dist && $(BIN)/python deploy/dist.py dist
	@PYTHONS='$(PYTHONS)' WHEEL=$$(echo $(CURDIR)/dist/*.whl) $(PYTEST) -q tests/test_wheel.py $(ARGS)
	@echo "the wheel runs README and quickstart in an empty environment:" && ls dist

docs: $(READY) ## Build the docs' site into build/site; check links, examples, completeness
	@$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/site/$$( \
		$(BIN)/python -c 'from strandline.version import __version__; print(__version__)')
	@$(BIN)/python docs/site_versions.py build/site
	@$(PYTEST) tests/test_docs.py -q $(ARGS)
	@echo "open build/site/index.html"

format: $(READY) ## Format the code and fix what ruff can
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format --quiet

setup: $(READY) ## Create .venv and install everything (other targets do so when needed)

clean: ## Remove what was built, except .venv
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		.grimp_cache benchmarks/.build demo-output spark-warehouse metastore_db derby.log
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml setup.py requirements-dev.txt src/strandline/speedups/_compiled.pyx
	@test -n "$(PYTHON)" || { echo "Strandline needs Python 3.11 or newer on PATH" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a venv; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) (first time: a few minutes, PySpark is large) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25'
	@$(BIN)/python -m pip install --quiet -r requirements-dev.txt -e '.[all]'
	@touch $@
