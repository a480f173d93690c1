# `make help` lists the targets. PYTHON makes the virtual environment; PY is the interpreter that the others use.
VENV := .venv
PYTHON ?= python3
PY ?= $(VENV)/bin/python
WORKERS ?= 2
TESTS ?= tests
STAMP := $(VENV)/.requirements

export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help venv install link test test-fast prove style format readme diff export drift upstream-tests demo docs-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=...") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)

# The linked transformers comes first: it satisfies the requirement, so that pip does not install the stock one.
$(STAMP): requirements/test.txt | $(VENV)/bin/python
	$(VENV)/bin/python utils/link.py --python $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/test.txt
	@touch $@

venv: $(STAMP)  ## the virtual environment .venv with everything the tests need

ifeq ($(PY),$(VENV)/bin/python)
READY := $(STAMP)
endif

install: $(if $(READY),$(VENV)/bin/python)  ## build and install the patched transformers (PY=... for another environment)
	$(PY) -m pip install .

link: $(READY)  ## after a change of an edit: bring the linked transformers up to date (PY=... for another environment)
	@$(PY) utils/link.py --python $(PY)

test: link  ## all tests (TESTS=... for some, WORKERS=... processes)
	$(PY) -m pytest $(TESTS) -n $(WORKERS)

test-fast: link  ## all tests but the slow ones, which kill processes or need many
	$(PY) -m pytest $(TESTS) -n $(WORKERS) -m "not slow"

prove: link  ## kill, fail, cut the power and soak: an hour on two cores (PROVE=--quick for some minutes)
	$(PY) tests/trainer/scripts/prove.py $(PROVE)

style: link  ## ruff with upstream's settings, and the type checker
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m ty check --python $(dir $(PY)).. build/dev/transformers/trainer_checkpoint
	$(PY) utils/readme_table.py --check

format: link  ## let ruff correct what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

readme: link  ## make README's table of the edits
	$(PY) utils/readme_table.py

diff: link  ## show the edits as a unified diff
	@$(PY) utils/apply_edits.py --diff

export: link  ## write commits into an upstream checkout: make export UPSTREAM=/path/to/checkout
	@$(PY) utils/export.py $(if $(UPSTREAM),"$(UPSTREAM)",--help)

drift: link  ## tell per edit whether it fits other releases: make drift VERSION="5.23.0 5.20.2"
	@$(PY) utils/drift.py $(if $(VERSION),$(VERSION),--help)

upstream-tests: link  ## run upstream's Trainer tests: make upstream-tests UPSTREAM=/path/to/checkout
	@$(PY) utils/upstream_tests.py $(if $(UPSTREAM),"$(UPSTREAM)",--help)

demo:  ## kill a training in the middle of a save, stock and patched; sets up what it needs
	bash examples/demo/run.sh

docs-check: link  ## check the documentation pages
	$(if $(wildcard utils/docs_check.py),$(PY) utils/docs_check.py,@echo "there is no utils/docs_check.py")

clean:  ## remove what was built, but not the downloaded releases
	rm -rf build/dev build/lib build/egg build/bdist.* dist
