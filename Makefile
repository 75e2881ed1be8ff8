# make demo: set up and train on embedded data. make test: set up and run the tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo setup test test-slow lint docs clean

demo: setup
	$(BIN)/fedsofim run

# Warnings of setuptools, about things that are as they should be, would fill the screen.
setup: .venv/.ready

.venv/.ready: pyproject.toml setup.py constraints.txt $(wildcard fedsofim/models/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray,vision,export,test,tables,figures,lint,docs]'
	touch $@

# A process for each core, of one thread each; the tests of a file stay together.
test: setup
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	scripts/one_tree build/one && MYPYPATH=build/one $(BIN)/mypy

# Every page and every notebook, run; nothing is loaded from elsewhere.
docs: setup
	DOCS_EXECUTE=true $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info fedsofim_kernel.*
