# `make` lists the targets. Everything works from a fresh clone; nothing has to be installed by hand but
# Python >= 3.10 with its venv module and a C++ compiler (gcc >= 12 or clang).

VENV  ?= .venv
PYTEST ?=
# Where the virtual environment comes from: the first Python >= 3.10 that can create one.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && echo "$$p" && break; done)
# onnxruntime-gpu has wheels for Linux and Windows on x86-64 only.
RUNTIME ?= $(shell case "$$(uname -sm)" in ("Linux x86_64"|MINGW*x86_64|MSYS*x86_64) echo gpu;; (*) echo cpu;; esac)

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check
# One build folder for everything, so that a change compiles what it touches and nothing else.
BUILD   := build/test
ONCE    := --quiet --no-build-isolation --config-settings=build-dir=$(BUILD)
SOURCES := $(shell find custom_ops -type f 2>/dev/null) onnxfuse/program/instructions.py onnxfuse/codegen/layout.py
TOOLS   := $(VENV)/.tools
LIBRARY := $(VENV)/.library
TESTLIB := $(BUILD)/.built
# The compiled part of the benchmark beside the test library: what the bench targets, and its own tests, load.
BENCHLIB := $(BUILD)/.built-bench
BENCHSRC := $(wildcard benchmarks/native/*)
SANLIB  := build/sanitize/.built
EXACTLIB := build/exhaustive/.built
ARGS    ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv run test exhaustive test-long test-oldest lint fix build build-bench wheel models docs bench bench-models bench-optimizer bench-cuda picture goldens clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.10 with the venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV)

# The build tools. pip's own build isolation would fetch them anew for every build.
$(TOOLS): | $(BIN)/python
	@$(PIP) install --quiet "scikit-build-core>=0.10" "cmake>=3.24" "ninja>=1.11"
	@touch $@

# Everything else, as pyproject.toml says, and the library.
$(LIBRARY): $(TOOLS) pyproject.toml $(SOURCES)
	@echo "installing what the project needs (runtime: $(RUNTIME)) and building the library"
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) install $(ONCE) --editable ".[$(RUNTIME),cuda,dev]"
	@touch $@

$(TESTLIB): $(LIBRARY)
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S custom_ops -B $(BUILD) -DONNXFUSE_TESTS=ON > /dev/null
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build $(BUILD)
	@touch $@

$(BENCHLIB): $(TESTLIB) $(BENCHSRC)
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S custom_ops -B $(BUILD) -DONNXFUSE_TESTS=ON -DONNXFUSE_BENCH=ON > /dev/null
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build $(BUILD)
	@touch $@

$(SANLIB): $(TOOLS) $(SOURCES)
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S custom_ops -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DONNXFUSE_TESTS=ON -DONNXFUSE_FUZZ=ON -DONNXFUSE_SANITIZE=ON $(CMAKE_ARGS)
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build build/sanitize
	@touch $@

# A processor with AVX2 alone runs the code of AVX-512 with emulated intrinsics.
$(EXACTLIB): $(TOOLS) $(SOURCES)
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S custom_ops -B build/exhaustive -G Ninja -DONNXFUSE_TESTS=ON \
		-DONNXFUSE_EMULATE_AVX512=$$(grep -w avx2 /proc/cpuinfo | grep -qvw avx512vl && echo ON || echo OFF) > /dev/null
	@PATH="$(abspath $(BIN)):$$PATH" cmake --build build/exhaustive --target accuracy_probe onnxfuse_test
	@touch $@

venv: $(LIBRARY) ## create the virtual environment with everything in it
build: $(LIBRARY) $(TESTLIB) ## compile the library and the test library
build-bench: $(BENCHLIB) ## compile the native part of the benchmark too

run: $(LIBRARY) ## optimize a few real models, check them and print one table
	@$(BIN)/python -m models.run

test: $(LIBRARY) $(TESTLIB) $(BENCHLIB) ## run the tests
	@$(BIN)/python -m pytest $(PYTEST)

exhaustive: $(LIBRARY) $(EXACTLIB) ## errors of all instructions on all floats, docs/accuracy.md (ARGS="--instructions exp": one)
	@$(BIN)/python -m tests.long.exhaustive --write docs/accuracy.md $(ARGS)

test-long: $(LIBRARY) $(TESTLIB) $(SANLIB) ## sanitizers, fuzzer, older runtimes, every model: hours
	@VENV=$(VENV) tests/long/run.sh

test-oldest: $(TESTLIB) ## run the tests with the oldest versions that pyproject.toml allows
	@VENV=build/venv-oldest tests/long/oldest.sh

lint: $(LIBRARY) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy

fix: $(LIBRARY) ## let ruff repair what it can
	@$(BIN)/ruff check --fix .

wheel: $(LIBRARY) ## build the wheel into dist/
	@PATH="$(abspath $(BIN)):$$PATH" $(PIP) wheel $(ONCE) --no-deps --wheel-dir dist .

models: $(LIBRARY) ## optimize the whole corpus and write docs/models.md (long)
	@$(BIN)/python -m tests.long.corpus --write docs/models.md

bench: $(BENCHLIB) ## speed of the twelve chains against ONNX Runtime, hand-written loops and others (15 minutes)
	@$(BIN)/python -m benchmarks.run_chains

bench-models: $(LIBRARY) ## speed of the whole corpus, fused against unfused (half an hour)
	@$(BIN)/python -m benchmarks.run_models

bench-optimizer: $(LIBRARY) ## time of the optimizer itself on large made-up models
	@$(BIN)/python -m benchmarks.run_optimizer

bench-cuda: $(LIBRARY) ## time and bytes that GPU code adds, over the whole corpus (half an hour)
	@$(BIN)/python -m benchmarks.run_cuda

docs: $(LIBRARY) ## write docs/ops.md anew from the op table
	@$(BIN)/python -m onnxfuse.ops.docs > docs/ops.md

picture: $(LIBRARY) ## make the picture of the README anew from a real run
	@$(BIN)/python -m models.run --svg docs/images/run.svg

goldens: $(LIBRARY) $(TESTLIB) ## write the expected texts of the tests anew (read the diff)
	@$(BIN)/python -m pytest -p no:randomly --update-goldens $(PYTEST)

clean: ## remove what was built
	rm -rf build dist run-output .pytest_cache .mypy_cache .ruff_cache $(LIBRARY)

distclean: clean ## remove the virtual environment too
	rm -rf $(VENV)
