#!/usr/bin/env bash
# What `make test-long` does, after the libraries are built. Every step runs; the last lines say which failed.
# STEPS="sanitize fuzz" picks steps.
set -uo pipefail
cd "$(dirname "$0")/../.."
VENV=${VENV:-.venv}
STEPS=${STEPS:-sanitize emulated fuzz slow versions oldest corpus cuda}
python=$VENV/bin/python
compiler=${CXX:-g++}

# Tests of everything that reaches the library, under AddressSanitizer and UndefinedBehaviorSanitizer. The runtime's own
# leaks and its pairs of new and free are not ours to judge.
sanitize() {
    LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)" \
        ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        ONNXFUSE_LIBRARY=$PWD/build/sanitize/libonnxfuse.so \
        ONNXFUSE_TEST_LIBRARY=$PWD/build/sanitize/libonnxfuse_test.so \
        "$python" -m pytest --timeout 1800
}

# The machine's AVX-512 stages with emulated intrinsics: the tests of a processor that has none skip them.
emulated() {
    local PATH="$PWD/$VENV/bin:$PATH"
    cmake -S custom_ops -B build/emulated -G Ninja -DONNXFUSE_TESTS=ON -DONNXFUSE_EMULATE_AVX512=ON &&
        cmake --build build/emulated --target onnxfuse_test accuracy_probe &&
        ONNXFUSE_TEST_LIBRARY=$PWD/build/emulated/libonnxfuse_test.so \
            "$python" -m pytest tests/custom_ops/test_machine.py tests/custom_ops/test_machine_programs.py \
                tests/custom_ops/test_tails.py tests/custom_ops/test_accuracy.py tests/custom_ops/test_half_unary.py
}

# The program parser and the machine on damaged and random programs; damaged containers of GPU code.
fuzz() {
    "$python" custom_ops/fuzz/run.py --library build/sanitize
}

# The shared cases with those that take gigabytes.
slow() {
    ONNXFUSE_SLOW_CASES=1 "$python" -m pytest tests/cases
}

# Optimized models on older ONNX Runtimes, each in an environment of its own.
versions() {
    "$python" tests/long/ort_versions.py
}

oldest() {
    VENV=build/venv-oldest tests/long/oldest.sh
}

corpus() {
    "$python" -m tests.long.corpus
}

# GPU code of every model of the corpus: warnings, local memory, registers, sizes, blocks that it moves.
cuda() {
    "$python" -m tests.long.cuda_models
}

failed=()
for step in $STEPS; do
    printf '\n== %s (%s s)\n' "$step" "$SECONDS"
    "$step" || failed+=("$step")
done
printf '\n%s s; ' "$SECONDS"
if [ ${#failed[@]} -gt 0 ]; then echo "failed: ${failed[*]}"; exit 1; fi
echo "all passed: $STEPS"
