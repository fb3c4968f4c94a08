# Plain `make` lists the targets. They need Python 3.11+, make and git; `make test` also Java 17+ and
# Maven; `make test-clients` also npm and a Linux that gives a process a network of its own;
# `make test-train` 6 GB of disk; `make test-compose` a container engine, or root on Debian and 20 GB.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tests start hundreds of programs, and with their bytecode kept each starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

# What a new .venv is made with, e.g. `make venv PYTHON=python3.12`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TRAIN := .venv/train
TRACKIO := .venv/trackio
# More words for the command of a target, e.g. `make test ARGS="-k tree"`.
ARGS ?=

.PHONY: help venv demo test test-newest test-clients test-train test-compose learning screenshot broker check format mutants features chaos chaos-variants chaos-embedded chaos-gateway chaos-all attack fuzz soak soak-markers bench-core bench-processor bench-embedded bench-environments bench-traces bench-gateway bench-trainer lock wheel clean

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '  make %-15s %s\n' "$$name" "$$text"; done

venv: $(READY) ## create or refresh .venv from requirements.txt, every package checked by its hash

# uv is itself in requirements.txt, so pip fetches it by the same hashes; then uv does the rest.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Turnstream needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12 ...")'
	@tools/progress "Setting up .venv, 1 of 3: Python" $(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt
	@sed '/^# trackio:/,$$d' requirements.txt > .venv/base.txt
	@tools/progress "Setting up .venv, 2 of 3: uv" \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	@tools/progress "Setting up .venv, 3 of 3: $$(grep -c '==' .venv/base.txt) packages" \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r .venv/base.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --offline -e .
	@touch $(READY)

demo: $(READY) ## the whole path on this machine, from an agent to subscribe(), explained as it goes
	@$(BIN)/turnstream demo $(ARGS)

# How many files of tests run side by side, more than cores since many wait; 0: no workers, for --pdb.
WORKERS ?= 4

# Some tests start a real broker; its jars are fetched once, into .venv. Files begin in the order
# of tests/conftest.py.
test: $(READY) $(TRACKIO)/.ready ## every test; ARGS="-k tree" runs a part
	@tools/need-java
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Pythons that test-newest makes environments of, by pyenv or by name.
PYTHONS ?= 3.12 3.13

test-newest: $(READY) ## the wheel with the newest packages its bounds allow: doctor, demo, tests of schemas and core (PYTHONS)
	@tools/test-newest $(PYTHONS)

# The clients are fetched once by npm, into .venv; the table is kept beside them.
test-clients: $(READY) ## Claude Code and Codex through the gateway, and what became of their tokens
	@tools/need-java
	@$(BIN)/python -m pytest tests/clients $(ARGS)

# The lock's second part lies beside the other packages, not among them, so that tests run both
# with it and without.
$(TRACKIO)/.ready: $(READY)
	@rm -rf $(TRACKIO)
	@sed -n '/^# trackio:/,/^# train:/p' requirements.txt > .venv/trackio.txt
	@tools/progress "Setting up $(TRACKIO)" $(BIN)/uv pip install --quiet --python $(BIN)/python --target $(TRACKIO) --no-deps \
	  --require-hashes -r .venv/trackio.txt
	@touch $@

# The lock's third part: PyTorch, gigabytes that nothing else needs, and a small real model. They
# lie beside the other packages, not among them, so that everything else runs without them.
$(TRAIN)/.ready: $(READY)
	@rm -rf $(TRAIN)
	@sed -n '/^# train:/,$$p' requirements.txt > .venv/train.txt
	@tools/progress "Setting up $(TRAIN)" $(BIN)/uv pip install --quiet --python $(BIN)/python --target $(TRAIN) --no-deps \
	  --require-hashes -r .venv/train.txt
	@touch $@

test-train: $(TRAIN)/.ready ## real models behind the gateway: logprobs computed once more, and learning
	@tools/need-java
	@PYTHONPATH=$(CURDIR)/$(TRAIN) $(BIN)/python -m pytest tests/train $(ARGS)

# Where no engine is named one is set up below .venv/compose, and ended again; what it holds stays.
test-compose: $(READY) ## docker-compose.yml on a real engine: first steps, scaling, kills, stops, a full disk (ARGS="-m smoke")
	@tools/need-engine
	@$(BIN)/python -m pytest tests/compose/engine $(ARGS)

learning: $(TRAIN)/.ready ## a small model trained through the whole path, and a picture of it
	@PYTHONPATH=$(CURDIR)/$(TRAIN) $(BIN)/python -m pytest tests/train/test_learning.py --quiet $(ARGS)

screenshot: $(READY) $(TRACKIO)/.ready ## trackio's page with a session that called tools, in Chromium: trackio.png
	@tools/need-chromium
	@$(BIN)/python -m tests.sinks.screenshot $(ARGS)

broker: $(READY) ## a real Kafka broker on 127.0.0.1:9092, in the foreground; its data stays
	@tools/need-java
	@$(BIN)/python -m tests.kafka.foreground $(ARGS)

check: $(READY) ## format, lint and types, changing nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY) ## rewrite the code in the project's format and mend what lint can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

mutants: $(READY) ## plant named errors in the core, each must fail a test (ARGS="orphan" or "--random 10 --seed X")
	@$(BIN)/python -m tests.mutants $(ARGS)

features: $(TRACKIO)/.ready ## break claims of tests/features.toml, each must fail a test (ARGS="R- T-stop" or "--random 10 --seed X")
	@tools/need-java
	@$(BIN)/python -m tests.features $(ARGS)

# How many sessions the chaos run begins with, and the seed of its faults.
SESSIONS ?= 1000
SEED ?= 1

chaos: $(READY) ## workers and broker killed at random; everything must equal the pure core (SESSIONS, SEED)
	@tools/need-java
	@$(BIN)/python -m tests.chaos $(SESSIONS) $(SEED) $(ARGS)
	@$(BIN)/python -m tests.chaos.oversized

chaos-variants: $(READY) ## workers built wrong on purpose: the same harness must say what breaks
	@tools/need-java
	@$(BIN)/python -m tests.chaos.variants

# How often a process is killed.
KILLS ?= 100

chaos-embedded: $(READY) ## the embedded log: its processes killed at random moments, its disk full (KILLS, SEED)
	@$(BIN)/python -m tests.chaos.embedded $(KILLS) $(SEED) $(ARGS)

# How many sessions run, and how often one of their two gateways is killed.
chaos-gateway: SESSIONS = 100
chaos-gateway: KILLS = 10
chaos-gateway: $(READY) ## gateways and processors killed under agents of three SDKs (SESSIONS, KILLS, SEED)
	@tools/need-java
	@$(BIN)/python -m tests.failover $(SESSIONS) $(KILLS) $(SEED) $(ARGS)

# How many faults of all kinds, at least.
FAULTS ?= 50

chaos-all: $(READY) ## agents, gateways, processors, broker and trainer under faults of every kind (SESSIONS, FAULTS, SEED)
	@tools/need-java
	@$(BIN)/python -m tests.under_fire $(SESSIONS) $(FAULTS) $(SEED) $(ARGS)

attack: $(READY) ## one session, key, record or client against all others, with bounds (ARGS="--quick", or words of names)
	@tools/need-java
	@$(BIN)/python -m tests.attack $(ARGS)

# How long events are sent.
fuzz: MINUTES = 30
fuzz: $(READY) ## fuzzed events and purges into a real worker: no death, no stall, every bad event a letter (MINUTES, SEED)
	@tools/need-java
	@$(BIN)/python -m tests.fuzz $(MINUTES) $(SEED) $(ARGS)

# How long the agents come, at least 2; what is kept is kept for a tenth of it.
MINUTES ?= 60

soak: $(READY) ## agents, gateways, processors, trainer and sink for an hour: flat memory, no lag, disk as told (MINUTES, SEED)
	@tools/need-java
	@$(BIN)/python -m tests.soak $(MINUTES) $(SEED) $(ARGS)

soak-markers: $(READY) ## 50,000 small sessions through 3 workers; their memory has to come back
	@tools/need-java
	@$(BIN)/python -m tests.soak.markers $(ARGS)

bench-core: $(READY) ## speed, memory and bytes of the core beside a plain baseline
	@$(BIN)/python -m benchmarks.core $(ARGS)

bench-processor: $(READY) ## one worker on a real broker beside a plain loop, and its recovery
	@tools/need-java
	@$(BIN)/python -m benchmarks.processor $(ARGS)

bench-trainer: $(TRAIN)/.ready ## samples into tensors from both logs, beside TransferQueue and Atropos; fetches PyTorch
	@tools/need-java
	@PYTHONPATH=$(CURDIR)/$(TRAIN) $(BIN)/python -m benchmarks.trainer $(ARGS)

bench-gateway: $(READY) ## streamed turns: the gateway beside rllm-model-gateway and a bare proxy; what a prompt costs (ARGS=--smoke: 20 s)
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

bench-embedded: $(READY) ## the embedded log beside bare SQLite, replay, and what each profile keeps
	@$(BIN)/python -m benchmarks.embedded $(ARGS)

bench-environments: $(READY) ## what recording costs an environment, beside the bare one
	@$(BIN)/python -m benchmarks.environments $(ARGS)

bench-traces: $(READY) ## what traces cost a processor: off, sampled, on
	@$(BIN)/python -m benchmarks.traces $(ARGS)

# PyTorch is made for GPUs and brings their libraries. Those it is linked with have to be there for
# it to load at all; these it loads only when it uses a GPU: a sixth of the download, a quarter of the disk.
FOR_GPUS := triton nvidia-cusolver nvidia-nvtx nvidia-cuda-cccl cuda-bindings cuda-pathfinder cuda-toolkit

# uv.lock names hosts, so it stays local; the exported file does not.
lock: $(READY) ## make requirements.txt anew: the newest versions that pyproject.toml allows
	@$(BIN)/uv lock --quiet --upgrade
	@echo "# Made from pyproject.toml by 'make lock': do not edit." > .venv/requirements.txt
	@$(BIN)/uv export --quiet --locked --format requirements-txt --no-header --no-annotate \
	  --no-emit-project --group dev >> .venv/requirements.txt
	@echo "# trackio: what the extra of that name adds." > .venv/trackio.txt
	@$(BIN)/uv export --quiet --locked --format requirements-txt --no-header --no-annotate \
	  --no-emit-project --no-default-groups --extra trackio \
	  $$(sed -nE 's/^([^=]+)==.*/--no-emit-package \1/p' .venv/requirements.txt) >> .venv/trackio.txt
	@cat .venv/trackio.txt >> .venv/requirements.txt
	@echo "# train: what the extra of that name adds, and a model for its tests." > .venv/train.txt
	@$(BIN)/uv export --quiet --locked --format requirements-txt --no-header --no-annotate \
	  --no-emit-project --no-default-groups --extra train --group train \
	  $(addprefix --no-emit-package ,$(FOR_GPUS)) \
	  $$(sed -nE 's/^([^=]+)==.*/--no-emit-package \1/p' .venv/requirements.txt) >> .venv/train.txt
	@cat .venv/train.txt >> .venv/requirements.txt
	@mv .venv/requirements.txt requirements.txt
	@echo "requirements.txt: $$(grep -c '==' requirements.txt) packages"

wheel: $(READY) ## build the wheel into dist/
	@$(BIN)/python -m hatchling build -t wheel -d dist

clean: ## remove .venv and everything else the targets made
	@rm -rf .venv dist .broker .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
