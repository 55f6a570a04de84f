"""``dpft account``: epsilon from noise or noise from epsilon, and what runs have spent."""

import json

from dpft.config.account import AccountConfig
from dpft.runs.account_command import answer

CONFIG = AccountConfig
READS_RECORDS = False


def run(config: AccountConfig) -> None:
    """Prints the accounting, as a table or as one JSON object."""
    found = answer(config)
    if config.output == "json":
        print(json.dumps(found.record, indent=2, sort_keys=True))
    else:
        print(found.table)
