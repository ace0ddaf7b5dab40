# Each target sets up what it needs; a fresh machine has Python 3.11 or newer, make and a C compiler.
PYTHON ?= python3
PIP_QUIET := --quiet --disable-pip-version-check
VENV := .venv
BENCH := .venv-bench
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE # else every process that a test starts would compile the package again

.PHONY: demo test test-all lint types check check-all check-gpu check-pyro check-ray bench clean

# Train a small model of handwritten digits with Concrete relaxations and with VIMCO, and compare the two.
SMALL := 32H~64V --samples 5 --lr 3e-3 --steps 6000 --validate 500 --score-samples 1000
demo: $(VENV)/command
	rm -rf out/demo
	$(VENV)/bin/concretely train $(SMALL) --estimator concrete --out out/demo/concrete
	$(VENV)/bin/concretely train $(SMALL) --estimator vimco --out out/demo/vimco
	$(VENV)/bin/concretely compare out/demo/concrete out/demo/vimco

# The type checker shares the cores with the tests.
test: $(VENV)/test
	$(MAKE) --jobs 2 lint types check

# All cases of every law; CONTRIBUTING.md says which of them `make test` leaves out.
test-all: $(VENV)/test
	$(MAKE) --jobs 2 lint types check-all
	$(MAKE) check-pyro
	$(MAKE) check-ray

lint: $(VENV)/test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(VENV)/test
	$(VENV)/bin/mypy

check: $(VENV)/test
	$(VENV)/bin/pytest --numprocesses 2 --dist worksteal

check-all: $(VENV)/test
	$(VENV)/bin/pytest --numprocesses 2 --dist worksteal -m ''

# Kernels and captured steps on a GPU. The tests above run on the CPU, kernels in Triton's interpreter.
ON_GPU := kernel data/test_bits.py law/test_finite.py test_device.py \
	$(addprefix training/test_,adam.py batch.py capture.py muon.py own_engine.py step_table.py)
check-gpu: $(VENV)/test
	CONCRETELY_GPU=1 $(VENV)/bin/pytest $(addprefix tests/,$(ON_GPU))

# Variables as sites of pyro programs, which the tests above do without.
check-pyro: $(VENV)/test
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[test,pyro]'
	$(VENV)/bin/pytest tests/test_pyro.py

# Sweeps on Ray. Once it is installed, the tests above include a short one.
check-ray: $(VENV)/test
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[test,ray]'
	$(VENV)/bin/pytest -m '' tests/experiment/test_ray.py

# The peers that we are timed against live in an environment of their own.
bench: $(BENCH)/ready
	env -u OMP_NUM_THREADS $(BENCH)/bin/python -m benchmarks.node
	env -u OMP_NUM_THREADS $(BENCH)/bin/python -m benchmarks.step
	$(BENCH)/bin/python -m benchmarks.exactness

clean:
	rm -rf $(VENV) $(BENCH) out .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and pinned: left to the others' requirements, pip would fetch gigabytes of CUDA.
$(VENV)/command: pyproject.toml constraints.txt
	@echo "setting up $(VENV), which takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install $(PIP_QUIET) --requirement constraints.txt
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[command]'
	touch $@

$(VENV)/test: $(VENV)/command
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[test]'
	touch $@

$(BENCH)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install $(PIP_QUIET) --requirement constraints.txt
	$(BENCH)/bin/pip install $(PIP_QUIET) --constraint constraints.txt --editable '.[bench]'
	touch $@
