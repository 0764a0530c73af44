#!/usr/bin/env bash
# Runs the tests with the oldest version of each dependency that pyproject.toml allows: what its lower bounds promise.
# The runtime is a new one: tests/long/ort_versions.py tries the others. Takes a Python for which those versions have wheels
# (3.10 to 3.12) from PYTHON, or the first of these that is found.
set -euo pipefail
cd "$(dirname "$0")/../.."
VENV=${VENV:-build/venv-oldest}

python=${PYTHON:-}
for candidate in python3.10 python3.11 python3.12; do
    if [ -z "$python" ] && "$candidate" -c 'import venv, ensurepip' > /dev/null 2>&1; then python=$candidate; fi
done
[ -n "$python" ] || { echo "oldest.sh: none of Python 3.10 to 3.12 is here: set PYTHON" >&2; exit 1; }

rm -rf "$VENV"
"$python" -m venv "$VENV"
pip=("$VENV/bin/python" -m pip --disable-pip-version-check --quiet)
# name>=version of the dependencies and of the compilers for GPUs, turned into name==version
sed -n '/^dependencies = \[/,/^\]/p; /^cuda = \[/,/^\]/p' pyproject.toml \
    | grep -o '"[^"]*>=[^"]*"' | tr -d '"' | sed 's/>=/==/' > "$VENV/oldest.txt"
cat "$VENV/oldest.txt"
"${pip[@]}" install -r "$VENV/oldest.txt" "scikit-build-core>=0.10" "cmake>=3.24" "ninja>=1.11"
PATH="$PWD/$VENV/bin:$PATH" "${pip[@]}" install --no-build-isolation --config-settings=build-dir=build/test \
    --constraint "$VENV/oldest.txt" --editable ".[cpu,cuda,test]"
"$VENV/bin/python" -m pytest "$@"
