# Every target that needs an environment makes it first. `make run` installs what running needs, `make test`
# also the developers' tools; both install this checkout in place, so an edit needs no second install.
#   VENV=DIR       where the environment lives (default .venv)
#   PYTHON=python  the interpreter it is made from (3.11 or later)

VENV ?= .venv
PYTHON ?= python3
PYTEST_ARGS ?= -q -n 2 --dist loadgroup

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check # errors only

.DEFAULT_GOAL := help
.PHONY: help run test lint types walls lit bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.run ## set everything up, then solve attention and MoE for the default deployments
	@$(BIN)/detent run

test: $(VENV)/.dev ## run all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev ## check style (ruff)
	@$(BIN)/ruff check .

types: $(VENV)/.dev ## check types strictly (mypy)
	@$(BIN)/python -m mypy

walls: $(VENV)/.dev ## check who imports whom (import-linter)
	@$(BIN)/lint-imports --no-logo

lit: $(VENV)/.dev ## run tests/filecheck with lit, through the installed detent-opt
	@$(BIN)/lit -q tests/filecheck

bench: $(VENV)/.dev ## measure the compiler and the serve-time half (pytest-benchmark)
	@$(BIN)/python -m pytest benchmarks

clean: ## remove what building and testing left here, the environment .venv included
	rm -rf .venv build dist *.egg-info .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing detent into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing detent and its developers' tools into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.run $@
