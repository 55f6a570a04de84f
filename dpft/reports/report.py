"""A run's reports from its public files: report.md, report.html, the model's card, statements.

Reports hold public quantities only; what training saw of the records stays in private/. The card
(README.md beside the weights, in the form that the Hugging Face hub reads) travels with the model:
it says what the model guarantees and for whom, and scores of public splits only (docs/design.md,
rule 8). It names no folder of the machine, and no license: whether the base and the records allow
one, dpft cannot know. The command that runs a run again leaves out seeds, and paths that the user
did not write, which name a machine and its owner; ``privacy.noise_seed`` even where it was written,
for whoever knows it can subtract the noise.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from dpft import __version__
from dpft.files import (
    MODEL,
    PAGE,
    PRIVATE_METRICS,
    PRIVATE_REPORT,
    REPORT,
    is_base_model,
    write_text,
)
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.configuration import ModelSection, RunConfiguration, TaskSection
from dpft.records.form import joined, keys_of
from dpft.records.promises import (
    GeneratedOpenly,
    GeneratedPrivately,
    OpenRun,
    PrivateRun,
    RunPrivacy,
    guarantee,
    has_noise,
)
from dpft.records.scores import ScoreEntry, SheetDecoding
from dpft.reports.pages import epsilon_plot, render_html, render_markdown
from dpft.reports.published import PUBLISHED_NOTE, published_table
from dpft.reports.run_record import (
    RunRecord,
    hide_private_scores,
    model_name,
    model_title,
    read_run,
    shown,
)
from dpft.reports.scores import page_parts, score_parts, score_tables
from dpft.reports.sections import sections
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
    parts = sections(config, privacy, public)
    return render_markdown(
        "card.md.j2",
        **{**parts, "title": f"{name} on {config.task.name}, method {config.method.name}"},
        front_matter=_front_matter(config, public, folder, private=private),
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


SECRET = "privacy.noise_seed"
LEFT_OUT = ("reference", "reference_maps")
"""Sections that have their place elsewhere in the report."""
A_PATH = "(a path on the machine of the run)"


def command(record: RunRecord) -> str | None:
    """Returns the command that began the run; None where there was none."""
    if record.overrides is None:
        return None
    words = [word for word in record.overrides if _key(word) != SECRET]
    name = "tune" if record.is_of_search else "train"
    given = ["rows=..."] if record.config.task.source == "memory" else []
    if is_base_model(record.config.model.path or ""):
        # What dpft wrote for the object is no word of the user's.
        ours = ("model", "model.name", "model.path")
        words = [word for word in words if _key(word) not in ours]
        given += ["model=...", "tokenizer=..."]
    if given:
        return f"dpft.{name}({', '.join([repr(words), *given])})"
    return shlex.join(["dpft", name, *words])


def configuration(record: RunRecord) -> str:
    """Returns config.yaml without seeds and paths that the user did not write."""
    kept = public_configuration(record.values, record.overrides or ())
    return str(yaml.safe_dump(kept, sort_keys=True, allow_unicode=True))


def public_configuration(config: Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """Returns the content of config.yaml without seeds and paths that the user did not write.

    Args:
        config: What config.yaml holds.
        overrides: What the user wrote after ``dpft train``.
    """
    shown = {name: part for name, part in config.items() if name not in LEFT_OUT}
    kept: dict[str, Any] = _shown(shown, "", overrides)
    return kept


def _shown(value: Any, key: str, overrides: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        inner = {name: f"{key}.{name}".lstrip(".") for name in value}
        return {
            name: _shown(part, inner[name], overrides)
            for name, part in value.items()
            if not _is_hidden_seed(inner[name], overrides)
        }
    if isinstance(value, list):
        return [_shown(part, key, overrides) for part in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        theirs = any(value in word for word in overrides) and not is_base_model(value)
        return value if theirs else A_PATH
    return value


def _is_hidden_seed(key: str, overrides: tuple[str, ...]) -> bool:
    if not key.endswith("seed"):
        return False
    return key == SECRET or key not in map(_key, overrides)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def write_report(folder: Path) -> RunRecord:
    """Writes report.md, report.html and the model's card from the other public files of a run.

    Scores of private splits that an earlier dpft wrote into metrics.json are put into private/.

    Returns:
        What those files say.
    """
    hide_private_scores(folder)
    record = read_run(folder)
    parts = _parts(record)
    if (folder / MODEL).is_dir():
        write_card(record, folder / MODEL)
    write_text(folder / PAGE, render_page(record, parts))
    write_text(folder / REPORT, render(record, parts))
    return record


def render(record: RunRecord, parts: Mapping[str, Any] | None = None) -> str:
    """Returns report.md.

    Args:
        record: What the run's public files say.
        parts: As ``_parts`` returns them, where they are there already.
    """
    return render_markdown("report.md.j2", **(parts or _parts(record)))


def render_page(record: RunRecord, parts: Mapping[str, Any] | None = None) -> str:
    """Returns report.html: report.md's content, how epsilon grew, and how to run it again."""
    config, privacy, parts = record.config, record.privacy, parts or _parts(record)
    return render_html(
        "report.html.j2",
        **parts,
        **page_parts(config, privacy, record.evaluations, record.pictures, parts),
        plot=epsilon_plot(privacy),
        audit_figures=[Markup(figure) for figure in record.audit_figures],
        command=command(record),
        configuration=configuration(record),
        version=__version__,
    )


def _parts(record: RunRecord) -> dict[str, Any]:
    """Returns the values that the templates of report.md and report.html are filled with."""
    config, privacy = record.config, record.privacy
    evaluations = [shown(entry) for entry in record.evaluations]
    epsilon = eps_text(guarantee(privacy)[0]) if isinstance(privacy, PrivateRun) else "not private"
    return {
        **sections(config, privacy, evaluations),
        **score_parts(privacy, evaluations, record.by_step),
        "private_files": (PRIVATE_METRICS, PRIVATE_REPORT),
        "published": published_table(record, evaluations, epsilon),
        "published_note": PUBLISHED_NOTE,
    }


PROMPTS_NOT_COVERED = (
    "epsilon does not cover the prompts: they stand in the records as they were given, and dpft"
    " refused the run's own files alone, so only the user knows whether one was trained on"
)
NON_PRIVATE_RUN = (
    "NOT PRIVATE: the model was trained without differential privacy (privacy=none), so its texts"
    " may repeat training records"
)
REPRODUCIBLE_RUN = (
    "NOT PRIVATE: the run was reproducible, its noise predictable (privacy.noise_seed); epsilon is"
    " what the same run would have with secret randomness"
)


def statement(
    privacy: RunPrivacy,
    *,
    run: str,
    task: str,
    decode: SheetDecoding,
    retries: int,
    records: int,
    unparsed: int | None,
    prompted: bool,
) -> GeneratedPrivately | GeneratedOpenly:
    """Returns the content of the file beside synthetic records.

    Args:
        privacy: The run's privacy.json.
        run: Name of the run's folder, as DATE/TIME; not where it lies on this machine.
        task: Name of the task whose format the records have.
        decode: How the texts were chosen.
        retries: How often a text that was no row was written anew at most.
        records: How many were asked for.
        unparsed: How many of them are texts that the task's template does not read as rows; None
            where none does, or where it would say something of a user's prompts.
        prompted: Whether the model continued a user's prompts.
    """
    openly = GeneratedOpenly(
        steps=privacy.steps,
        warnings=privacy.warnings,
        run=run,
        task=task,
        decode=decode,
        retries=retries,
        records=records,
        unparsed=unparsed,
        prompts="the user's" if prompted else "none",
        notes=(cost(privacy), *([PROMPTS_NOT_COVERED] if prompted else [])),
    )
    if isinstance(privacy, OpenRun):
        return openly
    shared = {key.field for key in keys_of(GeneratedPrivately)} - vars(openly).keys() | {"private"}
    promised = {name: getattr(privacy, name) for name in shared}
    return joined(GeneratedPrivately, openly, **promised)


def cost(privacy: RunPrivacy) -> str:
    """Returns in a sentence what a model's texts cost, or that nothing protects the records."""
    if isinstance(privacy, OpenRun):
        return NON_PRIVATE_RUN
    if not privacy.private:
        return REPRODUCIBLE_RUN
    epsilon, delta = guarantee(privacy)
    whose = "model and its tokenizer" if privacy.tokenizer is not None else "model"
    return (
        f"post-processing of the run's {whose}: towards the records that it was trained on, the"
        f" same (epsilon = {eps_text(epsilon)}, delta = {delta_text(delta)}) as the model's,"
        " however many texts are written; not a second expense"
    )
