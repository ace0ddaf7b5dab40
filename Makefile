# Each target sets up what it needs; a fresh machine has Python 3.11 or newer, make and a C compiler.
PYTHON ?= python3
PIP_QUIET := --quiet --disable-pip-version-check
VENV := .venv
BENCH := .venv-bench
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types check check-pyro bench clean

# A small model of handwritten digits, trained through relaxations and, with VIMCO, without.
SMALL := 32H~64V --samples 5 --lr 3e-3 --steps 6000 --validate 500 --score-samples 1000
demo: $(VENV)/ready
	rm -rf out/demo
	$(VENV)/bin/concretely train $(SMALL) --estimator concrete --out out/demo/concrete
	$(VENV)/bin/concretely train $(SMALL) --estimator vimco --out out/demo/vimco
	$(VENV)/bin/concretely compare out/demo/concrete out/demo/vimco

test: lint types check

lint: $(VENV)/ready
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(VENV)/ready
	$(VENV)/bin/mypy

# Types and shapes are checked at run time, but for the tests of what those checks would stop: the compiler, bad input.
check: $(VENV)/ready
	$(VENV)/bin/pytest --numprocesses 2
	CONCRETELY_UNCHECKED=1 $(VENV)/bin/pytest --numprocesses 2

# Variables as sites of pyro programs, which the tests above do without.
check-pyro: $(VENV)/ready
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[test,pyro]'
	CONCRETELY_UNCHECKED=1 $(VENV)/bin/pytest tests/test_pyro.py

# The peers that we are timed against live in an environment of their own.
bench: $(BENCH)/ready
	env -u OMP_NUM_THREADS $(BENCH)/bin/python -m benchmarks.node
	env -u OMP_NUM_THREADS $(BENCH)/bin/python -m benchmarks.step
	$(BENCH)/bin/python -m benchmarks.exactness

clean:
	rm -rf $(VENV) $(BENCH) out .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and pinned: left to the others' requirements, pip would fetch gigabytes of CUDA.
$(VENV)/ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV), which takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install $(PIP_QUIET) --requirement constraints.txt
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[test]'
	touch $@

$(BENCH)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install $(PIP_QUIET) --requirement constraints.txt
	$(BENCH)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[bench]'
	touch $@
