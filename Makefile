# Four verbs. They use the Python of the environment that is active.

ARGS ?=

.PHONY: install check test bench

install:
	python -m pip install -e ".[dev]"

# The symlinks in tests/typings let tools that cannot follow an editable install see the folders as one package.
check:
	ruff check .
	ruff format --check .
	mypy
	PYTHONPATH=tests/typings lint-imports

test:
	pytest $(ARGS)

bench:
	python tests/benchmarks/bench.py $(ARGS)
