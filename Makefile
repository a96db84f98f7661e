# Everything a developer does here. `make` alone lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help check lint types contracts generated test test-fast test-slow stack demo demo-cluster bench format \
	generate requirements clean

# The first that runs: a version manager may have a command for each version and the version itself for none.
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	"$$python" -c '$(FITS)' >/dev/null 2>&1 && echo "$$python" && break; done)
BIN := .venv/bin
# Half of the fast tests at a time: many of them wait for sockets and processes.
FAST := $(BIN)/python -m pytest -m "not stack and not slow"
DEFAULT := $(BIN)/python -m pytest -m "not slow"
# What mostly waits, for alerts that must hold, has a lane of its own.
WAITING := tests/stories tests/demo
READY := .venv/.ready

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

check: lint types contracts generated test ## Everything that must hold before a change lands (builds the stack once)

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

contracts: $(READY) ## import contracts between the packages
	$(BIN)/lint-imports

generated: $(READY) ## generated files are current
	$(BIN)/python -m alerts check
	$(BIN)/python -m tests.alerts --check

test: $(READY) ## All tests but the slow ones, on the real stack: two lanes side by side, then the storms alone
	@mkdir -p build
	@$(DEFAULT) $(WAITING) > build/test-waiting.log 2>&1 & waiting=$$!; \
	$(DEFAULT) $(WAITING:%=--ignore=%) --ignore=tests/storms; rest=$$?; \
	wait $$waiting; waiting=$$?; cat build/test-waiting.log; \
	$(DEFAULT) tests/storms; storms=$$?; exit $$((waiting + rest + storms))

test-fast: $(READY) ## Tests that need no stack, in three to five minutes on two cores
	@mkdir -p build
	@$(FAST) tests/exporter > build/test-fast-exporter.log 2>&1 & exporter=$$!; \
	$(FAST) --ignore=tests/exporter; rest=$$?; \
	wait $$exporter; exporter=$$?; cat build/test-fast-exporter.log; exit $$((exporter + rest))

test-slow: $(READY) ## The slow tests alone
	$(BIN)/python -m pytest -m slow

stack: $(READY) ## Build Kubernetes, etcd, Prometheus and Alertmanager once into the cache
	$(BIN)/python -m tests.stack build

demo: $(READY) ## A fault, from driver file to taint and back, in memory (KEEP=1 leaves it running)
	@$(BIN)/python -m tests.demo

demo-cluster: $(READY) ## The same on the real control plane, with the eviction of a pod (KEEP=1 leaves it running)
	@$(BIN)/python -m tests.demo --cluster

bench: $(READY) ## Figures on the real stack, in 12 minutes; writes build/bench.json (ONLY="burst scale" takes some)
	@$(BIN)/python -m tests.bench $(if $(SMALL),--small) $(ONLY)

format: $(READY) ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

generate: $(READY) ## Rewrite the generated files
	$(BIN)/python -m alerts generate
	$(BIN)/python -m tests.alerts

requirements: $(READY) ## Renew the hashed developer requirements
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make requirements" --group pyproject.toml:dev pyproject.toml -o requirements-dev.txt

clean: ## Remove what was built here (the stack cache stays)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): requirements-dev.txt pyproject.toml
	@python="$(PYTHON)"; test -n "$$python" && "$$python" -c '$(FITS)' && \
		echo "installing the development tools into .venv …" && "$$python" -m venv .venv || \
		{ echo "making .venv: expected Python 3.11 or newer with its venv module" \
			"(Debian: apt install python3-venv), or set PYTHON=…" >&2; exit 1; }
	@$(BIN)/pip install --quiet --require-hashes -r requirements-dev.txt
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
