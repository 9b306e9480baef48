# One command for each habit. Each sets up .venv from the lock file first, where that is missing or out of date;
# a machine needs only Python 3.11 or newer and make. Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PIP_FLAGS := --quiet --quiet --disable-pip-version-check --no-input
PIP := $(BIN)/python -m pip $(PIP_FLAGS)
# The lock tool lives apart from what it locks.
UV := $(VENV)/lock-tool/bin/uv

# Real clients that the tests drive, apart from everything else; without a registry, npm or a newer Node they are skipped.
CLIENTS := $(VENV)/clients
PROMTOOL := $(VENV)/promtool/usr/bin/promtool

.PHONY: help venv clients promtool demo serve test check format proofs bench dist container newcomer reference lock clean

help:
	@echo "make demo     eight questions through the real proxy, with a scripted provider (no key, no network)"
	@echo "make serve    run the proxy on 127.0.0.1:8080 with config/default.toml"
	@echo "make test     the tests"
	@echo "make clients  install the real clients that some tests drive (make test does it, too)"
	@echo "make promtool get Prometheus's checker for the metrics (make test does it, too)"
	@echo "make check    lint, format, types"
	@echo "make format   write the format that check wants"
	@echo "make proofs   the heavy variant of the tests; its tables go to docs/proofs/"
	@echo "make bench    the benchmarks"
	@echo "make dist     build wheel and sdist, and install each on every supported Python that is here"
	@echo "make container  the Dockerfile's steps in a clean root file system (root, debootstrap; no engine needed)"
	@echo "make newcomer   the README, command by command, in a fresh clone (TESTS=no: without the tests)"
	@echo "make reference  write the tables of docs/configuration.md from the settings"
	@echo "make lock     pin what pyproject.toml asks for (UPGRADE=1: the newest versions)"
	@echo "make clean    remove .venv and caches"

venv: $(READY)

demo: $(READY)
	@$(BIN)/python -m proxy.demo

serve: $(READY)
	@$(BIN)/evidence-proxy serve --config config/default.toml

# Two processes, since CI has two cores; each test file stays in one of them, so that what it sets up once serves it all.
test: $(READY) clients promtool
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile $(PYTEST_ARGS)

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

proofs: $(READY)
	@EVIDENCE_PROXY_PROOFS=full $(BIN)/python -m pytest -q -n 2 --timeout 0 -m proofs $(PYTEST_ARGS)
	@EVIDENCE_PROXY_PROOFS=full $(BIN)/python -m pytest -q -s --timeout 0 tests/test_properties.py tests/test_trimmed_generated.py $(PYTEST_ARGS)

# All of them, or one by its file's name: make bench BENCH=rewriting
bench: $(READY)
	@for name in $(or $(BENCH),$(basename $(notdir $(wildcard benchmarks/[a-z]*.py)))); do \
		$(BIN)/python -m benchmarks.$$name || exit 1; \
	done

dist: $(READY)
	@$(BIN)/python -m tests.distribution

container: $(READY)
	@$(BIN)/python -m tests.clean_root

newcomer: $(READY)
	@$(BIN)/python -m tests.newcomer $(if $(filter no,$(TESTS)),--no-tests)

reference: $(READY)
	@$(BIN)/python -m tests.reference

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Evidence Proxy needs Python 3.11 or newer; $(PYTHON) is older. Name one: make PYTHON=python3.12"; exit 1; }
	@echo "setting up $(VENV) from requirements-dev.lock ..."
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q proxy
	@touch $@

# By uv, since they are many; it keeps to what the requirements name, as pip would.
clients: $(READY)
	@[ -e $(CLIENTS)/ready ] && [ ! tests/clients/requirements.txt -nt $(CLIENTS)/ready ] \
		&& [ ! tests/clients/requirements-llama-index.txt -nt $(CLIENTS)/ready ] \
		&& [ ! tests/clients/package.json -nt $(CLIENTS)/ready ] || { \
		echo "setting up the clients that tests drive ..."; \
		( cd tests/clients && npm install --no-package-lock --ignore-scripts --no-audit --no-fund --silent --fetch-retries 1 > /dev/null 2>&1 ) & node=$$!; \
		$(MAKE) --no-print-directory $(UV) \
			&& $(UV) venv --quiet --clear --python $(BIN)/python $(CLIENTS) && $(UV) pip install --quiet --python $(CLIENTS)/bin/python -r tests/clients/requirements.txt \
			&& $(UV) venv --quiet --clear --python $(BIN)/python $(CLIENTS)-llama-index \
			&& $(UV) pip install --quiet --python $(CLIENTS)-llama-index/bin/python -r tests/clients/requirements-llama-index.txt \
			&& wait $$node && touch $(CLIENTS)/ready \
			|| echo "not all of them could be installed; tests of those that are missing are skipped"; }

# Prometheus's own tool checks the metrics and the alert rules: unpacked, not installed. Without it those tests are skipped.
promtool: $(READY)
	@command -v promtool > /dev/null || [ -x $(PROMTOOL) ] || { command -v apt-get > /dev/null && mkdir -p $(VENV)/promtool \
		&& cd $(VENV)/promtool && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; } \
		&& dpkg -x prometheus_*.deb . && rm prometheus_*.deb; } > /dev/null 2>&1; } \
		|| echo "promtool could not be had; tests that need it are skipped"

# hatchling and editables are in the lock because the package itself is installed without fetching what is not pinned.
lock: $(UV)
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) pyproject.toml -o requirements.lock
	@printf 'hatchling\neditables\n' | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) \
		--all-extras -c requirements.lock pyproject.toml - -o requirements-dev.lock
	@echo "requirements.lock and requirements-dev.lock are up to date with pyproject.toml"

$(UV):
	@$(PYTHON) -m venv $(VENV)/lock-tool
	@$(VENV)/lock-tool/bin/python -m pip $(PIP_FLAGS) install uv

clean:
	@rm -rf $(VENV) tests/clients/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
