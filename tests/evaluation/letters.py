"""A task whose records are letters, published where nobody else publishes."""

from typing import ClassVar

from dpft.tasks.base import Example, TextTask


class LetterTask(TextTask):
    published_hub_name: ClassVar[str | None] = "alphabet/letters"
    published_urls: ClassVar[dict[str, str]] = {
        split: f"https://letters.example/{split}.csv" for split in ("validation", "test")
    }

    @property
    def columns(self):
        return ("group", "target")

    @property
    def prompt_columns(self):
        return ("group",)

    def examples(self, row):
        return (example(row["group"], row["target"]),)

    def prompt(self, row):
        return example(row["group"], "")

    def record(self, row, text):
        return {"group": row["group"], "target": text}


def example(group, target):
    """Return a record: its group with a separator, and the letters to learn."""
    return Example(prompt=f"{group} :", target=target, group=group, separator=" :")
