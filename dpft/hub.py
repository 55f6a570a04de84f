"""Access to the Hugging Face Hub: check whether it is reachable, and upload exported models.

Before libraries access the Hub, dpft sends one quick request. Without a network, libraries retry
every file for 23 seconds, and an error that takes a minute looks like a hang.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpft.errors import InputError

TIMEOUT_SECONDS = 5


@functools.cache
def hub_is_reachable() -> bool:
    """Return whether the Hub responds; False without a request if ``HF_HUB_OFFLINE=1`` is set."""
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # The Hub responds; the library will report the actual error.
    except (OSError, ValueError):
        return False
    return True


def check_upload(repository: str, *, private: bool) -> None:
    """Check that the user may upload to a repository, before an export is written.

    Args:
        repository: USER/NAME on the Hugging Face Hub.
        private: Whether the upload must not be public.

    Raises:
        InputError: The name is invalid, the Hub cannot be reached, the user is not logged in, or
            the repository is public.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    if repository.count("/") != 1:
        raise InputError(
            f"push_to_hub must name a repository as USER/NAME, got {repository!r}.",
            key="push_to_hub",
            value=repository,
            hint="push_to_hub=USER/NAME",
        )
    if constants.HF_HUB_OFFLINE or not hub_is_reachable():
        reason = f"{constants.ENDPOINT} does not answer"
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE=1 is set"
        raise InputError(
            f"push_to_hub needs the Hugging Face Hub, but {reason}. Fix this, or write a local"
            " folder with to=DIR.",
            key="push_to_hub",
            value=repository,
        )
    if get_token() is None:
        raise InputError(
            "push_to_hub needs a token of the Hugging Face Hub, but you are not logged in.",
            key="push_to_hub",
            value=repository,
            hint="hf auth login",
        )
    with upload_errors(repository):
        try:
            existing = HfApi().model_info(repository)
        except RepositoryNotFoundError:
            return  # The upload will create the repository.
    if private and not existing.private:
        raise InputError(
            f"{repository} is a public repository, but private=true. Choose another repository, or"
            " publish the model.",
            key="push_to_hub",
            value=repository,
            hint="private=false",
        )


def upload(folder: Path, repository: str, *, private: bool, message: str) -> str:
    """Upload all files of a folder to the Hugging Face Hub in one commit; return the address.

    Args:
        folder: The folder; its files are added to the files of the repository.
        repository: USER/NAME; the repository is created if it does not exist.
        private: Whether a new repository is private.
        message: Message of the commit.

    Raises:
        InputError: The Hub rejected the upload.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with upload_errors(repository):
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    return str(address)


@contextmanager
def upload_errors(repository: str) -> Iterator[None]:
    """Convert an error of the Hub to an ``InputError``.

    Raises:
        InputError: The Hub rejected a request.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(getattr(error, "server_message", None) or error).splitlines()[0].rstrip(".")
        raise InputError(
            f"The Hugging Face Hub rejected push_to_hub={repository} ({reason}). Check your token"
            " and its permission to write.",
            key="push_to_hub",
            value=repository,
            hint="hf auth whoami",
        ) from error
