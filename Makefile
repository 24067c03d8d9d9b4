# The commands of this repository. `make demo` and `make test` need only
# Python 3.11, gcc and make: they create the virtual environment themselves.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard native/*.pyx native/*.pxd native/*.h) setup.py

.PHONY: demo test lint bench annotate proto clean

# Installed once, again when the declared dependencies change. A TensorFlow that
# is already there (any build) is kept; otherwise the CPU build is taken.
$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/python -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)" \
	  && $(BIN)/pip install --quiet --editable '.[dev]' \
	  || $(BIN)/pip install --quiet --editable '.[dev,worker-cpu]'
	touch $@ build/extensions

# The Cython extensions, beside their sources.
build/extensions: $(VENV)/installed $(SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	mkdir -p build && touch $@

# The source tree as it is imported (shoal/ps and so on), for tools that read
# files instead of importing them.
build/tree: setup.py
	rm -rf $@ && mkdir -p $@/shoal
	for f in shoal/*; do ln -s ../../../$$f $@/shoal/; done
	for d in native proto ps master worker data model_zoo; do ln -s ../../../$$d $@/shoal/$$d; done

test: build/extensions
	$(BIN)/python -m pytest

lint: build/extensions build/tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build/tree && PYTHONPATH=. ../../$(BIN)/lint-imports --config ../../pyproject.toml
	cd build/tree && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml

# Regenerates proto/shoal_pb2.py. protoc 25 on purpose: stubs of that version run
# with every protobuf from 4.25 on, which is what TensorFlow 2.16 and newer pin.
proto:
	test -x build/protoc/bin/python || $(PYTHON) -m venv build/protoc
	build/protoc/bin/pip install --quiet 'grpcio-tools==1.62.3' 'setuptools<80'
	build/protoc/bin/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto proto/shoal.proto

clean:
	rm -rf build dist *.egg-info native/*.c native/*.so native/*.html
