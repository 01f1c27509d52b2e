# What is done often, by one word. Each line is a command of CONTRIBUTING.md, which has more of them.
PYTHON ?= python

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

lint: ## format, lint, types and import order, as .ci/run begins
	ruff format --check .
	ruff check .
	mypy
	pyright
	lint-imports

quick: ## the quick tier, in two processes: five minutes
	$(PYTHON) -m pytest -q -n 2 --dist loadfile

room: ## the tests of one subpackage, whole, on the CPU device: make room NAME=launch
	$(PYTHON) -m pytest -q --device cpu tests/$(or $(NAME),$(error write: make room NAME=launch))

core: ## build the compiled core, and compare it with the functions that it replaces
	$(PYTHON) -m pip install -q -e .
	NUMBASYNC_NATIVE=1 $(PYTHON) -m pytest -q tests/native

mutants: ## faults planted in the core: a test catches each
	$(PYTHON) -m tests.native.mutants --jobs 2

docs: ## fill figures and counts of the documents, build the site, and test both
	$(PYTHON) -m tests.subpackages
	$(PYTHON) -m pytest -q tests/project/test_site.py tests/project/test_documents.py

ci: ## all that must hold before a change lands
	.ci/run

.PHONY: help lint quick room core mutants docs ci
