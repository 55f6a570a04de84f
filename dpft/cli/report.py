"""``dpft report``: what people's ratings on filled sheets say of each system; writes no file."""

import json
from pathlib import Path
from typing import Any

from dpft.config.report import ReportConfig
from dpft.evaluation.human import KEY
from dpft.evaluation.ratings import Key, Ratings, read_key, read_ratings
from dpft.files import SCHEMA_VERSION
from dpft.reports.ratings import INDEPENDENT, rating_record, ratings_table
from dpft.reports.run import mark

CONFIG = ReportConfig


def expand(overrides: list[str]) -> list[str]:
    """Returns the overrides, several ``ratings=FILE`` as one list: Hydra keeps only the last."""
    given = [word.partition("=")[2] for word in overrides if word.startswith("ratings=")]
    if len(given) < 2:
        return overrides
    files = ",".join(value.removeprefix("[").removesuffix("]") for value in given)
    others = [word for word in overrides if not word.startswith("ratings=")]
    return [*others, f"ratings=[{files}]"]


def run(config: ReportConfig) -> None:
    """Prints a line for each system, or one JSON object."""
    key = read_key(_key_path(config))
    record = describe(key, read_ratings(config.sheets, key))
    if config.output == "json":
        print(json.dumps(record, indent=2, sort_keys=True))
    else:
        print(ratings_table(record))


def describe(key: Key, ratings: Ratings) -> dict[str, Any]:
    """Returns what ``output=json`` prints."""
    of_system = {
        system: [(rating.item, rating.value) for rating in ratings.given if rating.system == system]
        for system in key.systems
    }
    record = {
        "schema_version": SCHEMA_VERSION,
        "task": key.task,
        "split": key.split,
        "ratings": len(ratings.given),
        "raters": len({rating.rater for rating in ratings.given}),
        "not_rated": ratings.not_rated,
        "interval": INDEPENDENT,
        "systems": [rating_record(system, given) for system, given in of_system.items()],
    }
    return mark(record, key.split_is_public)


def _key_path(config: ReportConfig) -> Path:
    if config.key is None:
        return config.sheets[0].with_name(KEY)
    return Path(config.key)
