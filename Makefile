# make demo    the main job on the embedded default
# make test    the tests
# make check   the tests, the linter, the types and the import layers
# Each sets up its own virtual environment once; PYTHON chooses the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check format clean

demo: $(VENV)/.demo
	$(BIN)/spiritlevel audit -o report.html

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 2

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

clean:
	rm -rf $(VENV) dist build
