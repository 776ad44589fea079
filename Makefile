# `make help` lists the targets. Each sets up what it needs in $(VENV), once.

VENV ?= .venv
# The first interpreter that the package supports; name another with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
# On Linux the default index serves a CUDA build of torch. For the small CPU build:
#   make setup PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu TORCH=torch==2.13.0+cpu
TORCH ?= torch==2.13.0
JOBS ?= 2
# Tests wait for the processes that they start about half of the time, so two workers share a core.
WORKERS ?= $(shell echo $$((2 * $(JOBS))))

BIN := $(VENV)/bin
STAMP := $(VENV)/.shardwright-installed

# Ranks are processes: without this each of them starts a thread for every core.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes, which should not compile the package to bytecode again, whatever the shell asks for.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test together lint types filecheck unit bench gpu-check docs site dist lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make the virtual environment and install the package with its tools into it

$(STAMP): pyproject.toml
	$(if $(PYTHON),,$(error Python 3.11 or 3.12 is needed: install one or name it, make PYTHON=/path/to/python))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install '$(TORCH)'
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $@

demo: setup ## Plan, compile and train a small GPT on 4 local processes, and compare with one device
	$(BIN)/python examples/demo.py

test: lint filecheck together ## Everything that must hold before a change is merged

# Types are checked beside the Python tests, which often wait for processes.
together: setup
	@log=$$(mktemp); $(BIN)/pyright --pythonpath $(BIN)/python >$$log 2>&1 & types=$$!; \
		$(MAKE) --no-print-directory unit; unit=$$?; \
		wait $$types; types=$$?; echo "pyright: $$(tail -n 1 $$log)"; test $$types = 0 || cat $$log; rm -f $$log; \
		test $$unit = 0 && test $$types = 0

lint: setup ## Style and format: ruff
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .

types: setup ## Types: pyright, strict for the product
	$(BIN)/pyright --pythonpath $(BIN)/python

filecheck: setup ## The IR tests: one small file per behaviour, run by lit
	$(BIN)/lit --succinct -v -j $(JOBS) tests/filecheck

# One run, so that one closing line counts everything; a file stays on one worker, so that what its tests share
# (a launch of several processes, above all) is made once. The order of files is that of tests/conftest.py.
unit: setup ## The Python tests, those on several processes included
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 15 tests

gpu-check: setup ## The check on the GPUs of this machine, on CPUs where it has none; options in GPU_CHECK_ARGS
	PYTHONPATH=benchmarks $(BIN)/python -m gpu_check $(GPU_CHECK_ARGS)

bench: setup ## The measurements; each writes its table and plot (BENCH_ARGS="--quick" shows that they run)
	failed=; for script in $$(grep -l __main__ benchmarks/[!_]*.py benchmarks/papers/[!_]*.py); do \
		echo "== $$script"; $(BIN)/python $$script $(BENCH_ARGS) || failed="$$failed $$script"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

docs: setup ## Write the pages of docs/ that come from the code
	$(BIN)/python -m shardwright.tools.docs docs

site: setup ## Build the manual as a site in build/site; a broken link is an error
	$(BIN)/sphinx-build -b html -W --keep-going docs build/site

dist: setup ## Build the wheel and the sdist in dist/
	$(BIN)/python -m build

lock: setup ## Renew requirements-dev.lock, the tested versions of everything in the environment
	echo '$(TORCH)' | $(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --extra dev \
		--constraints - --no-header --output-file requirements-dev.lock pyproject.toml

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
