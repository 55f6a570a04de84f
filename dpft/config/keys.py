"""Dotted configuration keys: find, split and quote them, and suggest corrections of typos.

The module also knows names that other programs use for the same settings: Hugging Face's
``TrainingArguments`` and examples, peft, Opacus, private-transformers, fastDP, jax-privacy and
torch. Names that equal or resemble the last part of a key need no entry.
"""

import difflib
import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from dpft.config.removed import removed_key
from dpft.config.section import section_class
from dpft.errors import Fault

_OF_KEY = {
    "train.learning_rate": "lr max_lr peak_lr",
    "train.weight_decay": "wd decay",
    "train.expected_batch_size": (
        "batch_size bs train_batch_size logical_batch_size total_batch_size global_batch_size"
        " effective_batch_size gradient_accumulation_steps sample_rate sampling_prob"
        " sampling_probability"
    ),
    "train.micro_batch_size": (
        "per_device_train_batch_size per_gpu_train_batch_size per_device_batch_size"
        " physical_batch_size max_physical_batch_size microbatch_size mini_batch_size"
    ),
    "train.epochs": "num_epochs num_train_epochs max_epochs epoch n_epochs",
    "train.steps": "max_steps num_steps train_steps num_train_steps max_iters iterations",
    "train.seed": "seed random_seed data_seed manual_seed",
    "train.precision": "fp16 bf16 half mixed_precision dtype torch_dtype",
    "train.adaptive_loss_scale": "dynamic_loss_scale loss_scale_window grad_scaler",
    "train.device": "device cuda gpu no_cuda use_cpu",
    "train.checkpoint_every": "save_steps save_every checkpoint_interval",
    "train.keep": "save_total_limit",
    "scheduler": "lr_scheduler lr_scheduler_type lr_schedule schedule",
    "scheduler.warmup_steps": "warmup warmup_ratio num_warmup_steps",
    "optimizer": "optim",
    "optimizer.beta1": "adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.eps": "adam_epsilon adam_eps",
    "privacy": "private non_private disable_privacy dp use_dp",
    "privacy.eps": "eps epsilon target_epsilon dp_epsilon privacy_budget",
    "privacy.delta": "target_delta dp_delta",
    "privacy.noise_multiplier": (
        "noise noise_level noise_scale sigma dp_noise_multiplier noise_std per_example_noise"
    ),
    "privacy.max_grad_norm": (
        "max_grad_norm clip clip_norm clipping_norm clipping_threshold max_norm l2_clip_norm"
        " l2_norm_clip norm_clip per_example_max_grad_norm per_sample_max_grad_norm"
        " max_per_sample_grad_norm C"
    ),
    "privacy.clipping": "clipping_mode clipping_fn clipping_style clip_method",
    "privacy.engine": "clipping_engine grad_sample_mode ghost_clipping",
    "privacy.accountant": "accounting_mode accounting",
    "privacy.num_examples": "sample_size dataset_size num_train_examples train_size",
    "privacy.unit": "user_column user_id author_column group_by unit_column",
    "task.data_dir": (
        "data dataset data_dir data_file data_files data_path data_folder train_file train_data"
        " csv input_file"
    ),
    "task.hub_name": "dataset_name dataset_id",
    "task.text": "text_column text_column_name text_field dataset_text_field",
    "task.label": "label_column label_column_name",
    "task.max_length": (
        "max_length max_len max_seq_length max_seq_len max_sequence_length seq_len seq_length"
        " block_size context_length cutoff_len model_max_length"
    ),
    "task": "task_name task_mode",
    "model": "model_name model_name_or_path model_id model_type pretrained base_model arch",
    "method": "peft peft_type tuning_method finetuning_type",
    "method.rank": "r lora_r lora_rank",
    "method.alpha": "lora_alpha",
    "method.dropout": "lora_dropout",
    "method.targets": "target_modules lora_target_modules",
    "eval.batch_size": "eval_batch_size per_device_eval_batch_size per_gpu_eval_batch_size",
    "eval.held_out": "test_size val_size validation_split validation_split_percentage val_split",
    "eval.limit": "max_eval_samples max_predict_samples eval_examples",
    "decode.max_new_tokens": "max_new_tokens max_generate_length max_target_length",
    "tracking": "report_to logger wandb",
    "hydra.run.dir": "output_dir out_dir output_folder save_dir run_dir log_dir",
    "resume": "resume_from_checkpoint checkpoint ckpt",
}
MEANT = {name: key for key, names in _OF_KEY.items() for name in names.split()}
"""Names in other programs, each with the corresponding key."""


AUTO = "auto"
"""``resume=auto``: resume the run in ``hydra.run.dir``, or begin a run if the folder has no run."""
MISSING = "???"
"""OmegaConf's marker for a required value."""


KEYS_OF_THE_LIBRARY = {
    "clipping": "privacy.clipping",
    "engine": "privacy.engine",
    "groups": "privacy.groups",
    "loss_scale": "train.loss_scale",
    "max_grad_norm": "privacy.max_grad_norm",
    "b=1": "train.micro_batch_size=1",
    "dpft.models.batch_norm.replace_batch_norm(model)": "model.replace_batch_norm=true",
}
"""Arguments and calls that messages of the clipper quote in backticks, each with the configuration
key that replaces it."""


def in_keys(message: str) -> str:
    """Return a message of the clipper with its arguments replaced by configuration keys.

    >>> in_keys("`engine` must be one of auto, rows, got 'x'; choose `engine='rows'`.")
    "privacy.engine must be one of auto, rows, got 'x'; choose privacy.engine=rows."
    """

    def key(match: re.Match[str]) -> str:
        code = match[1]
        name, equals, value = code.partition("=")
        if code in KEYS_OF_THE_LIBRARY or name not in KEYS_OF_THE_LIBRARY:
            return KEYS_OF_THE_LIBRARY.get(code, match[0])
        return KEYS_OF_THE_LIBRARY[name] + equals + value.strip("'")

    return re.sub("`([^`]+)`", key, message)


class KeyFormatter(logging.Formatter):
    """Formatter for log lines of a command, which names configuration keys (``in_keys``)."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        return in_keys(super().format(record))


def join_key(parent: str, name: object) -> str:
    """Return the dotted key of ``name`` under ``parent``, which is empty for the root."""
    return f"{parent}.{name}" if parent else str(name)


def leaves(values: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Return nested values with dotted keys.

    >>> leaves({"train": {"steps": 3, "keep": 1}, "name": "x"})
    {'train.steps': 3, 'train.keep': 1, 'name': 'x'}
    """
    value_by_key: dict[str, Any] = {}
    for name, value in values.items():
        key = join_key(parent, name)
        value_by_key |= leaves(value, key) if isinstance(value, Mapping) else {key: value}
    return value_by_key


def quoted(word: str, mark: str = "'") -> str:
    """Return a text in quotes, so that Hydra's grammar reads it literally.

    Args:
        word: Any text.
        mark: The quote character, single or double.
    """
    # Hydra reads a backslash literally, except before a quote or at the end of the value.
    escaped = re.sub(rf"(\\*){mark}", rf"\1\1\\{mark}", word)
    return mark + re.sub(r"\\+\Z", r"\g<0>\g<0>", escaped) + mark


READ_AS_IT_IS = re.compile(r"[\w./-](?:[\w./ -]*[\w./-])?", re.ASCII)
"""Pattern of values that Hydra reads correctly without quotes."""


def in_shell(key: str, value: object) -> str:
    """Return KEY=VALUE as one shell argument, which Hydra reads literally."""
    text = str(value)
    word = text if READ_AS_IT_IS.fullmatch(text) else quoted(text, '"')
    return shlex.quote(f"{key}={word}")


def known_keys(root: type[BaseModel], values: Any = None, *, parent: str = "") -> list[str]:
    """Return the dotted keys of a model class, including the keys of its sections.

    Args:
        root: The class.
        values: The values, which determine the classes of some sections.
        parent: Dotted key of the section that ``root`` belongs to.
    """
    keys = []
    for name, field in root.model_fields.items():
        name = field.alias or name
        inner = values.get(name) if isinstance(values, Mapping) else None
        key, section = join_key(parent, name), section_class(field, inner)
        keys += [key, *([] if section is None else known_keys(section, inner, parent=key))]
    return keys


def copy_key(path: list[str], source: Mapping[str, Any], target: dict[str, Any]) -> None:
    """Copy the value at a key path from one configuration to another."""
    for name in path[:-1]:
        source, target = source[name], target[name]
    target[path[-1]] = source[path[-1]]


def key_of(word: str) -> str:
    """Return the dotted key that a command-line argument, such as ``+key=value``, sets."""
    return word.lstrip("+~").partition("=")[0]


def unknown_key(key: str, known_keys: Iterable[str], *, value: object = None) -> Fault:
    """Return the fault for an unknown key, with the nearest known keys.

    Args:
        key: Dotted key.
        known_keys: Dotted keys.
        value: The value that the key was set to.
    """
    removed = removed_key(key)
    if removed:
        return Fault(removed, key=key, value=value)
    keys = set(known_keys)
    if key in keys:
        hint = shlex.quote(f"++{key}={'VALUE' if value is None else value}")
        message = f"configuration key {key} is not part of this composition."
        return Fault(message, key=key, value=value, hint=hint)
    near = nearest_keys(key, keys)
    if near:
        assignment = None if value is None else shlex.quote(f"{near[0]}={value}")
        message = f"unknown configuration key {key}; did you mean {' or '.join(near)}?"
        return Fault(message, key=key, value=value, hint=assignment)
    parent = key.rpartition(".")[0]
    siblings = sorted(k for k in keys if k.rpartition(".")[0] == parent)
    names = ", ".join(siblings or sorted(k for k in keys if "." not in k))
    message = f"unknown configuration key {key}; the known keys here are {names}."
    return Fault(message, key=key, value=value)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate spelled most like ``name``, or None if no candidate is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(candidates), n=1)), None)


def nearest_keys(key: str, known_keys: Iterable[str]) -> list[str]:
    """Return the keys that a misspelled dotted key may mean, or an empty list.

    The result is the first nonempty group of this list:

    1. the key that other programs call by this name (``train.lr``), if it is in the same section
       or no section is given;
    2. keys of the section that end with the name (``optimizer.decay``);
    3. the key of another section that other programs call by this name;
    4. keys of other sections with the same name (``rank``);
    5. the key of the section with similar spelling;
    6. keys of other sections with similar spelling.
    """
    keys = sorted(known_keys)
    parent, _, name = key.rpartition(".")
    meant = _meant(name, keys)
    if meant and parent in ("", meant[0].rpartition(".")[0]):
        return meant
    last_names = {one: one.rpartition(".")[2] for one in keys}
    siblings = {last_names[one]: one for one in keys if one.rpartition(".")[0] == parent}
    same_name = [one for one in keys if last_names[one] == name]
    spelt_alike = difflib.get_close_matches(name, sorted(set(last_names.values())), n=1, cutoff=0.8)
    return (
        [one for sibling, one in siblings.items() if sibling.endswith(f"_{name}")]
        or meant
        or difflib.get_close_matches(key, same_name, n=1, cutoff=0.8)
        or same_name
        or [siblings[one] for one in difflib.get_close_matches(name, sorted(siblings), n=1)]
        or [one for one in keys if last_names[one] in spelt_alike]
    )


def _meant(name: str, known_keys: Iterable[str]) -> list[str]:
    """Return the key that other programs call ``name``, if it is among the known keys.

    The known keys may be dotted keys or last names of keys.
    """
    meant = MEANT.get(name, "")
    if meant.startswith("hydra."):
        return [meant]
    return [one for one in (meant, meant.rpartition(".")[2]) if one in known_keys][:1]
