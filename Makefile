# The verbs. They use the Python of the environment that is active.

ARGS ?=

.PHONY: install check test bench crash chaos suspend scale soak

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
	python tests/benchmarks/fleet.py $(ARGS)

# A fleet under attack, three seeds: `make chaos ARGS="--seed 7 --threads 400"`. The last line is the totals, as JSON.
chaos:
	python -m tests.crash.chaos $(ARGS)

# Every step by another drive: a thread is given up after each, and claimed again by whoever comes.
suspend:
	pytest --always-suspend tests/integration $(ARGS)

crash:
	python tests/crash/support/campaign.py $(ARGS)

# Plans of every statement on tables with a million threads, and claims beside 100,000 that wait: a quarter of an hour.
scale:
	STANDFAST_PLAN_THREADS=1000000 STANDFAST_WAITING_THREADS=100000 pytest -n 0 --timeout 3600 tests/scale $(ARGS)

# make soak MINUTES=60
soak:
	python -m tests.crash.chaos.soak --minutes $(or $(MINUTES),10) $(ARGS)
