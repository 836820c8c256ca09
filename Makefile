# Needs Python 3.11 or newer, git and make; everything else is installed into .venv, in the versions of constraints.txt.
#   make audit     run the quickstart and write its report
#   make test      run the tests          make lint   check style, types and imports
#   make results PAGE=dp   every table of docs/results/dp.md again, in pieces that are kept (ARGS=--list: their cost)
#   make dist      build sdist and wheel, run the quickstart from the wheel in an empty environment, list what is in it
#   make vulnerable   look every pinned dependency up in the vulnerability database (needs a network)
# Options: PYTHON=python3.12   TORCH=cpu|cu126|... (which build of torch; default: what pip's index gives)
#          VERSION=x.y.z (of make release)
#          OUT=folder (of the audit; default: a new one below runs/)   JOBS=n (processes of the tests)   ARGS="..." (handed to the tool)

PYTHON ?= python3
OUT ?=
JOBS ?= 2
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INDEX := $(if $(TORCH),--extra-index-url https://download.pytorch.org/whl/$(TORCH))
INSTALL := $(PIP) install --quiet -c constraints.txt $(INDEX) -e
# All but biggan (pyproject.toml says why) and vision (does not import beside a CPU build of torch).
EXTRAS := dp,evidence,flower-data,flower,nvflare,gate,dicom,frames,ggl,ray,tables,text,trees,tuning,volumes,test,docs
BUILD := build==1.6.1 hatchling==1.33.0 twine==6.2.0
LISTS := cyclonedx-bom==7.5.0 pip-licenses==5.5.5
# Some machines forbid compiled files: then each of the hundreds of processes that tests start would compile the package.
SINGLE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.DELETE_ON_ERROR:
.PHONY: audit test integration slow mutants lint format bench results docs dist vulnerable release install freeze clean

audit: .venv/.core
	$(BIN)/glasshouse audit quickstart $(if $(OUT),--out $(OUT)) $(ARGS)

test: .venv/.all
	$(SINGLE) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow and not integration" $(ARGS)

# Whole audits, deployments of Flower and FLARE, installed packages, a browser.
integration: .venv/.all
	$(SINGLE) $(BIN)/python -m pytest -q -n $(JOBS) -m "integration and not slow" $(ARGS)

slow: .venv/.all
	$(SINGLE) $(BIN)/python -m pytest -q -n $(JOBS) -m slow $(ARGS)

# Hours: only files that changed since the last run are mutated again. Survivors: `mutmut results`.
mutants: .venv/.all
	$(SINGLE) $(BIN)/mutmut run --max-children $(JOBS) $(ARGS)
	$(BIN)/mutmut results

lint: .venv/.all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/.all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.all
	$(SINGLE) $(BIN)/python -m benchmarks $(ARGS)

results: .venv/.all
	$(SINGLE) $(BIN)/python -m reproduce.pages $(PAGE) $(if $(OUT),--out $(OUT)) $(ARGS)

# Without --quiet, under which --strict sees no warning and cannot fail.
docs: .venv/.all
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel is built from the sdist, so both are whole; it must hold every file of the package, be one that a registry
# takes, and run elsewhere. Beside them: a bill of materials (CycloneDX) and the licences of all that a user gets.
dist:
	rm -rf dist
	set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; pip="-m pip --disable-pip-version-check install --quiet"; \
	$(PYTHON) -m venv "$$place/tools"; \
	"$$place/tools/bin/python" $$pip -c constraints.txt $(BUILD); \
	"$$place/tools/bin/python" -m build --no-isolation --outdir dist .; \
	"$$place/tools/bin/twine" check --strict dist/*; \
	git ls-files src/glasshouse docs/plugins | sed 's,^src/,,; s,^docs/plugins,glasshouse/pages,' | sort > "$$place/files"; \
	$(PYTHON) -m zipfile -l dist/*.whl | awk '$$1 ~ "^glasshouse/" {print $$1}' | sort | diff "$$place/files" -; \
	$(PYTHON) -m venv "$$place/user"; \
	"$$place/user/bin/python" $$pip -c constraints.txt $(INDEX) "$$(echo dist/*.whl)[ggl]"; \
	"$$place/tools/bin/python" $$pip $(LISTS); \
	"$$place/tools/bin/cyclonedx-py" environment --output-format JSON --output-file dist/sbom.json "$$place/user/bin/python"; \
	"$$place/tools/bin/pip-licenses" --python "$$place/user/bin/python" --format=markdown --output-file=dist/licences.md; \
	cd "$$place"; unset PYTHONPATH; user/bin/python -m glasshouse audit quickstart --out run; test -s run/report.html; \
	test $$(wc -c < run/report.html) -le 1500000

vulnerable: | .venv/bin/python
	set -e; place=$$(mktemp -d); trap 'rm -rf "$$place"' EXIT; $(PYTHON) -m venv "$$place"; \
	"$$place/bin/python" -m pip --disable-pip-version-check install --quiet pip-audit==2.10.1; \
	"$$place/bin/pip-audit" --requirement constraints.txt --no-deps --disable-pip

# The one change that a release is: `make release VERSION=1.0.0`, then look at the difference, and commit.
release:
	test -n "$(VERSION)"
	sed -i.old 's/^__version__ = .*/__version__ = "$(VERSION)"/' src/glasshouse/__init__.py
	sed -i.old "s/^version: .*/version: $(VERSION)/; s/^date-released: .*/date-released: $$(date +%F)/" CITATION.cff
	sed -i.old "s/^## .* (unreleased)$$/## $(VERSION) ($$(date +%F))/" CHANGELOG.md
	rm -f src/glasshouse/__init__.py.old CITATION.cff.old CHANGELOG.md.old

install: .venv/.all

# Rewrite the pins from what is installed now.
freeze: .venv/.all
	@head -2 constraints.txt > constraints.new
	@$(PIP) freeze --all --exclude-editable | grep -vE '^(pip|glasshouse)==' | sed 's/+[a-z0-9]*$$//' >> constraints.new
	@mv constraints.new constraints.txt

# Removes what tools leave behind. The environment and your runs stay: `rm -r .venv runs` if you mean those.
clean:
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Glasshouse needs Python 3.11 or newer; '$(PYTHON)' is older or missing. Try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

# Stamps: installed again only when the metadata or the pins changed.
# The quickstart needs the core and ggl: one of its parts searches a generator by CMA-ES.
.venv/.core: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) '.[ggl]'
	@touch $@

.venv/.all: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) '.[$(EXTRAS)]'
	@touch .venv/.core $@
