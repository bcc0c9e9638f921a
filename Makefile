# `make` alone says what there is. Each target sets up what it needs by itself; when
# nothing changed, that takes a hundredth of a second.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-stress check fuzz promise chaos hostile test-cluster cluster-up cluster-down cluster-status
.PHONY: images dist test-compose test-helm test-gpu bench dashboard fmt lock proto sdk docs clean test-browser screenshots
MAKEFLAGS += --no-print-directory

# The user's own modules must not replace those of Weft.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP

BIN := .venv/bin
# Handed on to pytest, and to the benchmarks: make test ARGS="tests/unit -k halt"
ARGS ?=
R ?=
N ?=
SEED ?=
FILES ?=
NODES ?=
NAME ?=
FRAMEWORKS ?=
SIMULATED ?=
ON ?=

help: ## This list
	@echo "Weft: train deep-learning models on a shared platform."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  The first run sets up .venv (Python 3.11 or newer; WEFT_PYTHON names one)."

setup:
	@scripts/setup.sh

demo: setup ## Train a real model from nothing (KEEP=1: stay up)
	@scripts/demo.sh

test: setup ## Every test, on all processors (ARGS=... for pytest)
	@scripts/test.sh $(ARGS)

test-stress: setup ## Every test N times on a busy machine (N=5 FILES=...)
	@$(BIN)/python scripts/stress.py --runs $(or $(N),5) $(FILES) $(ARGS)

check: setup ## Lint, types, layers and unit tests: before each commit
	@scripts/check.sh

fuzz: setup ## Property tests with thousands of new examples (ARGS=...)
	@WEFT_FUZZ=1 $(BIN)/pytest --timeout 0 tests/unit $(ARGS)

promise: setup ## Show what is promised: R=R2 (N=20000: so often), or all
	@scripts/test-packages.sh
	@WEFT_PROMISE=$(or $(R),all) WEFT_N=$(N) $(BIN)/pytest --timeout 0 -q $(ARGS)

chaos: setup ## Faults, and an auditor (SEED=17 N=200 ON=kubernetes)
	@scripts/test-packages.sh
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(N),--faults $(N)) $(if $(ON),--on $(ON)) $(ARGS)

hostile: setup ## Tricks of hostile learners and users, audited (ON=...)
	@scripts/test-packages.sh
	@WEFT_HOSTILE=$(or $(ON),all) $(BIN)/pytest --timeout 900 -q --tb=short tests/hostile $(ARGS)

test-browser: setup dashboard ## The dashboard in a real browser (ARGS=... for pytest)
	@scripts/test-packages.sh --browser
	@$(BIN)/pytest -q tests/browser -n 2 $(ARGS)

test-cluster: setup ## The tests on Kubernetes (KUBECONFIG=...: on that)
	@WEFT_TEST_KUBECONFIG=$(KUBECONFIG) scripts/test.sh $(if $(KUBECONFIG),-n 0) tests/cluster $(ARGS)

cluster-up: setup ## Start Kubernetes here (NODES=1..3 SIMULATED=100)
	@$(BIN)/python -m tests.testbed.kubernetes up --nodes $(or $(NODES),$(if $(SIMULATED),0,1)) $(if $(SIMULATED),--simulated $(SIMULATED)) $(ARGS)

cluster-down: setup ## End it without a trace
	@$(BIN)/python -m tests.testbed.kubernetes down

cluster-status: setup ## What runs of it, and how to use it
	@$(BIN)/python -m tests.testbed.kubernetes status

images: setup ## Build images without pulls (NAME=helper FRAMEWORKS=jax)
	@$(BIN)/python -m scripts.images $(NAME) $(if $(FRAMEWORKS),--frameworks $(FRAMEWORKS)) $(ARGS)

dist: setup ## Packages, chart, images, SBOMs and checksums, in dist/
	@$(BIN)/python -m scripts.dist $(ARGS)

test-compose: setup ## docker-compose.yml, really run (FRAMEWORKS=all)
	@$(if $(FRAMEWORKS),WEFT_TEST_FRAMEWORKS="$(FRAMEWORKS)") $(BIN)/pytest -p tests.testbed.progress -o console_output_style=classic tests/compose $(ARGS)

test-helm: setup ## helm/weft, installed on a test cluster and upgraded
	@WEFT_TEST_HELM=all $(BIN)/pytest -p tests.testbed.progress -o console_output_style=classic tests/helm $(ARGS)

test-gpu: setup ## Jobs on this machine's NVIDIA GPUs
	@scripts/test-packages.sh
	@WEFT_TEST_GPU=1 $(BIN)/pytest -q tests/gpu $(ARGS)

bench: setup ## Measure what docs/performance.md reports (ARGS=--quick)
	@$(BIN)/python -m bench $(ARGS)

dashboard: setup ## Build the dashboard that the api serves
	@scripts/dashboard.sh

screenshots: setup ## Take the pictures of docs/dashboard.md anew
	@$(BIN)/python -m scripts.screenshots $(ARGS)

fmt: setup ## Format the code, and mend what can be mended by a tool
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: setup ## Resolve the dependencies anew (ARGS=--upgrade: the newest)
	@scripts/lock.sh $(ARGS)
	@scripts/setup.sh

proto: setup ## Generate the gRPC stubs from proto/
	@$(BIN)/python scripts/proto.py

sdk: setup ## Generate the SDK's synchronous modules from cli/weft/_aio/
	@$(BIN)/python scripts/sdk.py

docs: setup ## Generate the pages that are made from the code
	@$(BIN)/python -m scripts.chart_files
	@for page in settings schema api_reference openapi architecture hostile command_output messages; do $(BIN)/python scripts/$$page.py || exit 1; done
	@scripts/dashboard.sh --generate

clean: ## Remove caches and build outputs (.venv stays)
	@rm -rf build dist cli/build cli/dist services/dashboard/dist services/dashboard/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
