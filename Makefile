# Every command of the project. `make help` lists them.
SHELL := bash
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: evidence generate help env engine-env model demo cluster cluster-down check check-fast lock format

help: ## list the commands
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /\1\t/' | expand -t 18

env: ## build the control plane's environment (.venv)
	@bash scripts/control_plane_env.sh

engine-env: ## build the CPU engine's environment
	@bash scripts/engine_env.sh

model: ## make the tiny model and print its folder
	@bash scripts/model.sh

demo: ## run a paced engine here, measure pacing off against N=4, print the table (KEEP=1 leaves it running)
	@bash scripts/demo.sh

check: env ## everything that must hold
	@$(PY) scripts/check.py

cluster: env ## start a Kubernetes with Paceline on this machine and leave it running (needs root; BARE=1: without Paceline)
	@PYTHONPATH=tests/cluster $(PY) -P -m testbed up $(if $(BARE),--bare)

cluster-down: ## end the cluster that `make cluster` started
	@PYTHONPATH=tests/cluster $(PY) -P -m testbed down

check-fast: env ## style and pure logic only (under 2 minutes)
	@$(PY) scripts/check.py --fast

check-%: env ## one part: style, unit, contract, engine, api, kernels, charts, cluster, browser
	@$(PY) scripts/check.py $*

format: env ## format the code and fix what the linter can
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

generate: env ## write the files that are generated from code (the CRD)
	@$(PY) -P scripts/generate.py

evidence: env engine-env ## run the benchmarks and keep their results in .evidence/ (QUICK=1: shorter)
	@$(PY) scripts/evidence.py $(if $(QUICK),--quick)

lock: ## write the constraint files anew, with the newest versions that fit
	@bash scripts/lock.sh
