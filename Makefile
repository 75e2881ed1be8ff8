# make demo: set up and train on embedded data. make test: set up and run the tests.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard fedsofim/models/*.[ch])

.PHONY: demo setup dev test test-slow lint docs clean

demo: setup
	$(BIN)/fedsofim run

# What runs on features and tables, and deployments, need: no torch, no Ray. A run says what else it wants.
setup: .venv/.ready

# And all that tests, linters and pages want, too.
dev: .venv/.dev

.venv/.ready: EXTRAS = tables,figures
.venv/.dev: EXTRAS = ray,vision,export,test,tables,figures,lint,docs

# Warnings of setuptools, about things that are as they should be, would fill the screen.
.venv/.ready .venv/.dev: $(SOURCES)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch .venv/.ready $@

# A process for each core, of one thread each; the tests of a file stay together.
test: dev
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile

test-slow: dev
	$(BIN)/python -m pytest -q -m slow

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	scripts/one_tree build/one && MYPYPATH=build/one $(BIN)/mypy

# Every page and every notebook, run; nothing is loaded from elsewhere.
docs: dev
	DOCS_EXECUTE=true $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info fedsofim_kernel.*
