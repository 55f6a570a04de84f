"""Check whether the Hugging Face hub can be reached.

The hub is asked one quick question before a library asks at length: without a network, libraries
retry every file for 23 seconds, and an error that takes a minute looks like a hang.
"""

import functools

TIMEOUT_SECONDS = 5


@functools.cache
def hub_is_reachable() -> bool:
    """Says whether the hub answers; False at once where ``HF_HUB_OFFLINE=1`` is set."""
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

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
