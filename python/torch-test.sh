#!/bin/sh
# Tests the wheel with PyTorch: torch-test.sh FOLDER [ENVIRONMENT], after `.ci/setup ENVIRONMENT` (torch).
set -eu
wheel=$(ls "$PWD/$1"/antiphon-*.whl)
python=$PWD/target/python/${2:-torch}/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel"
cd python/tests/with_torch
exec "$python" -m pytest -q -rs -p no:cacheprovider .
