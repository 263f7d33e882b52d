# Two commands matter: `make demo` and `make test`. Both do all their own set-up and may be repeated.
# They run as root on Debian 12: the tests start a real Slurm cluster, which needs to become other users.

PYTHON ?= /usr/bin/python3
NEWEST := 3.3
LOWEST := 3.1
VENV := .venv
VENV_LOWEST := .venv-lowest
UV := $(VENV)/bin/uv
PYTEST := $(VENV)/bin/python -m pytest
PARALLEL := --numprocesses 2 --dist loadfile
FAST_FAULTS := $(addprefix tests/faults/,test_publish_crash.py test_job_killed.py test_worker_killed.py)
SHELL_FILES := $(wildcard airflow_slurm_images/cluster/*.sh)

.PHONY: help demo test test-all test-unit test-shell test-airflow test-lowest test-cluster test-faults lint benchmark system clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: system $(VENV)/.ready ## import and inspect a real image on a local Slurm cluster, through Airflow
	@$(VENV)/bin/python -m tests.cluster.demo

test: system lint test-unit test-shell test-airflow test-lowest test-cluster test-faults ## all suites (at most 20 minutes on two cores)

test-all: test ## what takes longer, after all of `make test`
	$(PYTEST) -m slow tests/unit tests/shell tests/cluster
	$(PYTEST) tests/faults

test-unit: $(VENV)/.ready ## pure code (under a minute)
	$(PYTEST) tests/unit -m "not slow" $(PARALLEL)

test-shell: system $(VENV)/.ready ## the cluster's shell files, run without a cluster
	$(PYTEST) tests/shell -m "not slow" $(PARALLEL) --numprocesses 3  # they wait as much as they work

test-airflow: system $(VENV)/.ready ## operators, sensor, triggers and example DAGs on the newest Airflow
	$(PYTEST) tests/airflow -m "not slow" $(PARALLEL)

test-lowest: system $(VENV_LOWEST)/.ready ## the same on the oldest Airflow
	$(VENV_LOWEST)/bin/python -m pytest tests/airflow -m "not slow" $(PARALLEL)

test-cluster: system $(VENV)/.ready ## a real Slurm, sshd and registry; Enroot or its stand-in
	$(PYTEST) tests/enroot_contract tests/cluster -m "not slow" $(PARALLEL)

test-faults: system $(VENV)/.ready ## kill publisher, job and worker at the worst moment; test-all has every fault
	$(PYTEST) $(FAST_FAULTS) -m "not slow" $(PARALLEL)

lint: $(VENV)/.ready ## ruff, mypy, shellcheck
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck -x -P SCRIPTDIR $(SHELL_FILES)
	$(VENV)/bin/shellcheck -s sh airflow_slurm_images/cluster/enroot.rc
	$(VENV)/bin/shellcheck -s bash airflow_slurm_images/cluster/start.conf

benchmark: system $(VENV)/.ready ## measure against the reference and rewrite docs/performance.md (hours, needs Enroot)
	$(UV) pip install --quiet --python $(VENV)/bin/python --constraint constraints/airflow-$(NEWEST).txt \
		--constraint constraints/tools.txt --group benchmark
	for name in side_by_side squash_options moving task_cost control_plane; do \
		$(VENV)/bin/python -m benchmarks.$$name --output $$name || exit; done
	$(VENV)/bin/python -m benchmarks.report
	$(VENV)/bin/python -m benchmarks.plot

# Debian packages of the cluster in a box; asks the package system first, so that a repeat needs no network.
system:
	@sh tests/cluster/install_packages.sh

# uv only because it resolves and installs the same constraints several times faster than pip.
$(UV):
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints/tools.txt uv

$(VENV)/.ready: pyproject.toml constraints/airflow-$(NEWEST).txt constraints/tools.txt | system $(UV)
	$(UV) pip install --quiet --python $(VENV)/bin/python --constraint constraints/airflow-$(NEWEST).txt \
		--group test --group lint --editable .
	touch $@

$(VENV_LOWEST)/.ready: pyproject.toml constraints/airflow-$(LOWEST).txt constraints/tools.txt | system $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV_LOWEST)
	$(UV) pip install --quiet --python $(VENV_LOWEST)/bin/python --constraint constraints/airflow-$(LOWEST).txt \
		--group test --editable .
	touch $@

clean: ## remove the virtual environments and caches of this checkout
	rm -rf $(VENV) $(VENV_LOWEST) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
