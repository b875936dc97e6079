# Two commands do everything: `make demo` and `make test`. Both set up what they need, once.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpuops-rdma
VENV_AND_BASE := $(shell tools/venv)
VENV := $(or $(firstword $(VENV_AND_BASE)),$(error there is no Python for the environment))
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
COLLECTIONS := .cache/collections
LINK := $(COLLECTIONS)/ansible_collections/gpuops/rdma
SANDBOX := $(PYTHON) tests/sandbox/sandbox
NAME ?= demo
SHAPE ?= BM.GPU.H100.8
GPU_NODES ?= 4
PROFILE ?= current
SCENARIOS ?= control_node plan preflight nodes gpu_operator network_operator sriov operators_upgrade host_checks_daemonset host_checks peermem perftest nccl_topology batch nccl_test nccl_scan report oci
OPENSHIFT_SCENARIOS ?= nfd_gpu_operator olm_network_operator

export PATH := $(BIN):$(PATH)
export PYTHONPATH := $(CURDIR)/$(COLLECTIONS):$(CURDIR)/tests:$(CURDIR)/tests/sandbox
# No __pycache__ in the checkout, which galaxy would publish. Without any, each process compiles what it imports: uv does not.
export PYTHONPYCACHEPREFIX := $(VENV)/bytecode
unexport PYTHONDONTWRITEBYTECODE
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg

.PHONY: help setup demo-setup programs packages demo test lint types unit coverage cluster oci awx events nodes e2e molecule molecule-openshift consumer user gates ee-check test-matrix test-operators test-nodes test-scale bench fuzz sandbox-up sandbox-down docs docs-site linkcheck update clean

help: ## What there is
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# The environment's name has the requirements' digest, so their files' times, new in each clone, are no reason to install again.
$(PYTHON):
	@$(lastword $(VENV_AND_BASE)) -m venv $(VENV)

$(VENV)/.demo: | $(PYTHON)
	@echo "setup: Python packages of the demo into $(VENV) (30 s, once)"
	@tools/install $(VENV) -r requirements-demo.txt
	@$(PYTHON) tools/collection kubernetes.core
	@touch $@

$(VENV)/.ready: | $(PYTHON)
	@echo "setup: Python packages of the tests into $(VENV) (1 to 2 min, once)"
	@tools/install $(VENV) -r requirements-dev.txt
	@touch $(VENV)/.demo $@

# Without a JDK the tests of rulebooks are skipped by name.
$(VENV)/.events: requirements-events.txt $(VENV)/.ready
	@! command -v java >/dev/null || { echo "setup: ansible-rulebook into $(VENV) (15 s, once)"; tools/install $(VENV) -r $<; touch $@; }

# Compiles what is not there yet: 3 min on 2 idle cores, 7 on busy ones, once per machine.
programs: | $(PYTHON)
	@$(PYTHON) -m gpuops_sandbox.build >/dev/null

$(LINK):
	@mkdir -p $(dir $@)
	@ln -sfn ../../../.. $@

setup: $(LINK) ## Python packages and the control plane's programs (5 min on 2 cores the first time)
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.ready programs

demo-setup: $(LINK)
	@$(MAKE) --silent --no-print-directory --jobs=2 $(VENV)/.demo programs

# What only the tests need, of the distribution: a browser for the report's page, an sshd for the host checks.
packages:
	@tools/packages 'the tests that need them will be skipped by name' 'chromium|chromium-browser:chromium' sshd:openssh-server

sandbox-up: demo-setup ## A sandbox: NAME=demo GPU_NODES=4 SHAPE=BM.GPU.H100.8 PROFILE=current
	@$(SANDBOX) up --name $(NAME) --gpu-nodes $(GPU_NODES) --cpu-nodes 2 --shape $(SHAPE) --profile $(PROFILE)

sandbox-down: $(VENV)/.demo ## Removes it
	@$(SANDBOX) down $(NAME)

demo: sandbox-up ## The main job on simulated GPUs, from nothing to a verdict and a report
	@$(SANDBOX) exec $(NAME) -- $(BIN)/ansible-playbook site.yml -i inventories/sandbox \
	  -e rdma_profile=$(PROFILE) -e rdma_shape=$(SHAPE)
	@echo "GPUs, NICs and bandwidths above are simulated; the control plane is real."
	@echo "Run commands in it with tests/sandbox/sandbox exec $(NAME) -- COMMAND, for example kubectl get nodes or the line after Next."
	@echo "make sandbox-down$(if $(filter-out demo,$(NAME)), NAME=$(NAME)) removes it."

# The longest first. A playbook waits for its cluster more than it computes, so there are more lanes than two cores.
LANES := e2e cluster molecule nodes unit gates oci molecule-openshift events awx consumer user lint types
JOBS ?= 3
# Each worker collects 9,000 tests and reads the same data: beside other lanes one does it for less.
UNIT_WORKERS ?= 2
# Each lane keeps which of its tests failed; tools/lanes runs those again with AGAIN=--last-failed.
PYTEST = $(PYTHON) -m pytest $(AGAIN) -o cache_dir=.cache/pytest/$@

# The third of the e2e tests whose turn it is, by the number of commits, so that this takes 20 minutes on 2 cores; or all.
E2E ?= $(or $(shell git rev-list --count HEAD 2>/dev/null),0)
test: packages setup ## Everything but scale, in lanes side by side; a third of the e2e tests, all with E2E=all
	@UNIT_WORKERS=0 GPUOPS_E2E=$(E2E) tools/lanes $(JOBS) $(LANES)
	@$(if $(filter all,$(E2E)),,echo "A third of the e2e tests ran, other ones for the next commit. CI runs all: make test E2E=all")

lint: $(VENV)/.ready $(LINK) ## ruff, yamllint, ansible-lint, documentation of all plugins, roles and public functions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/yamllint --strict .
	@$(PYTHON) tools/generate.py --check
	@tools/check_docs
	@tools/count >/dev/null
	@$(PYTHON) tools/site_pages.py
	@$(PYTHON) tools/ansible_lint

types: $(VENV)/.ready $(LINK) ## mypy, strict, on all plugins
	@MYPYPATH=$(COLLECTIONS) $(BIN)/mypy plugins

unit: $(VENV)/.ready $(LINK) ## The core, without Ansible and without a cluster
	@$(PYTEST) tests/unit -q -n $(UNIT_WORKERS)

coverage: $(VENV)/.ready $(LINK) ## Which lines of plugins the unit tests run
	@$(PYTHON) -m pytest tests/unit -q -n 2 --cov=plugins --cov-report=term:skip-covered

# On disk, a tenth of a playbook's CPU time went into files that sandboxes write and remove, and a third of the unit
# tests' into theirs. A killed run's go with the next. Other tests have sockets, whose paths must be short.
MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null && ! grep -q ' /dev/shm .*noexec' /proc/mounts && echo "/dev/shm/gpuops-rdma-$$(id -u)")
cluster oci e2e events test-matrix test-operators: export GPUOPS_SANDBOX_HOME := $(MEMORY)
unit: export PYTEST_DEBUG_TEMPROOT = $(if $(MEMORY),$(shell mkdir -p $(MEMORY)/tmp)$(MEMORY)/tmp)

cluster: setup ## Plugins against the sandbox's API server
	@$(PYTEST) tests/integration/cluster -q -n 2 --dist loadfile --durations=10 --durations-min=20

oci: setup ## OCI modules and playbooks, with the real SDK against a fake OCI
	@$(PYTEST) tests/integration/oci -q -n 2 --dist loadfile --durations=10 --durations-min=20

awx: setup ## The AWX data set, applied twice to a stand-in of AWX's API by the real awx.awx modules
	@$(PYTEST) tests/integration/awx -q

events: setup $(VENV)/.events ## The rulebooks in ansible-rulebook, from an event to the proposal, where there is a JDK 17
	@$(PYTEST) tests/integration/events -q --durations=5 --durations-min=20

nodes: setup ## Three of test-nodes, where 'make test-nodes' has built the programs and images of real nodes
	@$(PYTEST) tests/integration/nodes -q -m core

# Three at a time, as a test uses a CPU for two fifths of its time.
e2e: setup ## Whole playbooks against sandboxes: shapes, faults, second runs
	@$(PYTEST) tests/integration/e2e -q -n 3 --maxschedchunk 1 --durations=10 --durations-min=20

# What a killed run left goes first. Molecule's own state stays in this checkout: elsewhere it would be shared by all
# folders of the same name.
define molecule
	@$(BIN)/molecule destroy --scenario-name default --no-report >/dev/null
	@$(PYTHON) -m support.warm_molecule test --report $(addprefix --scenario-name ,$(1))
endef

molecule: export MOLECULE_EPHEMERAL_DIRECTORY := $(CURDIR)/.cache/molecule-state-oke
molecule: setup ## A Molecule scenario per role, each on what the ones before it left: SCENARIOS="control_node plan ..."
	$(call molecule,$(SCENARIOS))

molecule-openshift: export MOLECULE_EPHEMERAL_DIRECTORY := $(CURDIR)/.cache/molecule-state-openshift
molecule-openshift: export GPUOPS_MOLECULE_PLATFORM := openshift
molecule-openshift: setup ## The same for the roles of OpenShift
	$(call molecule,$(OPENSHIFT_SCENARIOS))

consumer: setup ## Roles from the built artefact, in a project that is not this one
	@$(PYTHON) tools/consumer

gates: setup ## What a collection must pass: artefact, documentation, changelog, sanity on one ansible-core
	@$(PYTHON) tools/gates --quick

user: setup ## The pages' install lines in an empty environment, each login, verify, plan and site
	@$(PYTHON) tools/user

ee-check: setup ## site.yml from the artefact, through ansible-runner, in an empty environment of the EE's requirements
	@$(PYTHON) tools/user --row image

# By file: the rows of OpenShift break the bed that the first of them has made.
test-matrix: setup ## Every seed, shape, mode, profile, launcher and fault; every kill; every ansible-core; each way to install and to log in
	@GPUOPS_MATRIX=all $(PYTHON) -m pytest tests/unit -q -n 2
	@GPUOPS_MATRIX=all $(PYTHON) -m pytest tests/integration/e2e -q -n 3 --dist loadfile --durations=20
	@GPUOPS_MATRIX=all $(PYTHON) -m pytest tests/integration/oci -q -n 2 --dist loadfile
	@$(PYTHON) tools/gates --write
	@$(PYTHON) tools/docs_site
	@$(PYTHON) tools/user --all --fresh

# With the operators' own programs their leases take the time that they take.
OPERATOR_TESTS := $(addprefix tests/integration/e2e/test_,site.py lifecycle.py upgrade.py)
PROGRAMS ?=
test-operators: $(VENV)/.ready $(LINK) ## The e2e tests of installation, upgrade and rollback with the operators' own programs: PROGRAMS=DIR
	@$(PYTHON) tests/support/operator_programs.py "$(PROGRAMS)"
	@$(MAKE) --no-print-directory setup
	@GPUOPS_PROGRAMS="$(abspath $(PROGRAMS))" $(PYTEST) $(OPERATOR_TESTS) -q -n 2 --maxschedchunk 1 --durations=10 --durations-min=20 $(PYTEST_OPTIONS)

# Real nodes: programs and images 3 min once. It needs root and Linux; elsewhere it is skipped by name.
test-nodes: node-packages setup ## Real kubelets and containers in namespaces of this machine (root, Linux)
	@$(SANDBOX) build --kubelets || echo "test-nodes: without programs or images of real nodes its tests are skipped by name"
	@$(PYTHON) -m pytest tests/integration/nodes -q -n 2 --dist loadfile --durations=10 --durations-min=20

node-packages:
	@tools/packages 'real nodes will not be built, and their tests will be skipped by name' \
	  nft:nftables ip:iproute2 openssl:openssl gcc:gcc /usr/include/seccomp.h:libseccomp-dev

test-scale: setup ## 1,000 nodes
	@$(PYTHON) -m pytest tests/integration/scale -q -s

bench: setup ## The figures of docs/performance.md
	@$(PYTHON) tests/bench/run.py

SECONDS ?= 60
fuzz: setup ## Damaged input for every reader; SECONDS=3600, TARGET=nccl, CASE=nccl:7
	@$(PYTHON) tests/bench/fuzz.py --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET)) $(if $(CASE),--case $(CASE))

docs: $(VENV)/.ready $(LINK) ## Files that are generated from data
	@$(PYTHON) tools/generate.py

docs-site: $(VENV)/.ready $(LINK) ## The documentation as a site, without warnings
	@$(PYTHON) tools/docs_site

linkcheck: $(VENV)/.ready $(LINK) ## Asks every external address of the documentation
	@$(PYTHON) tools/docs_site --linkcheck

update: $(VENV)/.ready ## Newer versions of what is pinned
	@$(PYTHON) tools/updates

clean: ## Caches of this checkout
	@rm -rf .cache .ansible .pytest_cache .mypy_cache .ruff_cache
