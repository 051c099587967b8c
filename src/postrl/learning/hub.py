"""Uploading the final model."""

from __future__ import annotations

from pathlib import Path

from postrl.errors import PostrlError, UsageError, first_line


def check_access(repo_id: str | None) -> None:
    """Refuse an upload that cannot succeed before the run begins, without asking the hub.

    Raises:
        UsageError: it is no hub id, or nobody is logged in here.
    """
    if repo_id is None:
        return
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UsageError(f"push_to_hub is {repo_id!r}, which is not a hub id", hint="write it as user/name") from error
    if get_token() is None:
        raise UsageError(
            f"push_to_hub is {repo_id}, and nobody is logged in to the hub here",
            hint="`hf auth login`, or set HF_TOKEN; or leave --push-to-hub out and upload RUN/model later",
        )


def push_model(folder: Path, repo_id: str, message: str = "Trained with postrl") -> str:
    """Upload `folder` to the hub's `repo_id`, made if it does not exist; returns its address.

    Raises:
        PostrlError: not logged in, offline, or refused; the folder stays.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        repo = api.create_repo(repo_id, exist_ok=True)
        api.upload_folder(folder_path=str(folder), repo_id=repo.repo_id, commit_message=message)
        return str(repo)
    except Exception as error:  # the hub's errors and those of the network have no common class
        raise PostrlError(
            f"the model could not be uploaded to {repo_id}: {first_line(error)}",
            hint=f"it is in {folder}; log in with `hf auth login`, then `hf upload {repo_id} {folder}`",
        ) from error
