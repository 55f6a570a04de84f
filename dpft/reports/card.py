"""The model card of an exported model: the README.md that the Hugging Face Hub reads.

The card states the guarantee of the model and the privacy unit, how it was trained, and how to load
it with transformers and peft. It contains scores of public splits only (docs/dev/design.md, rule 8)
and names no folder of the machine.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dpft.constants import CAUSAL, CLASSIFIER, IMAGE_CLASSIFIER, MASKED, SEQ2SEQ
from dpft.evaluation.scores import ScoreEntry
from dpft.model_digest import ADAPTER, BASE
from dpft.reports.privacy_json import is_promised
from dpft.reports.rendering import render_markdown
from dpft.reports.run_record import RunRecord, model_name
from dpft.reports.scores import metric_heading, score_tables, scores_heading
from dpft.reports.sections import sections
from dpft.run_folder import write_text
from dpft.strict_model import StrictModel
from dpft.tasks.base import TASKS, Example, LabelTask, Task
from dpft.tasks.classification import CLS, ClassificationTask
from dpft.tasks.custom import CustomChats, CustomTexts

CARD = "README.md"
PATH = "PATH/TO/THIS/FOLDER"
HEAD = "head.safetensors"
"""Weight (k, d) and bias (k,) of a classifier with mean pooling, next to its encoder."""
PIPELINES = {
    CAUSAL: "text-generation",
    SEQ2SEQ: "text-generation",  # transformers 5 and the Hub have no text2text-generation
    MASKED: "fill-mask",
    CLASSIFIER: "text-classification",
    IMAGE_CLASSIFIER: "image-classification",
}
"""Name of the Hub's task for each kind of head."""


class ExportedModel(StrictModel):
    """The facts about an exported model that its run's record does not contain."""

    kind: str
    """Kind of head, as in ``dpft.constants.Head``."""
    auto_class: str
    """Class of transformers that loads the model, or an adapter's base."""
    base_model: str | None
    """Hub id of the base model; None: the weights did not come from the Hub."""
    license: str
    """The Hub's identifier of the license."""
    repository: str | None
    """Hub id of the export itself; None: it is not pushed."""
    options: dict[str, int] = {}
    """Arguments that an adapter's base needs in ``from_pretrained``, such as num_labels."""


def write_card(record: RunRecord, model: ExportedModel, folder: Path) -> None:
    """Write README.md into the folder of an exported model."""
    write_text(folder / CARD, render_card(record, model, folder))


def render_card(record: RunRecord, model: ExportedModel, folder: Path) -> str:
    """Return the card of the model in a folder."""
    config, privacy = record.config, record.privacy
    public = [entry for entry in record.after() if entry.split_is_public and entry.metrics]
    return render_markdown(
        "card.md.j2",
        **sections(config, privacy, public),
        front_matter=_metadata(record, model, public, folder),
        tables=score_tables(public),
        usage=usage(config.task, model, folder),
        dpft_only=_is_of_dpft(folder),
        heading=scores_heading,
        metric=partial(metric_heading, config),
    )


def _metadata(
    record: RunRecord, model: ExportedModel, public: Sequence[ScoreEntry], folder: Path
) -> str:
    """Return the metadata that the Hub reads, in YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    config = record.config
    data, task = _dataset(config.task), config.task.name
    results = [
        EvalResult(
            task_type=_evaluated_task(config.task),
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
    is_peft, is_pooled = (folder / ADAPTER).exists(), (folder / HEAD).exists()
    is_private = is_promised(record.privacy)
    relation = "adapter" if is_peft or _is_of_dpft(folder) else "finetune"
    library = None if _is_of_dpft(folder) else "peft" if is_peft else "transformers"
    title = f"{model_name(config.model)}-{task}-{config.method.name}"
    privacy_tags = ["differential-privacy", "dp-sgd"] if is_private else []
    card = ModelCardData(
        base_model=model.base_model,
        base_model_relation=None if model.base_model is None else relation,
        license=model.license,
        datasets=None if data is None else [data],
        library_name=library,
        pipeline_tag="feature-extraction" if is_pooled else PIPELINES[model.kind],
        tags=[*privacy_tags, "dpft", config.method.name, task],
        model_name=title if results else None,
        eval_results=results or None,
    )
    return str(card.to_yaml()).strip()


def _is_of_dpft(folder: Path) -> bool:
    """Return whether the folder has an adapter that only dpft loads."""
    return (folder / "dpft_adapter.json").exists()


def _dataset(task: Task) -> str | None:
    """Return the name of published data on the Hugging Face Hub, or None for other data."""
    task_class = TASKS.entries().get(task.name)
    if task_class is None or task_class.published_hub_name is None or task.data_dir is not None:
        return None
    source, train = task.source, task.urls.get("train")
    published_url = task_class.published_urls.get("train")
    from_hub = source == "hub" and task.hub_name == task_class.published_hub_name
    from_url = source == "url" and train is not None and train == published_url
    return task_class.published_hub_name if from_hub or from_url else None


def _evaluated_task(task: Task) -> str:
    """Return the Hub's name of the task that the scores are about."""
    task_class = TASKS.entries().get(task.name, Task)
    if not issubclass(task_class, LabelTask):
        return "text-generation"
    return f"{task_class.modality}-classification"


def usage(task: Task, model: ExportedModel, folder: Path) -> str:
    """Return Python code that loads the exported model and applies it to one example."""
    if (folder / HEAD).exists():
        return _pooled_usage(model)
    reader = "AutoImageProcessor" if model.kind == IMAGE_CLASSIFIER else "AutoTokenizer"
    name = "processor" if model.kind == IMAGE_CLASSIFIER else "tokenizer"
    imports = [f"from transformers import {', '.join(sorted([model.auto_class, reader]))}"]
    lines = [f'folder = "{model.repository or PATH}"']
    if (folder / ADAPTER).exists():
        imports.insert(0, "from peft import PeftModel")
        base = f'"{model.base_model}"'
        if (folder / BASE).exists():
            base, lines = f'f"{{folder}}/{BASE}"', [_local_folder(model)]
            imports.insert(0, "from huggingface_hub import snapshot_download")
        options = "".join(f", {key}={value}" for key, value in model.options.items())
        lines.append(f"base = {model.auto_class}.from_pretrained({base}{options})")
        lines.append("model = PeftModel.from_pretrained(base, folder).eval()")
    else:
        lines.append(f"model = {model.auto_class}.from_pretrained(folder)")
    lines.append(f"{name} = {reader}.from_pretrained(folder)")
    body = _label_lines if model.kind in (CLASSIFIER, IMAGE_CLASSIFIER) else _text_lines
    return "\n".join([*imports, "", *lines, *body(task, model)])


def _label_lines(task: Task, model: ExportedModel) -> list[str]:
    """Return the lines that classify one example."""
    if model.kind == IMAGE_CLASSIFIER:
        batch = 'processor(Image.open("IMAGE.png"), return_tensors="pt")'
        return ["", "from PIL import Image", f"logits = model(**{batch}).logits"]
    texts = '"TEXT"'
    if isinstance(task, ClassificationTask) and task.texts_per_record > 1:
        texts = '"TEXT", "SECOND TEXT"'
    return [f'logits = model(**tokenizer({texts}, return_tensors="pt")).logits']


def _text_lines(task: Task, model: ExportedModel) -> list[str]:
    """Return the lines that generate text after a prompt, or choose a label word."""
    if isinstance(task, ClassificationTask) and task.objective != CLS:
        return _label_word_lines(task, model)
    if model.kind == MASKED:
        return ['logits = model(**tokenizer("TEXT", return_tensors="pt")).logits']
    lines = [f'inputs = tokenizer({json.dumps(_prompt(task))}, return_tensors="pt")']
    if isinstance(task, CustomChats):
        lines = [
            'messages = [{"role": "user", "content": "MESSAGE"}]',
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
    begin = "" if model.kind == SEQ2SEQ else 'inputs["input_ids"].shape[1]'
    return [
        *lines,
        "tokens = model.generate(**inputs, max_new_tokens=100)[0]",
        f"print(tokenizer.decode(tokens[{begin}:], skip_special_tokens=True))",
    ]


def _label_word_lines(task: ClassificationTask, model: ExportedModel) -> list[str]:
    """Return the lines that compare the logits of the label words."""
    template = task.template if model.kind == MASKED else task.causal_template
    text = json.dumps(template.removesuffix("[MASK]").rstrip(), ensure_ascii=False)
    lines = [
        f"words = {[f' {word}' for word in task.words]}",
        "ids = [tokenizer(word, add_special_tokens=False).input_ids[0] for word in words]",
    ]
    if model.kind == MASKED:
        text = f'{json.dumps(template, ensure_ascii=False)}.replace("[MASK]", tokenizer.mask_token)'
    lines.append(f'inputs = tokenizer({text}, return_tensors="pt")')
    if model.kind == MASKED:
        place = 'inputs["input_ids"][0] == tokenizer.mask_token_id'
        return [*lines, f"logits = model(**inputs).logits[0, {place}][0, ids]"]
    if model.kind == SEQ2SEQ:
        lines.append('inputs["decoder_input_ids"] = inputs["input_ids"].new_zeros(1, 1)')
    return [*lines, "logits = model(**inputs).logits[0, -1, ids]"]


def _prompt(task: Task) -> str:
    """Return an example prompt: the task's template, or a prompt of placeholder words.

    A task that trains on whole texts has no prompt, so the model continues any text.
    """
    if isinstance(task, CustomTexts):
        return task.prompt_template or "TEXT"
    example = task.canary(("NAME", "TYPE", "AREA"), ("TEXT",), number=0)
    return (example.prompt if isinstance(example, Example) else "") or "TEXT"


def _pooled_usage(model: ExportedModel) -> str:
    """Return the code that computes a pooled classifier's logits from its encoder and its head."""
    return "\n".join(
        [
            "from huggingface_hub import snapshot_download",
            "from safetensors.torch import load_file",
            "from transformers import AutoModel, AutoTokenizer",
            "",
            _local_folder(model),
            "encoder = AutoModel.from_pretrained(folder)",
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
            f'head = load_file(f"{{folder}}/{HEAD}")',
            'batch = tokenizer(["TEXT"], padding=True, return_tensors="pt")',
            'mask = batch["attention_mask"].unsqueeze(-1)',
            "mean = (encoder(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)",
            'logits = mean @ head["weight"].T + head["bias"]',
        ]
    )


def _local_folder(model: ExportedModel) -> str:
    """Return the line that names a local copy of the export."""
    return (
        f"folder = {f'snapshot_download({model.repository!r})' if model.repository else repr(PATH)}"
    )
