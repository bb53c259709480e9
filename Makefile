# Every target sets up what it needs in .venv, and again when setup.cfg or constraints-dev.txt has changed.
# More arguments for the program that a target runs: make test ARGS="tests/core -k order".

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
NUMBERS := tests/test_random_features.py $(patsubst %,tests/core/test_%.py,gradients lbfgs loop metrics weights) \
	$(patsubst %,tests/plugins/test_%.py,accumulate clip ema grad_norm gradient_combinations lr_schedule \
	manual_optimization nonfinite nonfinite_async precision split_on_oom swa tbptt) \
	$(patsubst %,tests/checkpoint/test_%.py,golden resume) $(patsubst %,tests/accelerators/test_%.py,ddp fsdp)
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip install --quiet --constraint constraints-dev.txt

.DEFAULT_GOAL := help
.PHONY: help train test torture without test-processors test-horovod test-xla test-lightning test-slurm test-third-party lint types bench docs pictures clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: $(STAMP)  ## Train a small classifier of handwritten digits
	$(BIN)/python examples/digits.py $(ARGS)

# One thread per process: two test processes share the cores, and sums come out the same on every machine.
test: $(STAMP)  ## Run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# What torch and oneDNN compute differs in the last digit by the instructions that a processor has.
test-processors: $(STAMP)  ## Run the tests of numbers as processors without AVX-512, and without AVX2, compute them
	@for isa in avx2:AVX2 default:SSE41; do \
		echo "ATEN_CPU_CAPABILITY=$${isa%:*} ONEDNN_MAX_CPU_ISA=$${isa#*:}"; \
		ATEN_CPU_CAPABILITY=$${isa%:*} ONEDNN_MAX_CPU_ISA=$${isa#*:} OMP_NUM_THREADS=1 \
			$(BIN)/python -m pytest -n 2 $(NUMBERS) $(ARGS) || exit 1; \
	done

# Each of these engines has an environment of its own, outside the clone and made once; its script says where.
test-horovod:  ## Run the tests of the horovod strategy
	@python=$$(PYTHON=$(PYTHON) bash scripts/horovod_env.sh) && OMP_NUM_THREADS=1 $$python -m pytest tests/horovod $(ARGS)

# Two processes: once imported, torch_xla puts recurrent layers of its own, which take no packed input, in torch's place.
test-xla:  ## Run the tests of the xla device, and those of the core with its torch
	@python=$$(PYTHON=$(PYTHON) bash scripts/xla_env.sh) && export OMP_NUM_THREADS=1 PJRT_DEVICE=CPU && \
		$$python -m pytest tests/xla $(ARGS) && $$python -m pytest tests/core $(ARGS)

test-lightning:  ## Run modules and callbacks of Lightning by Lightning and by the plugin lightning, and compare
	@python=$$(PYTHON=$(PYTHON) bash scripts/peers_env.sh) && OMP_NUM_THREADS=1 $$python -m pytest tests/lightning $(ARGS)

test-ray:  ## Run a training function under Ray Train and under Spark
	@python=$$(PYTHON=$(PYTHON) bash scripts/ray_env.sh) && OMP_NUM_THREADS=1 $$python -m pytest tests/ray $(ARGS)

# The tests start a cluster of their own on this machine, and are passed over where SLURM's programs are not installed.
test-slurm: $(STAMP)  ## Run the tests on a cluster of SLURM
	LIGHTLOOP_SLURM=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/slurm $(ARGS)

# What pip has installed from wheels is tested, which is why pytest is not run as a module: that would find the sources first.
test-third-party:  ## Run the tests of the distributions in examples/third_party with the packages that they are for
	@python=$$(PYTHON=$(PYTHON) bash scripts/third_party_env.sh) && export OMP_NUM_THREADS=1 && \
		for name in mlflow optuna wandb; do \
			(cd examples/third_party/lightloop-$$name && $${python%python}pytest $(ARGS)) || exit 1; \
		done && $$python -m pytest tests/third_party $(ARGS)

# The hosts are network namespaces, which root alone can make; elsewhere the tests are passed over.
test-netns: $(STAMP)  ## Run the tests of two hosts that meet over a network
	LIGHTLOOP_NETNS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/netns $(ARGS)

# Not in `make test`: half an hour of runs that are killed at random and at every call to the file system.
torture: $(STAMP)  ## Run the tests that kill and fail runs by the hundred
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m torture $(ARGS)

without: $(STAMP)  ## Run the tests as if a plugin did not exist: make without NAME=clip
	LIGHTLOOP_WITHOUT=$(NAME) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: $(STAMP)  ## Check style, format and the layers of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(STAMP)  ## Check the types of core and plugins
	$(BIN)/mypy

bench: $(STAMP)  ## Measure what a batch costs beside other libraries: make bench ARGS=--quick
	@python=$$(PYTHON=$(PYTHON) bash scripts/peers_env.sh) && \
		OMP_NUM_THREADS=1 $(BIN)/python benchmarks/compare.py --python $$python $(ARGS)

docs: $(VENV)/.stamp-docs  ## Build the documentation; a warning is an error
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs $(ARGS)

pictures: $(VENV)/.stamp-docs  ## Draw the pictures of the documentation anew
	OMP_NUM_THREADS=1 $(BIN)/python docs/_make/pictures.py $(ARGS)

# The environment stays: it is minutes to build, and its stamp says when it is out of date.
clean:  ## Remove caches, build products and runs
	rm -rf build dist runs *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find benchmarks docs examples lightloop plugins tests -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# torch comes in as a dependency of lightloop and at the version of constraints-dev.txt: asked for by name alone, pip
# takes the newest, which on many machines is a CUDA build of several GB. --no-build-isolation saves a second download
# of setuptools, which the line before has just brought up to date.
$(STAMP): setup.cfg constraints-dev.txt
	@echo "Setting up $(VENV); the first time takes a few minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools wheel
	rm -rf lightloop.egg-info  # one left by a build would hide the entry points of this install
	$(PIP) --no-build-isolation --editable '.[dev,examples]'
	touch $@

# Sphinx is for the documentation alone.
$(VENV)/.stamp-docs: $(STAMP)
	$(PIP) --no-build-isolation --editable '.[docs]'
	touch $@
