# make demo    the main job on the embedded default
# make test    the tests
# make check   the tests, the linter, the types and the import layers
# make cross   the same numbers from other libraries; fails where one is missing or nothing is run
# Each sets up its own virtual environment once; PYTHON chooses the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# a file stays with one worker, which makes what its tests share once; conftest.py orders the files
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check cross format clean

demo: $(VENV)/.demo
	$(BIN)/spiritlevel audit -o report.html

# two workers whose BLAS has two threads each wait for each other: that alone doubles some tests
test check cross: export OMP_NUM_THREADS := 1

test: $(VENV)/.test
	$(BIN)/python -m pytest $(WORKERS)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(WORKERS)

# pytest itself fails where it collects nothing
cross: $(VENV)/.cross
	PEERS=required $(BIN)/python -m pytest tests/cross_library

format: $(VENV)/.check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e ".[test]"
	touch $@ $(VENV)/.demo

$(VENV)/.check: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e ".[test,check]"
	touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.cross: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e ".[test,peers]"
	$(INSTALL) --no-deps "curvlinops-for-pytorch>=3,<4" "backpack-for-pytorch>=1.7,<2" "devinterp>=1.3,<2"
	touch $@ $(VENV)/.test $(VENV)/.demo

clean:
	rm -rf $(VENV) dist build
