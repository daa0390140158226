# Everything a fresh checkout needs: each target makes the virtual environment it runs in.
#
#   make demo          train a graph network on Cora beside trivial methods; runs/demo/report.html
#   make test          the first tier of the tests that need no GPU, in five minutes: of each quick test
#                      one case, and all of those about every op, layer, model, loader and reader
#   make test-more     the second tier: the other cases, of costly tests a few
#   make test-all      all cases of all tests that need no GPU
#   make peers-test    the tests beside PyTorch Geometric and TensorBoard; downloads torch
#   make seeded-faults whether the tests find all seeded faults, half an hour; writes the record that
#                      make release demands
#   make lint          formatting, lint, types, plain English of docstrings, measured numbers of docs
#   make docs          the documentation as a site, in site/
#   make bench         benchmark tables of this machine's CPU, small sizes
#   make gpu-test      on a GPU box: build, and a few cases of each test, in minutes
#   make gpu-check     on a GPU box: build, all tests, benchmark tables; no network needed
#   make scaling       on a box with several GPUs: training steps on 1, 2, 4 and 8 of them
#   make bench-report  draws a picture and prints a table of what these two have measured
#   make release       the wheel and the sdist of this commit, checked, in dist/; uploads nothing
#
# What is measured lies in runs/, which git ignores; with COMMIT_RESULTS=1 it is added to the results
# that are kept with the code, and the picture is that of the README.

VENV ?= .venv
# The oldest supported release, or `latest`.
JAX ?= 0.11.2
# An environment that has been made, from which another one takes all but JAX.
BASE ?=
# Which of the tests that need no GPU, where; and which of their cases: see --cases in
# tests/conftest.py.
TESTS ?= not gpu and not long
FOLDERS ?= tests
CASES ?= quick
# Other options of pytest.
ARGS ?=
# Test processes on the CPU, each of which begins with a part of its own, so that tests of one file
# find each other's fixtures and compiled programs; and on a GPU box, where they share the GPU.
JOBS ?= 2
GPU_JOBS ?= 14
# The Python of a GPU box: it has JAX for its GPU, our other dependencies, those of `dev` and those of
# the build. With GPU_PIP empty, pip fetches what is missing there.
GPU_PYTHON ?= python3
GPU_PIP ?= --no-build-isolation --no-deps --no-index
# How much is measured there: full is for large GPUs, small a quick look.
GPU_SCALE ?= full
# Where benchmarks append their results, and whether to those that are kept with the code instead.
RESULTS ?= runs/benchmarks
COMMIT_RESULTS ?=

# Sources that are compiled at once, where CMake does not find Ninja, which takes all cores.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)

PYTHON ?= $(shell tools/find_python.sh)
BIN := $(VENV)/bin
JAX_REQUIREMENT := $(if $(filter latest,$(JAX)),--upgrade jax jaxlib,jax==$(JAX) jaxlib==$(JAX))
# What an installation is made of; a new package changes which files it finds.
SOURCES := pyproject.toml $(wildcard ffi/CMakeLists.txt ffi/*/*.cc ffi/include/*/*.h \
  pallas_kernels/*/__init__.py jaxgnn/ops/*/__init__.py)

# Bytecode is written, whatever the environment says: tests and commands start hundreds of processes,
# each of which would compile all sources.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-more test-all peers peers-test seeded-faults lint docs bench bench-report scaling \
  gpu-installed gpu-test gpu-check wheel-check release release-ready clean
.DELETE_ON_ERROR:

# Most of the time of the tests is compilation, and loops fused in XLA's older way take a third less
# of it. With FUSED=default, as in `make test-all`, all is compiled as for users but the kernels that
# JAX interprets on a CPU, which no user does.
FUSED ?= older
FUSED_THE_OLDER_WAY := --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters
# LLVM gets a program in one piece: no core is idle that could take another. XLA takes flags that begin
# with a space, and nothing else, for the name of a file, and ends the process.
TESTED_WITH = $(strip $(XLA_FLAGS) --xla_cpu_parallel_codegen_split_count=1 \
  $(if $(filter older,$(FUSED)),$(FUSED_THE_OLDER_WAY)))

MEASURED = $(if $(COMMIT_RESULTS),--commit-results,--out $(RESULTS))
# Without a GPU all that needs one would be left out of the tests, and the rest pass.
HAS_GPU = import sys, jax; found = jax.default_backend(); \
  sys.exit(None if found == "gpu" else f"gpu-check: JAX of {sys.executable} runs on a {found}, not on \
  a GPU: name a Python whose JAX does with GPU_PYTHON=")

# Each process of the tests takes memory when it needs it and keeps it, up to its own part of four
# fifths of the GPU's, so that no other one runs out of what it was to have. The largest tests fit
# 4.6 GB, the part of one of 14 processes on a GPU of 80 GB.
GPU_MEMORY = XLA_PYTHON_CLIENT_PREALLOCATE=false \
  XLA_PYTHON_CLIENT_MEM_FRACTION=$(shell awk 'BEGIN { printf "%.3f", 0.8 / $(GPU_JOBS) }')

GPU_PYTEST = $(GPU_MEMORY) $(GPU_PYTHON) -m pytest -q -p no:benchmark --numprocesses $(GPU_JOBS) \
  --dist worksteal
# The tests of these folders run on whatever there is.
GPU_OTHERS = tests/ops tests/nn tests/models tests/graph

# The demo needs no linters, solvers and other libraries of the tests.
EXTRA_OF_installed := dev
EXTRA_OF_demo := experiments
# Modules that the demo does not import need no bytecode.
PIP_OF_demo := --no-compile
FOR_DEMO := $(if $(wildcard $(VENV)/installed),installed,demo)

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACKAGES := python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

# Says what takes long before it begins.
SAY := @echo "jaxgnn:"
COMPILES := compiling the CPU kernels, about forty seconds

ifeq ($(BASE),)
$(VENV)/installed $(VENV)/demo: $(VENV)/%: $(SOURCES)
	@test -n "$(PYTHON)"
	$(SAY) "making $(VENV)"
	"$(PYTHON)" -m venv $(VENV)
	$(SAY) "downloading JAX and what [$(EXTRA_OF_$*)] needs, then $(COMPILES)"
	$(PIP_INSTALL) $(PIP_OF_$*) $(JAX_REQUIREMENT) --editable '.[$(EXTRA_OF_$*)]'
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

# The requirements alone, so that nothing of ours is compiled again.
REQUIREMENTS = import sys, tomllib; \
  extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
  print(*extras[sys.argv[1]])

$(VENV)/docs $(VENV)/peers $(VENV)/release: $(VENV)/%: pyproject.toml $(VENV)/installed
	$(PIP_INSTALL) $$($(BIN)/python -c '$(REQUIREMENTS)' $*)
	@touch $@

demo: $(VENV)/$(FOR_DEMO)
	$(SAY) "training on Cora, about a minute"
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments.maxk train --run runs/demo --fresh \
	  --table-seeds 0 1 2 3 4 5 6 7 8 9

test: $(VENV)/installed
	XLA_FLAGS='$(TESTED_WITH)' JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m '$(TESTS)' \
	  --numprocesses $(JOBS) --dist worksteal --cases $(CASES) $(ARGS) $(FOLDERS)

test-more:
	$(MAKE) test CASES=more

test-all:
	$(MAKE) test TESTS='not gpu' CASES=all FUSED=default FOLDERS='tests --ignore tests/pallas_kernels'
	$(MAKE) test TESTS='not gpu' CASES=all FOLDERS=tests/pallas_kernels

# In an environment of its own, with all that .venv has. Settings of pip, such as PIP_INDEX_URL, choose
# another build of torch than the default, which on Linux has the libraries of CUDA.
PEERS = tests/interop/test_pyg.py tests/nn/test_layers_of_torch_geometric.py \
  tests/nn/test_torch_geometric_relations.py tests/experiments/test_benchmark_peers.py \
  tests/training/test_export.py
peers-test: $(VENV)/installed
	$(MAKE) peers VENV=$(VENV)-peers BASE=$(VENV)

peers: $(VENV)/peers
	$(BIN)/python -c 'import tensorboard, torch, torch_geometric'
	$(MAKE) test CASES=all FOLDERS='$(PEERS)'

seeded-faults: $(VENV)/installed
	$(BIN)/python -m tools.seeded_faults --jobs $(JOBS) --record

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(filter %.cc %.h,$(SOURCES)) jaxgnn/_ffi/cuda/*
	$(BIN)/pyrefly check
	$(BIN)/python tools/check_language.py
	$(BIN)/python tools/check_numbers.py

# Any warning ends it. The package is read, not imported: mkdocstrings finds it in the checkout.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/installed
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments.benchmarks --scale small $(MEASURED)

bench-report: $(VENV)/installed
	$(BIN)/python -m experiments.benchmarks.report $(MEASURED)

gpu-installed:
	@$(GPU_PYTHON) -c '$(HAS_GPU)'
	$(SAY) "$(COMPILES)"
	$(GPU_PYTHON) -m pip install --quiet $(GPU_PIP) --editable .
	$(GPU_PYTHON) -m jaxgnn._info

# XLA compiles dozens of kernels for each product to find the fastest; tests of values need none of
# them, and `make gpu-check` runs as users do.
WITHOUT_TUNING = XLA_FLAGS='$(strip $(XLA_FLAGS) --xla_gpu_autotune_level=0)'

gpu-test: gpu-installed
	$(WITHOUT_TUNING) $(GPU_PYTEST) --cases some tests/gpu
	$(WITHOUT_TUNING) $(GPU_PYTEST) --cases first -m 'not long' $(GPU_OTHERS)

gpu-check: gpu-installed
	$(GPU_PYTEST) tests/gpu $(GPU_OTHERS)
	$(GPU_PYTHON) -m experiments.benchmarks --scale $(GPU_SCALE) $(MEASURED)
	$(GPU_PYTHON) -m experiments.benchmarks.report $(MEASURED)

# On CPUs, `JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 python -m experiments.benchmarks.many_gpus` checks
# numbers and bytes. Nothing here needs NVLink multicast.
scaling: gpu-installed
	NCCL_NVLS_ENABLE=0 $(GPU_PYTHON) -m experiments.benchmarks.many_gpus $(MEASURED)
	NCCL_NVLS_ENABLE=0 $(GPU_PYTHON) -m experiments.benchmarks.many_gpus --weak --only proteins $(MEASURED)
	$(GPU_PYTHON) -m experiments.benchmarks.scaling_model $(MEASURED)

# The wheel and the sdist install and work away from the checkout.
wheel-check: $(VENV)/installed
	sh tools/check_wheel.sh "$(abspath $(BIN))/python"

# What would be in the way of a release is told before anything is installed or built.
release: release-ready $(VENV)/release
	sh tools/release.sh build "$(abspath $(BIN))/python"

release-ready:
	@sh tools/release.sh ready

clean:
	rm -rf build dist site .venv* runs
