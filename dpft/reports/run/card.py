"""The model's card: README.md beside its weights, in the form that the Hugging Face hub reads.

It travels with the model, so it says what the model guarantees and for whom, and scores of public
splits only (docs/design.md, rule 8). It names no folder of the machine, and no license: whether the
base and the records allow one, dpft cannot know.
"""

from pathlib import Path

from dpft.files import write_text
from dpft.records.configuration import ModelSection, RunConfiguration, TaskSection
from dpft.records.privacy_file import has_noise
from dpft.records.scores import ScoreEntry
from dpft.reports.pages import render_markdown
from dpft.reports.run.audited import alarms
from dpft.reports.run.origin import model_name, model_title
from dpft.reports.run.run_record import RunRecord
from dpft.reports.run.scores import score_tables
from dpft.reports.run.sections import LEDGER_NOTE, coverage, headline, mechanism_rows, warnings
from dpft.tasks.base import TASKS, LabelTask, SeqToSeqTask, Task
from dpft.tasks.glue import TEXT2TEXT

CARD = "README.md"
ADAPTER = "adapter_config.json"
WHOLE = ("model.safetensors", "model.safetensors.index.json")


def write_card(record: RunRecord, folder: Path) -> None:
    """Writes README.md into a folder with the run's model, over one that another library wrote."""
    write_text(folder / CARD, render_card(record, folder))


def render_card(record: RunRecord, folder: Path) -> str:
    """Returns the card.

    Args:
        record: Of the run.
        folder: With its model, an adapter or a whole one.
    """
    config, privacy = record.config, record.privacy
    public = [entry for entry in record.after() if entry.split_is_public and entry.metrics]
    name = model_title(config, privacy)
    private = has_noise(privacy) and privacy.private
    return render_markdown(
        "card.md.j2",
        front_matter=_front_matter(config, public, folder, private=private),
        title=f"{name} on {config.task.name}, method {config.method.name}",
        alarms=alarms(privacy),
        headline=headline(privacy),
        warnings=warnings(config, privacy),
        mechanism=mechanism_rows(config, privacy),
        coverage=coverage(config, privacy, public),
        ledger_note=LEDGER_NOTE,
        tables=score_tables(public),
    )


def _front_matter(
    config: RunConfiguration, public: list[ScoreEntry], folder: Path, *, private: bool
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    base, data = _base(config.model), _dataset(config.task)
    method, task = config.method.name, config.task.name
    results = [
        EvalResult(
            task_type=_kind(config.task),
            dataset_type=data,
            dataset_name=entry.task,
            dataset_split=entry.split,
            metric_type=name,
            metric_value=value,
        )
        for entry in public
        for name, value in entry.metrics.items()
        if data is not None
    ]
    library = _library(folder)
    relation = "adapter" if library == "peft" else "finetune"
    card = ModelCardData(
        base_model=base,
        base_model_relation=None if base is None else relation,
        datasets=None if data is None else [data],
        library_name=library,
        tags=["dpft", *(["differential-privacy"] if private else []), method, task],
        model_name=f"{model_name(config.model)}-{task}-{method}" if results else None,
        eval_results=results or None,
    )
    return str(card.to_yaml()).strip()


def _base(model: ModelSection) -> str | None:
    """Returns the base's name on the hub; None where its weights are not from there."""
    elsewhere = model.path or model.embedded or model.init == "random"
    return None if elsewhere else model.hub_name


def _dataset(task: TaskSection) -> str | None:
    """Returns the name on the hub of published data; None for any other."""
    known = TASKS.entries().get(task.name)
    if known is None or known.published_hub_name is None or task.data_dir is not None:
        return None
    source, train = task.source, (task.urls or {}).get("train")
    from_hub = source == "hub" and task.hub_name == known.published_hub_name
    from_url = source == "url" and train is not None and train == known.published_urls.get("train")
    return known.published_hub_name if from_hub or from_url else None


def _kind(task: TaskSection) -> str:
    """Returns what the hub calls the task."""
    known = TASKS.entries().get(task.name, Task)
    if task.objective == TEXT2TEXT or issubclass(known, SeqToSeqTask):
        return "text2text-generation"
    if not issubclass(known, LabelTask):
        return "text-generation"
    return f"{known.modality}-classification"


def _library(folder: Path) -> str | None:
    """Returns what loads the folder; None where only dpft does."""
    if (folder / ADAPTER).exists():
        return "peft"
    return "transformers" if any((folder / name).exists() for name in WHOLE) else None
