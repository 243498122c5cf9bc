.PHONY: setup demo test quick newest coverage conformance interop lint lock bench fuzz soak clean

setup:
	@scripts/setup

demo: setup
	@.venv/bin/python examples/demo.py

test: setup
	@.venv/bin/python -m pytest -q -n 2 --dist loadgroup --max-worker-restart 0 --ignore tests/interop $(ARGS)

# What starts no server, keeper or sandbox: done in seconds.
quick: setup
	@.venv/bin/python -m pytest -q -n 2 -m "not system" $(ARGS)

# The pure tests, and one real file of each layer, on the newest Python of this machine.
newest: setup
	@scripts/test_newest $(ARGS)

coverage: setup
	@.venv/bin/python scripts/coverage $(ARGS)

# Recorded cases against our code; FILES="x.jsonl ..." runs others of the same names.
conformance: setup
	@.venv/bin/python tests/conformance/run.py $(FILES)

interop: setup
	@.venv/bin/python -m pytest -q -n 2 --dist loadgroup --max-worker-restart 0 tests/interop $(ARGS)

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

fuzz: setup
	@.venv/bin/python fuzz/run.py $(ARGS)

soak: setup
	@.venv/bin/python tests/system/soak.py $(ARGS)

clean:
	rm -rf .venv .venv-newest .coverage* .mypy_cache .ruff_cache .pytest_cache
