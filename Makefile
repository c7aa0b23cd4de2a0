# `make demo` and `make test` install what they lack, and do nothing of it twice.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Tests on hosts wait more than they work: several at once, those of a file one after the other.
AT_ONCE := -n 3 --dist loadfile
# They also have bounds in seconds, which a busy machine may miss; the summary counts second runs.
HOSTS := --reruns 1
# These kill and freeze all of Airflow for a quarter of an hour: they have a target of their own.
SURVIVAL := tests/e2e/test_survival.py tests/e2e/test_ways_to_end.py
CHAOS := tests/chaos/test_small_chaos.py
# Of `make chaos`: what happens, and how often.
SEED ?= 1
FAULTS ?= 200
# Of `make frameworks`: families or names of rows, with commas. Of `make bench`: names of rows.
ONLY ?=
# Of `make bench`: how often each side of a row runs; fewer than five are shown, and not kept.
PAIRS ?= 5

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check lint types unit integration e2e ui-test survival chaos frameworks bench ready lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## train on two hosts of this machine, from nothing to a report and Airflow's web page
	@$(PYTHON) -m dev.setup demo
	@$(BIN)/python -m dev.demo

test: lint types unit integration e2e ## all checks and tests; as root, for the network of the test hosts

check: lint types ## what needs no running program

lint: ready ## style, format, and which floor imports which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: ready ## two type checkers
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

unit: ready ## tests without hosts
	$(PYTEST) $(AT_ONCE) $(HOSTS) tests --ignore tests/integration --ignore tests/e2e --ignore tests/ui --ignore $(CHAOS)

integration: ready ## tests on real hosts, over real SSH
	$(PYTEST) $(AT_ONCE) $(HOSTS) tests/integration

e2e: ready ## tests in a real Airflow
	$(PYTEST) -n 2 --dist loadfile $(HOSTS) tests/e2e $(CHAOS) $(addprefix --ignore ,$(SURVIVAL))

ui-test: ## the web page in a real browser, and a picture of each of its states; as root
	@$(PYTHON) -m dev.setup ui
	$(PYTEST) tests/ui
	@ls build/screenshots/*.png

survival: ready ## every part of Airflow is killed, frozen and restarted under training; as root
	$(PYTEST) $(SURVIVAL)

chaos: ready ## break things at random for up to an hour; SEED= and FAULTS= choose, as root
	@$(BIN)/python -m tests.chaos --seed $(SEED) --faults $(FAULTS)

frameworks: ready ## what users of each framework write, run on two hosts; ONLY=torch,mpi chooses
	@$(BIN)/python -m frameworks "$(ONLY)"

bench: ready ## how fast we are beside mpirun and torchrun, as root; ONLY= and PAIRS= choose
	@$(BIN)/python -m bench "$(ONLY)" --pairs $(PAIRS)

ready:
	@$(PYTHON) -m dev.setup test

lock: ## the newest versions that fit together, into requirements/
	@$(PYTHON) -m dev.setup lock

clean: ## remove what was made in this folder
	rm -rf .venv build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
