# The one entry: `make plan MODEL=gpt-175b GPUS=256`, `make test`, `make help`.
# .venv holds what planning needs and nothing more; .venv-dev adds what tests and checks need.

MODEL  ?= gpt-175b
GPUS   ?= 256
ARGS   ?=
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS   ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore
PIP_INSTALL = -m pip install -qq --no-input

DEV    := .venv-dev/bin
SOURCE := autopar costmodel search runtime benchmarks tests

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup plan test explore lint fmt type bench bench-accuracy bench-drift docs check clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

plan: .venv/stamp ## Plan: make plan MODEL=gpt-175b GPUS=256 [ARGS="--gpu a100-sxm4-80gb"]
	@.venv/bin/autopar plan --model $(MODEL) --gpus $(GPUS) $(ARGS)

setup: .venv/stamp .venv-dev/stamp ## Make both environments

test: .venv-dev/stamp ## Run the tests
	@$(DEV)/pytest -n $(JOBS) --dist worksteal $(ARGS)

explore: .venv-dev/stamp ## Look for inputs that break a law: the property tests on new examples [ARGS=--hypothesis-seed=1]
	@$(DEV)/pytest -n $(JOBS) -m hypothesis --hypothesis-profile explore $(ARGS)

lint: .venv-dev/stamp ## Check style, format and layers
	@$(DEV)/ruff check $(SOURCE)
	@$(DEV)/ruff format --check $(SOURCE)
	@$(DEV)/lint-imports

fmt: .venv-dev/stamp ## Format, and mend what can be mended
	@$(DEV)/ruff check --fix $(SOURCE)
	@$(DEV)/ruff format $(SOURCE)

type: .venv-dev/stamp ## Check types
	@$(DEV)/mypy

bench: .venv-dev/stamp ## Measure, and write a dated report against the one before [ARGS=--help]
	@for file in benchmarks/*/run.py; do [ ! -e "$$file" ] || $(DEV)/python "$$file" || echo "$$file: not measured" >&2; done
	@$(DEV)/python -m benchmarks.report $(ARGS)

bench-accuracy: .venv-dev/stamp ## Score the public runs and write docs/accuracy.md
	@$(DEV)/python -m benchmarks.accuracy.report

bench-drift: .venv-dev/stamp ## Show how predictions differ from the snapshot [ARGS=--update]
	@$(DEV)/python -m benchmarks.accuracy.drift $(ARGS)

docs: .venv-dev/stamp ## Build the documentation pages that are made from the code
	@for file in docs/*.py; do [ ! -e "$$file" ] || $(DEV)/python "$$file" || exit 1; done
	@$(DEV)/python -m benchmarks.rules_of_thumb

check: lint type test ## Everything that has to hold before a commit

clean: ## Remove the environments and what tools left behind
	@rm -rf .venv .venv-dev build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/stamp: pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit("autopar needs Python 3.11 or later, $(PYTHON) is %d.%d: make PYTHON=/path/to/python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "making .venv (planning alone: no torch, no CUDA)" >&2
	@"$(PYTHON)" -m venv .venv
	@.venv/bin/python $(PIP_INSTALL) -e . >&2
	@touch $@

.venv-dev/stamp: pyproject.toml requirements-dev.txt
	@"$(PYTHON)" -c 'import sys; sys.exit("autopar needs Python 3.11 or later, $(PYTHON) is %d.%d: make PYTHON=/path/to/python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "making .venv-dev (planning, tests and checks)" >&2
	@"$(PYTHON)" -m venv .venv-dev
	@.venv-dev/bin/python $(PIP_INSTALL) -r requirements-dev.txt -e . >&2
	@touch $@
