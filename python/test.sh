#!/bin/sh
# Tests the wheel in fresh virtual environments, with NumPy and with nothing: test.sh FOLDER, after `.ci/setup python`.
set -eu
wheel=$(ls "$PWD/$1"/antiphon-*.whl)
for name in numpy bare; do
    rm -rf "target/python/$name"
    python3 -m venv "target/python/$name"
    "target/python/$name/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
done
target/python/numpy/bin/python -m pip install --quiet --disable-pip-version-check numpy pytest
export ANTIPHON_BARE_PYTHON="$PWD/target/python/bare/bin/python"
cd python/tests
exec ../../target/python/numpy/bin/python -m pytest -q -p no:cacheprovider . --ignore with_torch
