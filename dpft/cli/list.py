"""``dpft list``: tasks, models, methods, recipes or metrics, a line each."""

import json

from dpft.config.listing import ListConfig, listed
from dpft.records.form import as_json
from dpft.records.plans import Listing

CONFIG = ListConfig
READS_RECORDS = False
TAKES_BARE_WORDS = True


def expand(overrides: list[str]) -> list[str]:
    """Returns the words with a first one that is no key, such as ``tasks``, as ``what=tasks``."""
    return [word if "=" in word else f"what={word}" for word in overrides]


def run(config: ListConfig) -> None:
    """Prints each name with its line, or one JSON object."""
    found = listed(config.what)
    if config.output == "json":
        print(json.dumps(as_json(Listing(**{config.what: found})), indent=2, ensure_ascii=False))
        return
    width = max(map(len, found))
    for name, line in found.items():
        print(f"{name:<{width}}  {line}")
