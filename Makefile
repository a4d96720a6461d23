# `make test` and `make demo` work as the first command in a fresh clone: they make .venv and install what they need.

.DEFAULT_GOAL := help
.PHONY: help test test-all run-tests run-all-tests unit lint types layers demo bench onnx-suite fuzz docs terminal wheel format clean

# The first interpreter that runs and is new enough; `make PYTHON=… test` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
INSTALLED := .venv/.installed
WORKERS ?= 2
# `make EXTRAS=dev,torch test` tests what needs PyTorch too; without, these tests are skipped.
EXTRAS ?= dev
# Who is done takes over what others have not begun: the last tests are not of the same length.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

# Installed again only when pyproject.toml changes.
$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Tilewright needs Python 3.11 or newer: none found on PATH" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

# The checker of types has one thread, and takes more than a minute: it runs beside the tests.
BESIDE := $(MAKE) --no-print-directory -j2

test: lint layers ## every check and test but the long ones (minutes)
	@$(BESIDE) types run-tests

test-all: lint layers ## every check and test
	@$(BESIDE) types run-all-tests

run-tests: $(INSTALLED)
	$(PYTEST) -m "not slow"

run-all-tests: $(INSTALLED)
	$(PYTEST)

unit: $(INSTALLED) ## the unit tests (under a minute)
	$(PYTEST) -m "not slow" tests/unit tests/errors tests/golden

lint: $(INSTALLED) ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## static types, strict
	$(BIN)/basedpyright

layers: $(INSTALLED) ## who may import whom
	$(BIN)/lint-imports --no-cache

demo: $(INSTALLED) ## compile a ResNet-18, run it, and compare it with ONNX Runtime
	$(BIN)/python -m examples.demo

bench: $(INSTALLED) ## measure this machine, operators, networks ($$BENCH_HOME) and call overhead; writes docs/results/
	$(BIN)/python -m benchmarks.peak
	$(BIN)/python -m benchmarks.operators
	$(BIN)/python -m benchmarks.int8_gemm
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.compile_time
	$(BIN)/python -m benchmarks.vector_math
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.real
	$(BIN)/python -m benchmarks.placement --networks --zero-claim --composed

onnx-suite: $(INSTALLED) ## run ONNX's own operator suite; writes docs/results/onnx-suite.md
	$(BIN)/python -m benchmarks.onnx_suite

fuzz: $(INSTALLED) ## the importer on 100,000 files that are almost right (a quarter of an hour)
	$(BIN)/python -m tests.fuzz.import_campaign --files 100000

docs: $(INSTALLED) ## build the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server -d build/site"

terminal: $(INSTALLED) ## record the terminal session of the README anew: docs/images/terminal.svg
	$(BIN)/python -m docs.tools.record_terminal

wheel: $(INSTALLED) ## build both wheels and the sources into dist/, and try them in empty environments
	$(BIN)/python -m wheels.release

format: $(INSTALLED) ## rewrite the sources in our style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and what the tools left
	rm -rf .venv .ruff_cache .pytest_cache .hypothesis build dist
