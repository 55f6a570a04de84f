"""A model and a tokenizer that a program gives as objects: kept in the run's folder.

They are written into ``private/base_model`` and read from there as any folder's are, so that a run
that breaks off goes on without the objects, and the objects themselves never change.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.keys import quoted
from dpft.config.words import given_overrides
from dpft.errors import InputError
from dpft.files import check_writable
from dpft.links import refuse_links
from dpft.run_folder import BASE_MODEL, CONFIGURATION, LOCK, PRIVATE, TUNING, hold_run, private_path
from dpft.runs.folder import refuse_used_folder


def model_words(model: object, tokenizer: object, overrides: list[str], folder: Path) -> list[str]:
    """Returns the words that choose a model given as an object.

    Args:
        model: The object; None: there is none, and there are no words.
        tokenizer: Its tokenizer.
        overrides: The caller's words.
        folder: Of the run.

    Raises:
        InputError: One comes without the other or is of another kind, or the words choose a model
            too.
    """
    if model is None and tokenizer is None:
        return []
    _check(model, tokenizer)
    assert isinstance(model, PreTrainedModel)
    chosen = sorted({"model", "model.path", "model.hub_name"} & set(given_overrides(overrides)))
    if chosen:
        raise InputError(f"at most one of {chosen[0]}= and a model object may be given, got both.")
    name = (model.name_or_path or "").rpartition("/")[2] or str(model.config.model_type)
    path = quoted(str(folder / BASE_MODEL))
    return ["model=local", f"model.name={quoted(name)}", f"model.path={path}"]


@contextmanager
def kept_model(model: object, tokenizer: object, folder: Path) -> Iterator[None]:
    """Keeps a model and its tokenizer in a run's folder, unless the run in the block is refused.

    Args:
        model: The object; None: there is none, and nothing is written.
        tokenizer: Its tokenizer.
        folder: Of the run.

    Raises:
        InputError: Privacy was spent in the folder, or it cannot be written to.
    """
    if model is None:
        yield
        return
    assert isinstance(model, PreTrainedModel) and isinstance(tokenizer, PreTrainedTokenizerBase)
    refuse_links(folder)
    refuse_used_folder(folder)
    check_writable(folder)
    places = (folder / PRIVATE, folder, *folder.parents)
    missing = [place for place in places if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    ours = False
    try:
        with hold_run(folder):
            ours = True  # Another process that holds the folder may have put its own there.
            _write(model, tokenizer, private_path(folder, BASE_MODEL))
        yield
    finally:
        begun = (folder / CONFIGURATION).exists() or (folder / TUNING).exists()
        if ours and not begun:
            shutil.rmtree(folder / BASE_MODEL, ignore_errors=True)
            _remove_empty(missing)


def _check(model: object, tokenizer: object) -> None:
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        way_out = (
            "; give the base model and method=lora (its adapters' weights merged, if it has any)"
            if kind.startswith("Peft")
            else "; any other module trains by dpft.privacy.clipping.PerExampleClipper in a loop of"
            " your own"
        )
        raise InputError(f"model must be a transformers.PreTrainedModel, got {kind}{way_out}.")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            "tokenizer must be the model's transformers tokenizer, got"
            f" {type(tokenizer).__name__}; load it with AutoTokenizer.from_pretrained."
        )


def _write(model: PreTrainedModel, tokenizer: Any, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path, safe_serialization=True)
    tokenizer.save_pretrained(path)
    for file in path.iterdir():
        file.chmod(0o600)


def _remove_empty(made: list[Path]) -> None:
    """Removes the folders that were made for a run that was refused."""
    with suppress(OSError):  # Something of the run's is there.
        for place in made:
            if place.name == PRIVATE:
                (place.parent / LOCK).unlink(missing_ok=True)
            place.rmdir()
