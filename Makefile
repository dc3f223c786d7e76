# `make demo` and `make test` do all the set-up on a fresh machine; PYTHON names the interpreter to make it with.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint figures clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/installed
	$(BIN)/bnuq evaluate sample_configs/quickstart.toml

test: .venv/installed
	$(BIN)/python -m pytest -n auto

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

figures: .venv/installed
	$(BIN)/python docs/make_figures.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
