# Everything a fresh checkout needs: each target makes the virtual environment it runs in.
#
#   make demo          train a MaxK-GraphSAGE on the embedded data
#   make test          all tests that need no GPU
#   make lint          formatting, lint, types
#   make bench         benchmark tables of this machine's CPU, small sizes
#   make gpu-check     on a GPU box: build, all tests, benchmark tables; no network needed
#   make bench-report  draws the README's picture and prints its table, from the results

VENV ?= .venv
# The oldest supported release, or `latest`.
JAX ?= 0.11.2
# An environment that has been made, from which another one takes all but JAX.
BASE ?=
# Which of the tests that need no GPU; and `first` for the first case of each, or if it lowers all.
TESTS ?= not gpu
CASES ?= all
# Test processes on the CPU, each of which begins with a part of its own, so that tests of one file
# find each other's fixtures and compiled programs; and on a GPU box, where they share the GPU.
JOBS ?= 2
GPU_JOBS ?= 6
# The Python of a GPU box that has JAX for its GPU already.
GPU_PYTHON ?= python3
# Where benchmarks append their results.
RESULTS ?= experiments/benchmarks/results

# Sources that are compiled at once, where CMake does not find Ninja, which takes all cores.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

PYTHON ?= $(shell tools/find_python.sh)
BIN := $(VENV)/bin
JAX_REQUIREMENT := $(if $(filter latest,$(JAX)),--upgrade jax jaxlib,jax==$(JAX) jaxlib==$(JAX))
SOURCES := pyproject.toml $(wildcard ffi/CMakeLists.txt ffi/*/*.cc ffi/*/*.cu ffi/include/*/*.h)

.PHONY: demo test lint bench bench-report gpu-check cuda-check wheel-check clean
.DELETE_ON_ERROR:

PYTEST = JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m '$(TESTS)' --numprocesses $(JOBS) \
  --dist worksteal $(if $(filter first,$(CASES)),--first-cases)
# Kernels as JAX interprets them on a CPU, which no user does, are large programs, most of whose time
# is compilation; loops fused in XLA's older way take a quarter less of it.
FUSED_THE_OLDER_WAY := --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACKAGES := python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

ifeq ($(BASE),)
$(VENV)/installed: $(SOURCES)
	@test -n "$(PYTHON)"
	"$(PYTHON)" -m venv $(VENV)
	$(PIP_INSTALL) $(JAX_REQUIREMENT) --editable '.[dev]'
	@touch $@
else
$(VENV)/installed: $(BASE)/installed
	@test -n "$(PYTHON)"
	"$(PYTHON)" -m venv $(VENV)
	echo "import site; site.addsitedir('$$($(BASE)/bin/$(PACKAGES))')" >"$$($(BIN)/$(PACKAGES))/base.pth"
	$(PIP_INSTALL) $(JAX_REQUIREMENT)
	$(BIN)/python -m pip check
	@touch $@
endif

demo: $(VENV)/installed
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments.maxk train --run runs/demo --fresh

test: $(VENV)/installed
	$(PYTEST) --ignore tests/pallas_kernels
	XLA_FLAGS='$(XLA_FLAGS) $(FUSED_THE_OLDER_WAY)' $(PYTEST) tests/pallas_kernels

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cc %.cu %.h,$(SOURCES))
	$(BIN)/pyrefly check

bench: $(VENV)/installed
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments.benchmarks --scale small --out $(RESULTS)

bench-report: $(VENV)/installed
	$(BIN)/python -m experiments.benchmarks.report

gpu-check:
	$(GPU_PYTHON) -m pip install --quiet --no-build-isolation --no-deps --no-index --editable .
	$(GPU_PYTHON) -m jaxgnn._info
	XLA_PYTHON_CLIENT_PREALLOCATE=false $(GPU_PYTHON) -m pytest -q -p no:benchmark \
	  --numprocesses $(GPU_JOBS) tests/ops tests/nn tests/models tests/graph tests/gpu
	$(GPU_PYTHON) -m experiments.benchmarks --scale full --out $(RESULTS)

# The install compiles the CUDA library for every architecture where nvcc is; no GPU needed.
cuda-check: $(VENV)/installed
	$(BIN)/python -m pytest -q tests/ffi -k cuda

# The wheel and the sdist install and work away from the checkout.
wheel-check: $(VENV)/installed
	sh tools/check_wheel.sh "$(abspath $(BIN))/python"

clean:
	rm -rf build dist .venv* runs
