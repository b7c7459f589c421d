# Every target says what it does in `make help`; variables go on the command line.
PYTHON    ?= python3.12
VENV      ?= .venv
PY        := $(VENV)/bin/python
EXTRAS    ?= train,dev
ALPHABET  ?= dna
OUT       ?= datasets/genome
DATA      ?=
RUN       ?= runs/genome
PRESET    ?=
NODES     ?= 1
GPUS      ?=
PROCS     ?=
EP        ?=
ARGS      ?=
DEMO      ?= build/demo

.DEFAULT_GOAL := help
.PHONY: help install importroot preprocess train eval report export demo test test-slow check format bench clean

help: ## Show this help
	@echo "genomoe: mixture-of-experts language models of genomes and proteins"
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo
	@echo "  make preprocess GENOME=\"PATH ...\" [OUT=DIR] [ALPHABET=dna|rna|protein] [ARGS=\"--flag value\"]"
	@echo "  make train [DATA=DIR] [RUN=DIR] [PRESET=NAME] [NODES=1] [GPUS=N] [PROCS=N] [EP=N] [ARGS=...]"
	@echo "      DATA: datasets/genome, or what the run was started with; GPUS=0: CPU ranks, PROCS of them;"
	@echo "      nothing said: what the machine has. ARGS=\"--dry-run\" plans and starts nothing"
	@echo "  make eval RUN=DIR [ARGS=\"--fasta FILE\"]     make report RUN=DIR"
	@echo "  make export RUN=DIR OUT=DIR [ARGS=\"--dtype bfloat16\"]"

install: $(VENV)/.installed ## Make .venv and install what training needs (minutes, 5 GB)

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || { echo "error: '$(PYTHON)' is not a working Python 3.12; install it, or give PYTHON=/path/to/python3.12" >&2; exit 2; }
	@echo "installing into $(VENV): 5 GB, most of it PyTorch; 1 to 2 minutes on a fast network" >&2
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	@touch $@

importroot: ## Link the source folders as build/importroot/genomoe, for type checkers and PYTHONPATH
	@mkdir -p build/importroot/genomoe
	@for d in data models parallel training tools; do ln -sfn ../../../$$d build/importroot/genomoe/$$d; done

preprocess: $(VENV)/.installed ## FASTA files to a data set: sharded WebDataset, index, manifest
	@test -n "$(GENOME)" || { echo "error: give GENOME=\"FILE ...\" (FASTA, plain or gzip)" >&2; exit 2; }
	@$(PY) -m genomoe.data.preprocess $(GENOME) --out $(OUT) --alphabet $(ALPHABET) $(ARGS)

train: $(VENV)/.installed ## Train, or go on with the run that is there
	@$(PY) -m genomoe.training.launch $(PRESET) $(if $(DATA),--data $(DATA)) --run $(RUN) --nodes $(NODES) $(if $(GPUS),--gpus $(GPUS)) $(if $(PROCS),--procs $(PROCS)) $(if $(EP),--parallel.expert-model-parallel-size $(EP)) $(ARGS)

eval: $(VENV)/.installed ## Score the held-out test split of RUN beside its baselines
	@$(PY) -m genomoe.tools.eval_perplexity $(RUN) $(ARGS)

report: $(VENV)/.installed ## Write RUN/report.html
	@$(PY) -m genomoe.tools.report $(RUN) $(ARGS)

export: $(VENV)/.installed ## Write RUN as a folder OUT for Hugging Face transformers
	@test "$(origin OUT)" != file || { echo "error: give OUT=FOLDER, where the exported model goes" >&2; exit 2; }
	@$(PY) -m genomoe.tools.convert_checkpoint hf export $(RUN) $(OUT) $(ARGS)

demo: $(VENV)/.installed ## The whole job on the bundled genome, on CPU: under 8 minutes on 2 cores
	@$(PY) -m genomoe.tools.demo --out $(DEMO) $(ARGS)

test: $(VENV)/.installed ## Unit, distributed (gloo) and short end-to-end tests: under 10 minutes on 2 cores
	@echo "running the tests: under 10 minutes on 2 cores" >&2
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m "not slow and not gpu and not multigpu" $(ARGS)

test-slow: $(VENV)/.installed ## The tests that take minutes each
	@OMP_NUM_THREADS=1 $(PY) -m pytest -m slow $(ARGS)

check: $(VENV)/.installed importroot ## Lint, formatting, types, import directions
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@MYPYPATH=build/importroot $(VENV)/bin/mypy -p genomoe
	@$(PY) -m pytest -q tests/unit/test_structure.py

format: $(VENV)/.installed ## Rewrite the source with ruff
	@$(VENV)/bin/ruff check --fix . && $(VENV)/bin/ruff format .

bench: $(VENV)/.installed ## Time preprocessing, loading and training steps on this machine
	@$(PY) benchmarks/run_cpu.py $(ARGS)

clean: ## Remove build products and caches; keeps .venv, datasets and runs
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +
