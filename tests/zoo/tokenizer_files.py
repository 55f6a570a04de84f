"""Tokenizer files in the layouts in which model families publish them, trained in memory.

A published tokenizer is tokenizer.json and tokenizer_config.json. Older families add vocab.txt, or
vocab.json and merges.txt, and some publish a SentencePiece model instead of tokenizer.json.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SENTENCES = (
    "Where is the key of the garden? It is under the mat, beside the door.",
    "The food was good and the waiter was friendly.",
    "The room was cold, the soup was bad and nobody came.",
    "You are a helpful assistant. Answer the question of the user.",
    "Question 1: how far is the town 23? Answer: 45 miles by the river road.",
    "user system assistant model think",
)
MERGES = 60


def byte_level_bpe(
    *,
    first: Sequence[str] = (),
    last: Sequence[str] = (),
    words: Sequence[str] = (),
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> Tokenizer:
    """Return a tokenizer over bytes, as of GPT-2, Llama 3 and Qwen.

    Args:
        first: Special tokens with the first ids.
        last: Special tokens after the vocabulary.
        words: Tokens after these that are not special, such as ``<think>``.
        before: Special tokens that the tokenizer puts before each text.
        after: Special tokens that the tokenizer puts after each text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(first) + MERGES,
        special_tokens=list(first),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _finished(tokenizer, last, words, before, after)


def byte_fallback_bpe(
    *,
    first: Sequence[str],
    last: Sequence[str] = (),
    before: Sequence[str] = (),
) -> Tokenizer:
    """Return a BPE of SentencePiece's form, whose unknown characters are bytes (Gemma, Phi-3).

    Args:
        first: Special tokens with the first ids; one of them is ``<unk>``.
        last: Special tokens after the vocabulary.
        before: Special tokens that the tokenizer puts before each text.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=len(first) + len(fallback) + 40 + MERGES,
        special_tokens=[*first, *fallback],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    # Only the trainer needed words, and bytes as special tokens: published files have neither.
    files = json.loads(tokenizer.to_str()) | {"pre_tokenizer": None}
    files["added_tokens"] = [each for each in files["added_tokens"] if each["content"] in first]
    return _finished(Tokenizer.from_str(json.dumps(files)), last, (), before, ())


def wordpiece() -> Tokenizer:
    """Return a lower-case WordPiece tokenizer, as of BERT and ELECTRA."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.WordPieceTrainer(
        vocab_size=160, special_tokens=list(special), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def sentencepiece_unigram(**settings: Any) -> bytes:
    """Return a SentencePiece model file, as of T5, mT5 and DeBERTa.

    Args:
        settings: Ids and names of special pieces, as ``SentencePieceTrainer.train`` takes them.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        model_type="unigram",
        minloglevel=2,
        **settings,
    )
    return model.getvalue()


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer | None,
    *,
    template: str | None = None,
    template_file: bool = False,
    **settings: Any,
) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Args:
        folder: Folder of the model.
        tokenizer: Content of tokenizer.json; None if the family publishes none.
        template: Chat template; None if the family has none.
        template_file: Whether the template is in chat_template.jinja, as newer families have it,
            instead of tokenizer_config.json.
        settings: Further keys of tokenizer_config.json, such as ``tokenizer_class``.
    """
    config = dict(settings)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
        added = json.loads(tokenizer.to_str())["added_tokens"]
        config["added_tokens_decoder"] = {str(token.pop("id")): token for token in added}
    if template is not None and template_file:
        (folder / "chat_template.jinja").write_text(template)
    elif template is not None:
        config["chat_template"] = template
    write_json(folder / "tokenizer_config.json", config)
    special = {key: value for key, value in settings.items() if key.endswith("_token") and value}
    write_json(folder / "special_tokens_map.json", special)


def write_vocabulary(folder: Path, tokenizer: Tokenizer) -> None:
    """Write vocab.json and merges.txt of a BPE, or vocab.txt of a WordPiece."""
    tokenizer.model.save(str(folder))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _finished(
    tokenizer: Tokenizer,
    last: Sequence[str],
    words: Sequence[str],
    before: Sequence[str],
    after: Sequence[str],
) -> Tokenizer:
    """Add the last tokens, and those around each text."""
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in last])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    if before or after:
        ids = [(token, tokenizer.token_to_id(token)) for token in (*before, *after)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *before, "$B", *after],
            special_tokens=list(dict.fromkeys(ids)),
        )
    return tokenizer
