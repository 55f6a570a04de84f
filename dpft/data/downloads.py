"""Public files by address, kept in the user's cache folder.

Only ``task.source=url`` comes here. Such data is published; private files are read in place.
"""

import hashlib
import http.client
import os
import tempfile
import urllib.request
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from dpft.errors import InputError

TIMEOUT_SECONDS = 20
OFFLINE_WAYS_OUT = (
    "connect, or give local files with task.data_dir=DIR and model.path=DIR, or run without a"
    " network on task=e2e task.source=embedded model=tiny"
)
"""What a message about unreachable data offers."""


def cache_directory() -> Path:
    """Returns the folder for downloads: ``$DPFT_CACHE``, else dpft in the user's cache folder."""
    if "DPFT_CACHE" in os.environ:
        return Path(os.environ["DPFT_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "dpft"


def fetch(url: str, *, cache: bool) -> bytes:
    """Returns a file's bytes.

    Args:
        url: An http or https address.
        cache: Keep a copy and read it next time; only for published files, since a user's own
            text must not stay in a cache (docs/design.md, rule 11).

    Raises:
        InputError: The address is of another kind, or cannot be reached.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(
            f"task.urls must be http or https addresses, got {url!r};"
            " for files on disk set task.data_dir=DIR."
        )
    if not cache:
        return _download(url)
    cached = _cached_path(url)
    if cached.is_file():
        return cached.read_bytes()
    content = _download(url)
    _store(content, cached)
    return content


def _cached_path(url: str) -> Path:
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return cache_directory() / "downloads" / f"{digest}-{PurePosixPath(urlsplit(url).path).name}"


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read()
            return content
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"task.source=url could not fetch {url} ({error}); {OFFLINE_WAYS_OUT}."
        ) from error


def _store(content: bytes, path: Path) -> None:
    """Writes the file whole or not at all; without a writable cache it is fetched every time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(content)
        os.replace(part.name, path)
    except OSError:
        return
