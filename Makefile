# What a person runs, and what CI runs. Everything lives in .venv; PYTHON chooses the interpreter.
PYTHON ?= python3
# make install TORCH=cpu takes PyTorch's build for the CPU: PyPI's for Linux brings CUDA, 5.6 GB.
TORCH ?=
BIN := .venv/bin
TESTS ?= tests
GPU_PYTHON ?= 3.12
GPU_WHEELS ?= build/gpu-wheels

.PHONY: install check docs docs-serve kernels test test-deadlines test-others fuzz stress restarts matrix bench gpu gpu-bundle demo coverage clean

install: .venv/installed

# Kernels are compiled when a compressor that needs them is first registered.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "compressa needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH),--extra-index-url https://download.pytorch.org/whl/$(TORCH)) --editable '.[experiments,integrations,docs,dev]'
	touch $@

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/typecheck.py

# The documentation, in build/site; docs-serve shows it while pages are edited.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

# All kernels for gradients in float32, by as many processes as there are cores.
kernels: install
	$(BIN)/python -m compressa.kernels.compile
	$(BIN)/python -m compressa.transports.lowered.compile

# What has deadlines: ranks, which wait for one another half of the time, two tests at a time; then what
# shapes links or tells the time, one by one. Beside it, on what it leaves of the cores, what has none,
# and may take ten minutes for what alone takes one. Of a part of the tests there may be none of one
# kind, which is status 5. What one of the many processes has compiled of Python's files the others load.
test test-deadlines test-others: export PYTHONDONTWRITEBYTECODE =
test: kernels
	$(MAKE) --jobs 2 test-deadlines test-others

test-deadlines: kernels
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "ranks and not (netns or alone)" $(TESTS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m "netns or alone" $(TESTS) || [ $$? -eq 5 ]

test-others: kernels
	nice -n 19 $(BIN)/python -m pytest -n auto --dist worksteal --timeout 600 -m "not (ranks or netns or alone)" $(TESTS) || [ $$? -eq 5 ]

# 100,000 hostile payloads for every compressor; make fuzz FUZZ="--compressor topk --seed 1"
fuzz: install
	$(BIN)/python tests/fuzz.py $(FUZZ)

# 200 random schedules of overlapping faults on real ranks, in half an hour; it prints its seed:
# make stress STRESS="--seed 1 --only 7"
stress: kernels
	$(BIN)/python tests/stress/stress.py $(STRESS)

# 20 kills of random workers under torchrun, with and without compressa; make restarts RESTARTS="--seed 1"
restarts: kernels
	$(BIN)/python tests/restarts.py $(RESTARTS)

# The lowest and the newest versions, on every Python found; make matrix MATRIX="--python 3.13"
matrix: install
	$(BIN)/python tests/matrix.py $(MATRIX)

bench: install
	$(BIN)/python -m benchmarks kernels --scaling --json results/bench/kernels.json
	$(BIN)/python experiments/accuracy_vs_bandwidth.py --plan bench --out results/bench

# Checks every kernel on the GPU, measures them, and writes experiments/results/gpu-NAME-DATE.json.
gpu: install
	$(BIN)/python tests/gpu.py

# The wheels that a machine with a GPU and without an index lacks: there, no installation is needed
# but `python tests/gpu.py --wheels build/gpu-wheels`.
gpu-bundle: install
	$(BIN)/python tests/gpu_bundle.py $(GPU_WHEELS) $(GPU_PYTHON)

demo: install
	$(BIN)/python experiments/accuracy_vs_bandwidth.py --plan demo --out results/demo

# Lines and branches that tests reach, in processes that they start, too.
coverage: kernels
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

clean:
	rm -rf .venv build dist *.egg-info results .pytest_cache .mypy_cache .ruff_cache .hypothesis
