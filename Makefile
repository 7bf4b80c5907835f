# `make demo` to see it, `make test` to check everything. Needs Python 3.11 or newer with venv, nothing else.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" --upgrade
# Two at a time: a test that needs more would be too slow on a small machine.
TEST_WORKERS ?= 2
# Nobody but this machine needs to see a demo.
DEMO_ADDRESS ?= 127.0.0.1:10087

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: $(VENV)/.runtime ## Run the exporter over a simulated rig
	@echo 'Wattline over a simulated rig; stop it with Ctrl-C.'
	@echo '  status page  http://$(DEMO_ADDRESS)/'
	@echo '  metrics      http://$(DEMO_ADDRESS)/metrics'
	@$(BIN)/wattline demo --web.listen-address $(DEMO_ADDRESS)

.PHONY: test
test: lint system servers ## Check everything: style, types, imports, tests
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup $(ARGS)

.PHONY: lint
lint: $(VENV)/.development ## Check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/yamllint --strict .
	$(BIN)/zizmor --offline --no-progress --quiet .github

.PHONY: fmt
fmt: $(VENV)/.development ## Format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: system
system: ## Install the programs that the tests start
	@tools/system-packages.sh cc:gcc chromium:chromium systemd-analyze:systemd
	@tools/system-packages.sh chromium:chromium || echo 'The tests in a browser will be skipped.'

.PHONY: servers
servers: ## Fetch the real servers that the tests start
	@tools/servers.sh
	@tools/servers.sh trixie docker-compose
	@tools/servers.sh sid docker-compose

.PHONY: test-lowest
test-lowest: $(BIN)/uv system servers ## Run the tests with the oldest dependencies allowed
	$(BIN)/uv venv --quiet --clear build/lowest
	$(BIN)/uv pip install --quiet --python build/lowest --resolution lowest-direct --editable . \
		--group test --group browser --group dashboards --group deploy
	build/lowest/bin/pytest -n $(TEST_WORKERS) $(ARGS)

.PHONY: bench
bench: $(VENV)/.development ## Measure what it costs, and write docs/benchmarks.md anew
	@tools/system-packages.sh cc:gcc
	$(BIN)/python -m bench.run --write

.PHONY: engines
engines: $(VENV)/.development ## Compare with real SGLang, vLLM, llama.cpp and Dynamo on the CPU (an hour with installing)
	@tools/system-packages.sh cc:gcc
	$(BIN)/python -m bench.real_engines --keep build/engines/seen $(ARGS)

.PHONY: generate
generate: $(VENV)/.development ## Write every file that is made from something else: rules, dashboards, references, schemas
	$(BIN)/python -m tools.generate $(ARGS)

.PHONY: package
package: $(VENV)/.development ## Build the wheel and the source distribution into dist/, and check them
	@rm -rf dist
	$(BIN)/hatchling build
	$(BIN)/check-wheel-contents dist/*.whl

.PHONY: image
image: ## Build the container image without a container engine, and run it (minutes; needs root and buildah)
	tools/image.sh

.PHONY: lock
lock: $(BIN)/uv ## Write the locked requirements anew
	$(UV_COMPILE) pyproject.toml --output-file requirements.txt
	$(UV_COMPILE) --group build --output-file requirements-build.txt
	$(UV_COMPILE) pyproject.toml --group dev --constraints requirements.txt --constraints requirements-build.txt \
		--output-file requirements-dev.txt

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf $(VENV) .servers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo 'Python 3.11 or newer is needed; name one with PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| tools/system-packages.sh ensurepip:python3-venv
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements.txt requirements-build.txt pyproject.toml | $(BIN)/python
	@$(PIP) --require-hashes -r requirements.txt -r requirements-build.txt
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.development: requirements-dev.txt $(VENV)/.runtime
	@$(PIP) --require-hashes -r requirements-dev.txt
	@touch $@

# Not locked: it makes the locks.
$(BIN)/uv: | $(BIN)/python
	@$(PIP) uv
