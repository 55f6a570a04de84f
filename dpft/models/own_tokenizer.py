"""A tokenizer of the user's own, ``model.tokenizer``, and the model's configuration for it."""

from pathlib import Path

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from dpft.errors import InputError
from dpft.files import TOKENIZER
from dpft.models.source import TOKENIZER_FILES, ModelConfig


def own_tokenizer_folder(model: ModelConfig) -> Path | None:
    """Returns the folder of the tokenizer's files; None where the model has its own.

    Raises:
        InputError: There is none.
    """
    if model.tokenizer is None:
        return None
    place = Path(model.tokenizer).expanduser()
    folder = place / TOKENIZER if (place / TOKENIZER).is_dir() else place
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(
            f"model.tokenizer must be the folder of a dpft tokenizer run, or of a tokenizer, got"
            f" {model.tokenizer!r}, which holds no tokenizer; give the folder that dpft tokenizer"
            " named, and if that has none yet, go on with it by dpft tokenizer resume=RUN."
        )
    return folder


def load_own_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a folder.

    Raises:
        InputError: It cannot be read.
    """
    try:
        made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # what the library raises for a damaged file is no kind of its own
        raise InputError(
            f"model.tokenizer={folder} could not be read as a tokenizer; give a folder written by"
            " save_pretrained."
        ) from error
    return made


def fit_to_tokenizer(config: PretrainedConfig, folder: Path) -> None:
    """Writes a tokenizer's size and its special tokens into a model's configuration."""
    tokenizer = load_own_tokenizer(folder)
    end = tokenizer.eos_token_id
    pad = end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    begin = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    for each in {id(part): part for part in (config, config.get_text_config())}.values():
        each.vocab_size = len(tokenizer)
        each.pad_token_id, each.eos_token_id, each.bos_token_id = pad, end, begin
        if getattr(each, "is_encoder_decoder", False):
            each.decoder_start_token_id = pad
