# `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH ?= bench
EXTRAS ?= dev
# What pip would compile of all packages takes it longer than Python takes for what is imported.
PIP := $(BIN)/pip install -q --disable-pip-version-check --no-compile -c constraints.txt
# Where Python may not keep what it compiled, every process of every test compiles all of it again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test coverage test-faults test-trainers test-zoo test-long test-torch check format bench
.PHONY: core-alone docs gpu-wheels gpu clean

help: ## Show this list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

setup: $(STAMP) ## Make .venv and install everything that constraints.txt pins.

# torch first and by itself, so that no other package's range chooses another build of it. The
# oracles of the tests go without their dependencies, which would replace torch.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "sweeper needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e '.[$(EXTRAS)]'
	$(PIP) --no-deps mup unit-scaling einops docstring-parser pytorch_optimizer
	@touch $@ $(if $(findstring docs,$(EXTRAS)),$(VENV)/.docs)

demo: setup ## Tune at width 16, transfer to width 64, validate it: a minute or two on two cores.
	$(BIN)/sweeper search experiment=demo
	$(BIN)/sweeper transfer --study demo --to-width 64 --validate

# Collected once beforehand, half by half, or each worker would rewrite every test's asserts for
# itself.
test: setup ## Run the tests.
	@test -d tests/__pycache__ || { $(BIN)/pytest -q --collect-only tests/[a-f]*/ >/dev/null & \
		$(BIN)/pytest -q --collect-only tests/[g-z]*/ tests/test_*.py >/dev/null; wait; }
	$(BIN)/pytest -n 4 --dist worksteal -rs

core-alone: setup ## Show that what answers from runs that are there can be deleted: the core works alone.
	$(BIN)/python scripts/core_alone.py

coverage: setup ## Run the tests and report coverage; slower.
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered

# SWEEPER_FAULT_SEEDS=50 random series of each kind.
test-faults: setup ## Kill and break things at random, an hour; root, slurm-wlm, munge and postgresql help.
	$(BIN)/pytest -rs -m faults

# Beside the environment and without their dependencies, as they ask for other versions of what is in
# it; triton is 1 GB, which torchtitan imports without using it here.
TRAINERS := build/trainers
$(TRAINERS)/.installed: Makefile $(STAMP)
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --upgrade --target $(TRAINERS) \
		torchtitan==0.3.0 datasets==4.7.0 dill==0.4.1 \
		multiprocess==0.70.19 pyarrow==26.0.1 spmd_types==0.2.3 torchdata==0.11.0 \
		triton==3.9.0 typeguard==4.6.0 tyro==1.0.17 xxhash==4.1.0
	@touch $@

test-trainers: $(TRAINERS)/.installed ## Hold exports to the trainers' own code, from PyPI.
	PYTHONPATH=$(TRAINERS) $(BIN)/pytest -rs tests/export

test-zoo: setup ## Classify every family of transformers, coordinate checks; prints their tables.
	$(BIN)/pytest -m long tests/zoo

# Laws that name no number of examples are tried with ten times as many as in every run.
test-long: setup ## What takes minutes each: the zoo, every combination, more trainers, the GPU checks.
	SWEEPER_STEPS=200 SWEEPER_EXAMPLES=300 $(BIN)/pytest -n 2 --dist worksteal -rs -m 'long or (hypothesis and not faults)'

# Where pip has no CPU builds of them it takes those for CUDA, gigabytes each: name an index of CPU
# builds as TORCH_PIP=--index-url=...
TORCHES ?= 2.6.0 2.11.0
TORCH_PIP ?=
QUICK_TESTS := tests/engine tests/models/test_scaled.py tests/models/test_cross_entropy.py \
	tests/classifier/test_operations.py
test-torch: ## A quick set on the lowest torch allowed and on 2.11, each in an environment of its own.
	@set -e; for version in $(TORCHES); do env=.venv-torch/$$version; \
		test -x $$env/bin/pytest || { $(PYTHON) -m venv $$env; \
			$$env/bin/pip install -q --disable-pip-version-check $(TORCH_PIP) torch==$$version; \
			grep -v '^torch==' constraints.txt > $$env/constraints.txt; \
			$$env/bin/pip install -q --disable-pip-version-check -c $$env/constraints.txt \
				-e '.[digits]' pytest pytest-xdist hypothesis; \
			$$env/bin/pip install -q --disable-pip-version-check -c $$env/constraints.txt --no-deps \
				mup unit-scaling einops docstring-parser pytorch_optimizer; }; \
		echo "torch $$version"; \
		$$env/bin/pytest -q -n 2 -m 'not slow and not gpu' -k 'not hf' $(QUICK_TESTS); done

check: setup ## Format, lint and types: exactly what CI checks.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## Put the code in its format.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.docs: $(STAMP)
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## Build the site into build/site, strictly: no broken link, no page unreachable.
	$(BIN)/python scripts/docs/build.py build/docs
	$(BIN)/zensical build --strict --clean
	@echo "build/site/index.html; its search needs a server: python -m http.server -d build/site"

bench: setup ## Time sweeper against its peers on this machine, half an hour; results in bench/.
	mkdir -p $(BENCH)
	$(BIN)/python scripts/bench/orchestration.py --peers $(BENCH)/peers \
		--out $(BENCH)/orchestration.json --markdown $(BENCH)/orchestration.md
	$(BIN)/python scripts/bench/commands.py --out $(BENCH)/commands.json
	$(BIN)/python scripts/bench/search.py --device cpu --launcher local --steps 20 --repeats 3 \
		--out $(BENCH)/search.json --markdown $(BENCH)/search.md
	$(BIN)/python scripts/bench/batching.py --device cpu --sizes s0,s1 --out $(BENCH)/batching.json
	$(BIN)/python scripts/bench/traffic.py --out $(BENCH)/traffic.json --markdown $(BENCH)/traffic.md
	$(BIN)/python scripts/bench/growth.py --sizes 1000 10000 --out $(BENCH)/growth.json
	$(BIN)/python scripts/bench/study.py --out $(BENCH)/study.json --markdown $(BENCH)/study.md
	$(BIN)/python scripts/bench/verdict.py --out $(BENCH)/verdict.json --markdown $(BENCH)/verdict.md
	$(BIN)/python scripts/bench/pruning.py replay | tee $(BENCH)/pruning.txt

# For a GPU machine without a network that has torch, pytest and Python 3.12; 8 MB. The last ones are
# the tests' oracles, some of which PyPI has as source alone.
GPU_WHEELS := hydra-core omegaconf optuna alembic sqlalchemy mako colorlog submitit cloudpickle tomli-w
GPU_BUILT := antlr4-python3-runtime mup unit-scaling docstring-parser pytorch_optimizer
gpu-wheels: setup ## Fetch what gpu.py installs on a bare GPU machine, into .wheels.
	$(BIN)/pip wheel -q --disable-pip-version-check -c constraints.txt --no-deps -w .wheels $(GPU_BUILT)
	$(BIN)/pip download -q --disable-pip-version-check -c constraints.txt --no-deps -d .wheels \
		--only-binary=:all: --python-version 3.12 --implementation cp \
		--platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 $(GPU_WHEELS)

gpu: setup ## Check the engine on this machine's GPU, ten minutes; results in bench/gpu.
	$(BIN)/python scripts/bench/gpu.py --out $(BENCH)/gpu

clean: ## Remove what setup and tests made; studies in runs/ stay.
	rm -rf $(VENV) .venv-torch build .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache .coverage* *.egg-info
