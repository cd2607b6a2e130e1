# Every command uses .venv, which it makes first. In an environment of your own, say so:
# `make test-gpu PYTHON=python3` installs nothing and uses what is there.
PYTHON = .venv/bin/python
BASE = python3
COLAB = .venv-colab/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK = 1

ifeq ($(PYTHON),.venv/bin/python)
READY = .venv/ready
endif

# Jupyter refuses to start as root, which in a container is everyone.
LAB = $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help run lab doctor test test-gpu test-colab check build record bench clean

help: ## print this list
	@echo "Where the Time Goes: profiling PyTorch, from the first table to a fused MLP"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | \
	while IFS='|' read -r name text; do printf '%-19s%s\n' "  $$name" "$$text"; done

run: $(READY) ## execute every notebook into build/ (live on a GPU, replayed without)
	@$(PYTHON) -m helpers run

lab: $(READY) ## open JupyterLab on the first notebook
	$(PYTHON) -m jupyterlab $(LAB) --ServerApp.root_dir=. \
	  --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

doctor: $(READY) ## say what this machine can do in the course
	@$(PYTHON) -m helpers doctor

test: $(READY) ## run the tests (no GPU needed)
	$(PYTHON) -m pytest

test-gpu: $(READY) ## run the tests that need a GPU
	$(PYTHON) -m pytest -m gpu tests

test-colab: .venv-colab/ready ## run notebooks and tests on versions like Colab's
	COURSE_MODE=replay $(COLAB) -m helpers run
	$(COLAB) -m pytest --ignore=tests/test_build.py --ignore=tests/test_notebooks.py

check: $(READY) ## lint, rebuild, and require that the built notebooks did not change
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) notebooks/build.py --check

build: $(READY) ## build the notebooks from notebooks/source/
	$(PYTHON) notebooks/build.py

record: $(READY) ## measure everything anew on this GPU and write data/
	@$(PYTHON) -m helpers record

bench: $(READY) ## time and weigh reading a 100 MB trace against other readers
	$(PYTHON) benchmarks/read_traces.py

clean: ## remove build/, the caches and both environments
	rm -rf build .venv .venv-colab .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than the list it was installed from: the second time is instant.
.venv/ready: requirements.txt
	$(call environment,.venv,requirements.txt)
	@touch $@

# Triton comes last and alone: this torch asks for a newer one than Colab has.
.venv-colab/ready: tests/colab.txt
	$(call environment,.venv-colab,tests/colab.txt)
	@.venv-colab/bin/python -m pip install --no-deps 'triton==3.6.0 ; platform_system == "Linux"'
	@touch $@

define environment
@$(BASE) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "The course needs Python 3.11 or newer, and $(BASE) is $$($(BASE) -V 2>&1 || true)." \
  "Name another with: make BASE=python3.12 ..., or use conda (environment.yml)." >&2; exit 1; }
@$(BASE) -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "$(BASE) lacks the venv module. On Debian or Ubuntu: sudo apt install python3-venv" >&2; \
  exit 1; }
@echo "Setting up $(1) with what $(2) lists. PyTorch is the large download (on Linux with its"
@echo "CUDA libraries up to 3 GB): this may take minutes, and happens once."
@$(BASE) -m venv $(1)
@$(1)/bin/python -m pip install -r $(2)
@$(1)/bin/python -c "import matplotlib.font_manager"
endef
