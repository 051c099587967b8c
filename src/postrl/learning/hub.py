"""Uploading the final model."""

from __future__ import annotations

from pathlib import Path

from postrl.errors import PostrlError


def push_model(folder: Path, repo_id: str) -> str:
    """Upload `folder` to the hub's `repo_id`, made if it does not exist; returns its address.

    Raises:
        PostrlError: not logged in, offline, or refused; the folder stays.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        repo = api.create_repo(repo_id, exist_ok=True)
        api.upload_folder(folder_path=str(folder), repo_id=repo.repo_id, commit_message="Trained with postrl")
        return str(repo)
    except Exception as error:  # the hub's errors and those of the network have no common class
        raise PostrlError(
            f"the model could not be uploaded to {repo_id}: {error}",
            hint=f"it is in {folder}; log in with `hf auth login`, then `hf upload {repo_id} {folder}`",
        ) from error
