"""Is the Hugging Face hub there? One quick question before a library asks at length.

It stands apart because models and data both need it: without a network their libraries retry every
file for 23 seconds, and an error that takes a minute reads like a hang.
"""

import functools
import urllib.error
import urllib.request

from huggingface_hub import constants

TIMEOUT_SECONDS = 5


@functools.cache
def hub_is_reachable() -> bool:
    """Says whether the hub answers; False at once where ``HF_HUB_OFFLINE=1`` is set."""
    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # it answers; the library will say what it objects to
    except (OSError, ValueError):
        return False
    return True
