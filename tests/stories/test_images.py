"""Images from the command line: published layouts through train, resume and eval; bad input."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import joblib  # noqa: F401  it writes to the environment, which commands are checked to leave alone
import pytest
import sklearn.datasets  # noqa: F401  as joblib

import dpft.commands.train  # noqa: F401  as joblib
from tests.data import made_images as made
from tests.stories.tiny import Workspace, own_entries

pytestmark = pytest.mark.slow

LABELS = ",".join(f"c{number}" for number in range(10))
SMALL = (
    "model=vit-tiny", "model.architecture.image_size=16", "model.architecture.patch_size=4",
    "model.architecture.num_channels=3", "task.workers=0",
)  # fmt: skip
STEPS = ("train.steps=2", "train.expected_batch_size=24", "train.micro_batch_size=16")
PRIVATE = ("privacy.allow_large_delta=true", "privacy.accountant=rdp", *STEPS)
GIVEN = "privacy.noise_multiplier=1"
"""Spares all runs but one their accountants, who search a noise for longer than a run takes."""
RUNS = {
    "digits": ("task=digits", "model=vit-tiny", "eval.limit=90"),
    "cifar10": ("task=cifar10", "task.data_dir=cifar10", f"task.labels=[{LABELS}]", *SMALL),
    "cifar100": ("task=cifar100", "task.data_dir=cifar100", *SMALL, "method=bitfit"),
    "parquet": ("task=cifar10", "task.data_dir=parquet", f"task.labels=[{LABELS}]", *SMALL),
    "celeba": ("task=celeba", "task.data_dir=celeba", "task.labels=[Bald,Male,Smiling]", *SMALL),
    "smiling": (
        "task=celeba", "task.data_dir=celeba", "task.labels=[Bald,Male,Smiling]",
        "task.attribute=Smiling", *SMALL, "method=lora",
    ),
    "own": (
        "task=images", "task.data_dir=own", "task.labels=[dark,bright]", *SMALL,
        "task.augmentations=3",
    ),
    "held-out": (
        "task=images", "task.data_dir=own/train", "task.labels=[dark,bright]", *SMALL,
        "eval.held_out=0.3", "method=two_phase", "method.full_epochs=0.5",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("images")
    made.cifar_binary(root / "cifar10")
    made.cifar_binary(root / "cifar100", hundred=True)
    labels = [number % 10 for number in range(100)]
    made.parquet(root / "parquet" / "train.parquet", range(100), label=labels)
    made.parquet(root / "parquet" / "test.parquet", range(20), label=labels[:20])
    made.celeba(root / "celeba", count=60)
    made.folders(root / "own")
    (root / "own" / "train" / "dark" / "broken.png").write_bytes(b"no image")
    return Workspace(root)


@pytest.fixture(scope="module")
def train(workspace: Workspace) -> Callable[[str], str]:
    """Return a function from a name to itself, once that run has been trained."""

    @functools.cache
    def train(name: str) -> str:
        noise = "privacy.eps=8" if name == "digits" else GIVEN
        words = (*RUNS[name], *PRIVATE, noise, f"hydra.run.dir=runs/{name}")
        outcome = workspace.run("train", *words)
        assert outcome.code == 0, outcome.err
        return name

    return train


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, train: Callable[[str], str]) -> str:
    return train(request.param)


def folder(workspace: Workspace, name: str) -> Path:
    return workspace.root / "runs" / name


def read(workspace: Workspace, name: str, file: str) -> dict:
    return json.loads((folder(workspace, name) / file).read_text())


def entries(workspace: Workspace, name: str) -> list[dict]:
    return own_entries(folder(workspace, name))


def test_a_run_is_private_scored_and_says_what_is_done_to_an_image(
    workspace: Workspace, run: str
) -> None:
    privacy = read(workspace, run, "privacy.json")
    assert privacy["private"] and (privacy["epsilon"] <= 8 or run != "digits")
    assert privacy["plan"]["unit_definition"].startswith("one image")
    (after,) = [each for each in entries(workspace, run) if each["stage"] == "after"]
    wanted = "mean_accuracy" if run == "celeba" else "accuracy"
    assert 0 <= after["metrics"][wanted] <= 1
    report = (folder(workspace, run) / "report.md").read_text()
    assert "| images | " in report and "longest example" not in report


def test_the_saved_model_is_one_of_transformers_with_its_processing(
    workspace: Workspace, train: Callable[[str], str]
) -> None:
    from transformers import AutoModelForImageClassification

    model = folder(workspace, train("digits")) / "model"
    loaded = AutoModelForImageClassification.from_pretrained(model)
    assert loaded.config.id2label[3] == "3"
    processing = json.loads((model / "preprocessor_config.json").read_text())
    assert processing["image_mean"] == [0.5] and processing["size"] == {"height": 8, "width": 8}


def test_eval_scores_as_training_did(workspace: Workspace, run: str) -> None:
    before = entries(workspace, run)
    outcome = workspace.run("eval", f"run=runs/{run}", "output=json")
    assert outcome.code == 0, outcome.err
    assert [entry["metrics"] for entry in entries(workspace, run)] == [
        entry["metrics"] for entry in before
    ]


def test_which_class_was_taken_for_which_is_shown_of_public_splits_alone(
    workspace: Workspace, train: Callable[[str], str]
) -> None:
    public, private = train("digits"), train("own")
    (entry,) = [
        e for e in read(workspace, public, "metrics.json")["evaluations"] if e["stage"] == "after"
    ]
    assert sum(map(sum, entry["confusion"]["counts"])) == 90
    assert (folder(workspace, public) / "wrong_images.png").exists()
    page = (folder(workspace, public) / "report.html").read_text()
    section = page.partition("<h2>Confusions on digits")[2].partition("<h2>")[0]
    assert "<svg" in section and section.count("data:image/png;base64,") == section.count(" → ") - 1
    assert all("confusion" not in entry for entry in entries(workspace, private))
    shown = read(workspace, private, "metrics.json")["evaluations"]
    assert [(entry["metrics"], "examples" in entry) for entry in shown] == [({}, False)] * 2
    assert not list(folder(workspace, private).rglob("wrong_images*"))


def test_a_broken_image_is_left_out_and_named_in_private(
    workspace: Workspace, train: Callable[[str], str]
) -> None:
    run = folder(workspace, train("own"))
    summary = (run / "private" / "data_summary.md").read_text()
    assert "dark/broken.png" in summary and "max_length" not in summary
    public = [path for path in run.glob("*") if path.is_file()]
    assert public and not any(b"broken.png" in path.read_bytes() for path in public)


def test_a_broken_image_that_was_held_out_is_not_scored(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpft.commands.new_run.new_key", lambda: bytes(32))
    data = made.folders(workspace.root / "halves", splits=())
    for number in range(20):
        (data / "dark" / f"broken{number}.png").write_bytes(b"no image")
    words = (
        "task=images",
        "task.data_dir=halves",
        "task.labels=[dark,bright]",
        "eval.held_out=0.3",
    )
    outcome = workspace.run("train", *words, *SMALL, *PRIVATE, GIVEN, "hydra.run.dir=runs/halves")
    assert outcome.code == 0, outcome.err
    summary = (folder(workspace, "halves") / "private" / "data_summary.md").read_text()
    (held,) = map(int, re.findall(r"held out for evaluation \| (\d+)", summary))
    broken = 20 - len(re.findall("broken", summary))
    assert broken > 0
    assert {entry["examples"] for entry in entries(workspace, "halves")} == {held - broken}
    assert workspace.run("eval", "run=runs/halves").code == 0


def test_views_follow_the_seed_of_a_test_and_nothing_else(workspace: Workspace) -> None:
    words = (
        *RUNS["own"],
        *PRIVATE,
        GIVEN,
        "train.checkpoint_every=1",
        "eval.enabled=false",
    )
    seeded = (*words, "privacy.noise_seed=3", "train.num_threads=1")
    assert workspace.run("train", *seeded, "hydra.run.dir=runs/whole").code == 0
    assert workspace.run("train", *seeded, "hydra.run.dir=runs/again").code == 0
    weights = [
        (folder(workspace, n) / "model" / "model.safetensors").read_bytes()
        for n in ("whole", "again")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*RUNS["digits"], "task.image_size=9"), "task.image_size must be 8"),
        (("task=digits", "model=tiny", "task.source=embedded"), "model=vit-base"),
        (("task=e2e", "task.source=embedded", "model=vit-tiny"), "language model"),
        (("task=digits", "model=vit-tiny", "task.labels=[a,b]"), "label must be one of"),
        (("task=images", "task.data_dir=own", *SMALL), "needs task.labels"),
        (
            ("task=images", "task.data_dir=none", "task.labels=[a,b]", *SMALL),
            "has no train split",
        ),
        ((*RUNS["digits"], "audit.canaries=5"), "single texts as records"),
        (
            (*RUNS["digits"], "task.augmentations=40", "train.micro_batch_size=8"),
            "augmentations",
        ),
        ((*RUNS["digits"], "task.mean=[0.1,0.2]"), "task.mean must be one number"),
        ((*RUNS["digits"], "model.replace_batch_norm=true"), "a model with BatchNorm"),
        ((*RUNS["own"][:3], *SMALL, "model.init=pretrained"), "model.init"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_one_sentence(workspace: Workspace, words: tuple[str, ...], says: str) -> None:
    outcome = workspace.run("train", *words, GIVEN, "hydra.run.dir=runs/refused")
    assert outcome.code == 2, outcome.err
    assert says in outcome.err.splitlines()[-1]
