# Two commands are all a newcomer needs: `make demo` and `make test`. Each makes .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Tests compile far more than they run: compiled without optimisation, and in one part, they take half the time.
# `make test-all` compiles as users do.
# Each worker has one core: with a pool of two threads XLA for CPUs was seen to wait for ever, all of its threads idle.
QUICK  := NPROC=1 JAX_CPU_ENABLE_ASYNC_DISPATCH=false XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
# A test that hangs ends its worker, with the stack of every thread, and counts as failed. A lost worker is not
# replaced: pytest-xdist 3.8 waits for ever for a replacement that is given a single test of a group.
HANGS  := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

.PHONY: demo test test-all drills docs pictures lint bench constraints clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[report,dev,docs]'
	touch $@

demo: $(READY)
	$(BIN)/tacit demo --out demo-output

test: $(READY)
	$(QUICK) $(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart=0 -m 'not slow' $(HANGS)

test-all: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart=0

# What goes wrong between machines, done on purpose; ONLY="kill-a-site ..." for some.
drills: $(READY)
	$(QUICK) $(BIN)/python -m tests.network.drills $(ONLY)

# Into site/, whose index.html opens without a server and without a network; a warning is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Those of the documentation, taken of the real thing by the machine's own Chromium.
pictures: $(READY)
	$(BIN)/python -m tests.report.pictures $(ONLY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.network
	$(BIN)/python -m benchmarks.secure_sum

# Upgrade every locked version at once: a fresh environment, then its exact contents.
constraints:
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check '.[report,network,dev,docs,bench]'
	$(VENV)-lock/bin/python -m pip freeze --exclude tacit --exclude pip > constraints.txt
	rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) demo-output site dist build .pytest_cache .ruff_cache
