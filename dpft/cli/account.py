"""``dpft account``: epsilon from noise or noise from epsilon, and what runs have spent."""

from dpft.config.account import POLYMORPHIC, AccountConfig
from dpft.reports.terminal import show_answer
from dpft.runs.account import answer

__all__ = ["CONFIG", "POLYMORPHIC", "READS_RECORDS", "run"]
CONFIG = AccountConfig
READS_RECORDS = False


def run(config: AccountConfig) -> None:
    """Prints the accounting, as a table or as one JSON object."""
    show_answer(answer(config), config.output)
