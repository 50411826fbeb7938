# `make demo` trains on digits; `make test` runs the tests that show everything once, `make test-all` every combination;
# `make check` is `make test` with format, lint and types; `make docs` builds the site; `make mutations` breaks the code to see that `make test` notices.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest --numprocesses=3 --dist=worksteal
SOURCES := src tests examples docs

.PHONY: demo test test-all check docs docs-serve format lint types same mutations soak bench clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv/cli: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cli]'
	@touch $@

demo: .venv/cli
	$(BIN)/freewheel train

test: .venv/ready
	$(PYTEST) -m 'not exhaustive'

test-all: .venv/ready
	$(PYTEST) --hypothesis-profile=exhaustive

check: lint types test

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: .venv/ready
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: .venv/ready
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: .venv/ready
	$(BIN)/pyright

same: .venv/ready
	$(BIN)/python tests/same.py $(BASE)

mutations: .venv/ready
	$(BIN)/python tests/mutations.py

soak: .venv/ready
	PYTHONPATH=tests $(BIN)/python tests/soak.py 50

bench: .venv/ready
	$(BIN)/freewheel bench speed

clean:
	rm -rf .venv build dist site src/*.egg-info .pytest_cache .ruff_cache .hypothesis
