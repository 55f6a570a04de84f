"""A workspace of small models and GLUE records, for the tests of classification."""

import json
from collections.abc import Iterable
from pathlib import Path

from tests.models import small
from tests.stories.tiny import Workspace

FILMS = ("a great film", "the dull play", "a long song", "the short film was bright")
QUICK = ("train.expected_batch_size=8", "privacy.accountant=rdp", "train.steps=2")
EPS = "privacy.eps=3"
TRAINING = (*QUICK, EPS, "task.max_length=24")


def setting(task: str, model: str) -> tuple[str, ...]:
    """The task on the workspace's records, and its model of that name."""
    names = {"bert": "bert-base", "gpt2": "gpt2", "t5": "t5-small"}
    return (f"task={task}", f"task.data_dir={task}", f"model={names[model]}", f"model.path={model}")


def make_workspace(root: Path) -> Workspace:
    """Return a folder with models bert, gpt2 and t5, and folders of records."""
    for name in ("bert", "gpt2", "t5"):
        small.save(name, root / name)
    write(root / "sst2", "train", ({"sentence": FILMS[i % 4], "label": i % 2} for i in range(20)))
    write(root / "sst2", "validation", ({"sentence": text, "label": 1} for text in FILMS[:3]))
    write(root / "sst2", "test", [{"sentence": FILMS[0], "label": -1}])
    write(root / "mnli", "train", (pair(i, "premise", "hypothesis", i % 3) for i in range(20)))
    for number, part in enumerate(("validation_matched", "validation_mismatched"), start=2):
        rows = (pair(i, "premise", "hypothesis", i % 3) for i in range(number))
        write(root / "mnli", part, rows)
    for split, count in (("train", 20), ("validation", 4)):
        rows = (pair(i, "sentence1", "sentence2", i % 6 * 0.9) for i in range(count))
        write(root / "stsb", split, rows)
    return Workspace(root)


def pair(number: int, first: str, second: str, label: float) -> dict[str, object]:
    return {first: FILMS[number % 4], second: FILMS[number // 4 % 4], "label": label}


def write(folder: Path, split: str, rows: Iterable[dict[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
