# Everything a newcomer types. `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SERVE  ?= 1
PORT   ?= 7860
DEMO   := .demo
STAMP  := $(VENV)/.setup-stamp

.DEFAULT_GOAL := help
.PHONY: help setup demo test check clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: $(STAMP)  ## create .venv and install (3 to 4 minutes the first time)

$(STAMP): pyproject.toml setup.py $(wildcard src/softneuron/csrc/*)
	@echo "==> setup: a virtual environment in $(VENV), then torch, the packages and the C++ device (3 to 4 minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> setup: torch"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0" numpy "setuptools>=77" ninja
	@echo "==> setup: the packages, and the C++ device (about 90 s of compiling)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable ".[demo,dev]"
	@touch $@
	@echo "==> setup: done"

test: setup  ## run every test
	@echo "==> test: style and types"
	@$(MAKE) --no-print-directory check
	@echo "==> test: the tests"
	@$(BIN)/python -m pytest

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:  ## remove .venv, builds and the demo's results
	rm -rf $(VENV) build $(DEMO) src/softneuron/*.so src/*.egg-info
