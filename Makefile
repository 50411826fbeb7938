# `make demo` trains on digits; `make test` runs the tests; `make check` adds format, lint and types.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests examples

.PHONY: demo test check format lint types same soak bench clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/ready
	$(BIN)/freewheel train

test: .venv/ready
	$(BIN)/pytest --numprocesses=2

check: lint types test

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

soak: .venv/ready
	PYTHONPATH=tests $(BIN)/python tests/soak.py 50

bench: .venv/ready
	$(BIN)/freewheel bench speed

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
