# Every target installs what it needs first. `make help` lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo serve check test soak soak-tests soak-sanitized bench bench-guard bench-page bench-server clean

VENV := .venv
SANITIZED := .venv-sanitize
BIN := $(VENV)/bin
EXTRAS := all,bench,dev
WORKERS ?= 2
ARGS ?=
# Thousands of stores are made and synced: in memory, where there is such a place.
SCRATCH ?= $(shell test -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp})

COMPILED := $(shell find src/ephemera -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
PACKAGING := pyproject.toml setup.py
REINSTALL = $(filter $(PACKAGING),$?)
PIP := -m pip --disable-pip-version-check -qq
# The package was once called ephemera: both names in one environment would own the same files.
FORGET_FORMER_NAME = rm -rf src/ephemera.egg-info && $(1)/bin/python $(PIP) uninstall --yes ephemera

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Put the package, editable, and every extra into .venv

demo: install ## Walk through the store in a few seconds
	@$(BIN)/python examples/demo.py

serve: install ## Serve data/demo.eph to Redis clients; ARGS="…" go to ephemera serve
	@$(BIN)/ephemera serve data/demo.eph $(ARGS)

check: install ## Lint, format, types and house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/house

test: check ## Everything that must pass before a commit
	@.ci/system
	TMPDIR=$(SCRATCH) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --ignore tests/house $(ARGS)

soak: soak-tests soak-sanitized ## The long tests, and the compiled modules under sanitizers

soak-tests: install
	@.ci/system
	$(BIN)/python -m pytest -m soak --timeout 0 --hypothesis-profile soak $(ARGS)

soak-sanitized: $(SANITIZED)/.installed
	@.ci/system
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) PYTHONMALLOC=malloc TMPDIR=$(SCRATCH) \
	ASAN_OPTIONS=detect_leaks=0:suppressions=$(CURDIR)/tests/asan-suppressions.txt UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	$(SANITIZED)/bin/python -m pytest -q -n $(WORKERS) --timeout 0 \
		tests/core tests/engines/local tests/contract tests/resp tests/server tests/test_keyspace.py \
		tests/formats/test_codec.py tests/formats/test_scratch.py tests/crash/test_every_byte.py $(ARGS)

bench: install ## Measure; ARGS="…" go to python -m bench, and --keep of them makes the page
	$(BIN)/python -m bench $(ARGS)

bench-guard: install ## Count instructions per operation and hold them against bench/guard.json
	@.ci/system valgrind
	$(BIN)/python -m bench.guard $(ARGS)

bench-page: install ## Write docs/benchmarks.md and its plots from the kept results
	$(BIN)/python -m bench.page

bench-server: install ## Measure the server beside Redis; ARGS="…" go to python -m bench.server
	@.ci/system
	@$(BIN)/python -m bench.server $(ARGS)

clean: ## Remove everything that was made
	rm -rf $(VENV) $(SANITIZED) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	find src \( -name '*.so' -o -name '*.egg-info' \) -prune -exec rm -rf {} +

# A change of the packaging installs anew; a change of compiled sources only compiles what changed.
$(VENV)/.installed: $(PACKAGING) $(COMPILED)
	@echo "$(if $(REINSTALL),installing into $(VENV) and compiling: a minute or two the first time,compiling)"
	@python=$$(.ci/python) && { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	@$(if $(REINSTALL),$(call FORGET_FORMER_NAME,$(VENV)))
	@$(BIN)/python $(if $(REINSTALL),$(PIP) install --editable '.[$(EXTRAS)]',setup.py --quiet build_ext --inplace)
	@touch $@

$(SANITIZED)/.installed: $(PACKAGING) $(shell find src/ephemera -name '*.py') $(COMPILED)
	@echo "installing into $(SANITIZED)"
	@python=$$(.ci/python) && { test -x $(SANITIZED)/bin/python || "$$python" -m venv $(SANITIZED); }
	@$(call FORGET_FORMER_NAME,$(SANITIZED))
	@EPHEMERA_SANITIZE=1 $(SANITIZED)/bin/python $(PIP) install '.[dev,server]'
	@touch $@
