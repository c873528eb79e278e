# Inlay: set-up, demo, tests. `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.installed-demo
DEV_STAMP := $(VENV)/.installed-dev
NEEDS := pyproject.toml constraints.txt
VIDEO ?=
OUT ?= demo
PYTEST_ARGS ?= -n 2 --dist loadfile
MINUTES ?= 5
KILLS ?= 20
FRAMES ?= 100000
REQUESTS ?= 200
SEED ?= 1
RECORD ?=
REPOSITORY ?=
# The first interpreter that runs and is new enough; PYTHON=... on the command line overrules the search.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

.PHONY: help demo test test-all lint check docs pictures samples numbers dist format golden fuzz soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP) ## a clip becomes tokens and comes back: built-in clip, or VIDEO=path; results in OUT=demo
	@$(BIN)/inlay demo --out "$(OUT)" --force $(if $(VIDEO),--video "$(VIDEO)")
	@echo
	@echo "Next: $(BIN)/inlay encode clip.mp4"
	@echo "To call it inlay: source $(BIN)/activate   (Windows: $(VENV)\\Scripts\\activate)"

test: $(DEV_STAMP) ## run the tests (without the slow ones)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: $(DEV_STAMP) ## run every test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(DEV_STAMP) ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## lint, formatting, types, then the tests

pictures: $(DEV_STAMP) ## make the pictures of the docs again, and the record of the demo: about a minute
	$(BIN)/python docs/make_pictures.py

samples: $(DEV_STAMP) ## make the page of samples and the README's film again; fetches the clips once
	$(BIN)/python docs/make_samples.py

numbers: $(DEV_STAMP) ## fill the numbers of README, site and model card from the records in benchmarks/
	$(BIN)/python benchmarks/fill_numbers.py
	$(BIN)/python benchmarks/speed_tables.py
	$(BIN)/inlay study docs --out benchmarks/studies --page docs/results.md

docs: $(DEV_STAMP) ## build the documentation into build/site; a warning is an error; REPOSITORY=address is linked on top
	NO_MKDOCS_2_WARNING=1 INLAY_REPOSITORY="$(REPOSITORY)" $(BIN)/mkdocs build --strict

dist: $(DEV_STAMP) ## build the wheel and the source archive into dist/, the commit in both
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	@echo "Install it anywhere: pip install -c constraints.txt dist/*.whl"

format: $(DEV_STAMP) ## let ruff sort imports and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(DEV_STAMP) ## hunt for files that crash, mislead or cost too much: MINUTES=5, SEED=1, RECORD=path of a JSON record
	$(BIN)/python -m tests.hunt --minutes $(MINUTES) --seed $(SEED) $(if $(RECORD),--out "$(RECORD)")

soak: $(DEV_STAMP) ## kill, stream and ask, and see that nothing is lost or grows: KILLS=20, FRAMES=100000, REQUESTS=200, SEED=1, RECORD=path
	$(BIN)/python -m tests.hunt.soak --kills $(KILLS) --frames $(FRAMES) --requests $(REQUESTS) --seed $(SEED) $(if $(RECORD),--out "$(RECORD)")

golden: $(DEV_STAMP) ## make the golden token files again (explain the difference in CHANGELOG.md)
	INLAY_REGENERATE=1 $(BIN)/python tests/assets/regenerate.py

clean: ## remove the environment, caches and demo results
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A Debian without python3-venv lacks ensurepip: then the system's own pip, or virtualenv, fills the environment.
# An environment that no longer runs (moved, or its Python removed) is made again.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; install one, or say PYTHON=/path/to/python3" >&2; exit 5; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
	|| { $(PYTHON) -m venv --clear --without-pip $(VENV) >/dev/null 2>&1 \
	     && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip >/dev/null 2>&1; } \
	|| $(PYTHON) -m virtualenv --clear --quiet $(VENV) >/dev/null 2>&1 \
	|| { rm -rf $(VENV); echo "make: $(PYTHON) cannot make an environment; on Debian: apt install python3-venv" >&2; exit 5; }

ifneq ($(wildcard $(BIN)/python),)
ifneq ($(shell $(BIN)/python -m pip --version >/dev/null 2>&1 || echo broken),)
.PHONY: $(BIN)/python $(DEMO_STAMP) $(DEV_STAMP)
endif
endif

$(DEMO_STAMP): $(NEEDS) | $(BIN)/python
	@echo "installing inlay into $(VENV) (once; about a minute, longer where torch must be downloaded)"
	@$(INSTALL) -e .
	@touch $@

$(DEV_STAMP): $(NEEDS) | $(BIN)/python
	@echo "installing inlay and its tools into $(VENV) (once; about a minute, longer where torch must be downloaded)"
	@$(INSTALL) -e '.[dev,docs,export,hf,measure,scale,train,web]'
	@touch $@ $(DEMO_STAMP)
