# One environment (.venv) from one lock (requirements.lock); every target works in a fresh clone with nothing installed.
PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.installed
OPERATORS := .venv/.operators
SOURCES = $(wildcard api/resnetboost_api operator/resnetboost operator/resnetboost_operator trainer/resnetboost_trainer tests bench)
OPERATOR_TESTS = $(wildcard $(addprefix tests/,integration/test_operator_*.py integration/test_gang_*.py \
	integration/test_kueue.py chart/test_*.py))
# The longest files first: a worker that begins with one last would be waited for.
FAST_TESTS = $(wildcard tests/contract tests/golden tests/unit)
# uv shows its progress bars to a person and is silent in a log.
UV := $(BIN)/uv $(shell [ -t 2 ] || echo --quiet)

COMPILE = $(UV) pip compile --universal --python-version 3.11 --generate-hashes \
  --no-emit-package resnetboost-api --no-header --no-annotate --no-emit-index-url --no-emit-find-links

# Matplotlib would write its font cache into the home folder.
export MPLCONFIGDIR := $(CURDIR)/build/matplotlib

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: setup  ## Train examples/digits.yaml on 2 CPU ranks of this machine and write a report
	@$(BIN)/resnetboost run examples/digits.yaml

CLUSTER := beds.cluster --crd crds/resnetboostjobs.yaml
CLUSTER_gangs := $(CLUSTER) --gangs --nodes=6
CLUSTER_kubelet := beds.kubelet

.PHONY: cluster
cluster: setup  ## Start a Kubernetes to try the operator on: NODE=kubelet runs real pods, also WITH="kueue monitoring"; GANGS=1 has a gang scheduler
	@PYTHONPATH=tests $(BIN)/python -m \
	  $(or $(CLUSTER$(NODE:%=_%)$(if $(GANGS),_gangs)),$(error NODE is kubelet or nothing, and with GANGS nothing)) \
	  $(addprefix --,$(WITH))

# Four tests at a time, since many of them wait for something; those of one file, and more that share a test bed, by the
# same process.
PYTEST := $(BIN)/python -m pytest --numprocesses=4 --dist=loadfile --no-loadscope-reorder

.PHONY: test
test: setup  ## Run all tests but the long ones (about eleven minutes)
	@$(PYTEST)

.PHONY: test-fast
test-fast: setup  ## Run the quick ones of the unit, golden and contract tests (less than a minute)
	@$(PYTEST) -m "not slow and not long" --hypothesis-profile=quick $(FAST_TESTS)

.PHONY: test-all
test-all: test test-long test-chaos audit  ## Run all tests: also on a real node, with 16 ranks, and with every crash (more than an hour)

.PHONY: test-long
test-long: test-cluster  ## Run what `make test` leaves out, without the chaos tests
	@$(PYTEST) -m "long and not chaos" --ignore=tests/kubelet $(addprefix --ignore=,$(OPERATOR_TESTS))

.PHONY: test-cluster
test-cluster: setup  ## Run the long tests of the operator: on a real node, with gang schedulers and Kueue, upgrades
	@# Alone: gangs of 16 ranks beside them starve a node's containers until they look hung.
	@$(BIN)/python -m pytest -m "long and not chaos" tests/kubelet
	@$(PYTEST) -m "long and not chaos" $(OPERATOR_TESTS)

.PHONY: test-chaos
test-chaos: setup  ## Kill the operator around each of its writes, in every scenario (about 10 minutes)
	@$(PYTEST) -m chaos tests/integration

.PHONY: fuzz
fuzz: setup  ## Feed mutated input to whoever reads foreign input: CASES=100000 TARGETS="job progress" SEED=0
	@PYTHONPATH=tests $(BIN)/python -m fuzz --cases=$(or $(CASES),2000) --seed=$(or $(SEED),0) $(TARGETS)

.PHONY: audit
audit: setup  ## Look for known vulnerabilities of the locked packages; says so loudly where no index can be asked
	@$(BIN)/python scripts/audit.py

.PHONY: mutation
mutation: setup  ## Change single expressions and list which changes no unit test notices: AREAS="planning" (about 20 minutes)
	@$(BIN)/python scripts/mutation_sample.py $(AREAS)

.PHONY: lint
lint: setup  ## Check format, code, types, import rules and YAML
	$(BIN)/ruff format --check --output-format concise .
	$(BIN)/ruff check --output-format concise .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/yamllint --strict .
	$(BIN)/python scripts/write_crd.py --check
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python scripts/set_version.py --check

.PHONY: format
format: setup  ## Format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: golden
golden: setup  ## Write the golden manifests of the examples anew; read the diff afterwards
	@UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/golden
	@git diff --stat -- tests/golden

.PHONY: crd
crd: setup  ## Write crds/resnetboostjobs.yaml and the chart's copy from the structs of api/
	@$(BIN)/python scripts/write_crd.py

.PHONY: reference
reference: setup  ## Write docs/reference-*.md from the structs of api/ and the commands' help
	@$(BIN)/python scripts/write_reference.py

.PHONY: docs
docs: setup  ## Build the documentation site into build/site and check every link
	@$(BIN)/python scripts/build_site.py

.PHONY: chart
chart: setup  ## Write the table of values in the chart's README anew
	@$(BIN)/python scripts/chart_values.py

.PHONY: rights
rights: setup  ## Write the tables of rights in docs/security.md anew, as a real API server answers
	@UPDATE_RIGHTS=1 $(BIN)/python -m pytest -q tests/chart/test_rights.py
	@git diff --stat -- docs/security.md

.PHONY: pictures
pictures: setup  ## Draw docs/dashboard-*.png anew from runs on a real node (needs root, some minutes)
	@DASHBOARD_PICTURES="$(CURDIR)/docs" $(BIN)/python -m pytest -q -m long tests/kubelet/test_monitoring.py -k picture

.PHONY: terminal-picture
terminal-picture: setup  ## Draw docs/terminal.svg anew from two runs and their comparison (needs tmux, a minute)
	@$(BIN)/python scripts/terminal_picture.py

.PHONY: version
version: setup  ## Set the version of programs, chart and documents: VERSION=0.2.0
	@$(BIN)/python scripts/set_version.py "$(VERSION)"
	@$(MAKE) setup crd reference golden

.PHONY: release
release: setup  ## Build wheels, chart, bills of materials and sums into build/release; with IMAGES="operator trainer-cpu" also these
	@BASE_IMAGE="$(BASE_IMAGE)" $(BIN)/python scripts/release.py $(IMAGES)

.PHONY: images
images:  ## Build images: BASE_IMAGE=... IMAGES="operator trainer-cpu" (docs/images.md)
	@BASE_IMAGE="$(BASE_IMAGE)" scripts/build-images $(IMAGES)

.PHONY: bench
bench: setup  ## Measure how fast it is: a table, build/bench*.json and build/speed.png (40 minutes; bench-accuracy is apart)
	@PYTHONPATH=tests $(BIN)/python -m bench

.PHONY: bench-picture
bench-picture: setup  ## Draw docs/speed.png from what build/ has of the bench
	@$(BIN)/python -m bench.picture build/bench.json build/bench-scale.json docs/speed.png

bench-%: setup  ## Measure one suite, or `accuracy`: what whole runs achieve (30 minutes); merge it into build/bench.json
	@PYTHONPATH=tests $(BIN)/python -m bench $*

.PHONY: setup
setup: $(STAMP) $(OPERATORS)  ## Make .venv from requirements.lock; does nothing when it is up to date
	@:

# A copied or moved tree starts over: its .venv would still point at the old place.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

$(STAMP): requirements.lock api/pyproject.toml operator/pyproject.toml trainer/pyproject.toml
	@[ "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" ] || $(MAKE) .fresh-venv
	@echo "setup: installing $$(grep -c == requirements.lock) locked packages into .venv (MindSpore is the large one)"
	@# Else every rank compiles MindSpore anew, for 2 s, where PYTHONDONTWRITEBYTECODE is set.
	@$(UV) pip sync --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --no-index -e api -e operator -e trainer
	@echo "$(CURDIR)" > $@
	@echo "setup: done"

# Faster operators for CPUs, where a C++ compiler is; all works without them.
$(OPERATORS): $(STAMP) $(wildcard trainer/resnetboost_trainer/kernels/*.cpp trainer/resnetboost_trainer/kernels/*.h)
	@$(BIN)/python -m resnetboost_trainer.kernels.build
	@touch $@

.PHONY: .fresh-venv
.fresh-venv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || \
	  { echo "setup: $(PYTHON) must be Python 3.11 or 3.12 but is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "setup: making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock

.PHONY: lock
lock:  ## Resolve the newest allowed versions again into requirements.lock
	@[ -x $(BIN)/uv ] || $(MAKE) .fresh-venv
	@$(COMPILE) operator/pyproject.toml trainer/pyproject.toml --all-extras --group pyproject.toml:dev \
	  --upgrade --output-file requirements.lock >/dev/null
	@$(COMPILE) scripts/release.in --upgrade --output-file scripts/release.lock >/dev/null
	@$(COMPILE) scripts/audit.in --upgrade --output-file scripts/audit.lock >/dev/null
	@$(MAKE) images/locks

# Of the versions in requirements.lock those an image needs.
.PHONY: images/locks
images/locks:
	@$(COMPILE) $@/build.in --constraint requirements.lock --output-file $@/build.lock >/dev/null
	@$(COMPILE) $@/cuda.in --output-file $@/cuda.lock >/dev/null
	@$(COMPILE) operator/pyproject.toml --constraint requirements.lock --output-file $@/operator.lock >/dev/null
	@$(COMPILE) trainer/pyproject.toml --constraint requirements.lock --output-file $@/trainer.lock >/dev/null

.PHONY: clean
clean:  ## Remove .venv, caches and build outputs; run folders stay
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find api operator trainer tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
