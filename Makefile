.PHONY: setup demo demo-fleet test quick newest coverage conformance interop docs reference pictures wheel lint lock bench bench-fleet fuzz soak clean

setup:
	@scripts/setup

# What the package needs to run, and nothing of the developers' environment.
demo:
	@scripts/setup demo
	@.venv-demo/bin/python examples/demo.py

# The package with Ray: four simulated nodes, a node that dies, a driver that is killed.
demo-fleet:
	@scripts/setup fleet
	@.venv-fleet/bin/python scripts/demo_fleet $(ARGS)

test: setup
	@scripts/setup test
	@.venv/bin/python -m pytest -q -n 4 --max-worker-restart 0 --ignore tests/interop $(ARGS)

# What starts no server, keeper or sandbox: done in seconds.
quick: setup
	@.venv/bin/python -m pytest -q -n 2 -m "not system" $(ARGS)

# The pure tests, and one real file of each layer, on the newest Python of this machine.
newest: setup
	@scripts/test_newest $(ARGS)

coverage: setup
	@scripts/setup test
	@.venv/bin/python scripts/coverage $(ARGS)

# Recorded cases against our code; FILES="x.jsonl ..." runs others of the same names.
conformance: setup
	@.venv/bin/python tests/conformance/run.py $(FILES)

interop: setup
	@.venv/bin/python -m pytest -q -n 2 --max-worker-restart 0 tests/interop $(ARGS)

# The site, in build/site; a dead link or anchor is an error.
docs:
	@scripts/setup docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

# The generated pages, anew.
reference: setup
	@for name in api cli protocol; do .venv/bin/python scripts/$${name}_reference > build.tmp || exit 1; \
		case $$name in cli) page=cli-reference ;; *) page=$$name ;; esac; mv build.tmp docs/$$page.md; done

# The terminal pictures of the site and README.md, anew from real runs.
pictures: setup
	@scripts/setup docs
	@.venv-docs/bin/python scripts/terminal_pictures

# Wheel and sdist, and the quickstart with the wheel in an environment of its own.
wheel: setup
	@.venv/bin/python scripts/check_wheel

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache
	@scripts/check_prose
	@.venv/bin/python scripts/lock --check

# Pins for requirements-dev.lock, anew.
lock: setup
	@.venv/bin/python scripts/lock

bench: setup
	@.venv/bin/python bench/compare.py $(ARGS)

# A fleet beside plain Ray tasks and SWE-ReX; ARGS as in bench/fleet.py.
bench-fleet: setup
	@.venv/bin/python bench/fleet.py $(ARGS)

fuzz: setup
	@.venv/bin/python fuzz/run.py $(ARGS)

soak: setup
	@.venv/bin/python tests/system/soak.py $(ARGS)

clean:
	rm -rf .venv .venv-demo .venv-fleet .venv-docs .venv-newest build .coverage* .mypy_cache .ruff_cache .pytest_cache
