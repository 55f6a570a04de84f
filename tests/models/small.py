"""A small model of every kind, with a tokenizer of a few words, as folders that dpft loads."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(
    "it was this is great terrible correct incorrect yes no maybe ? , . | : a the film play song"  # noqa: SIM905
    " dull bright long short name mask [ ] pub place".split()
)
"""What the WordPiece tokenizer knows; the other one knows them with a blank before, and "yes"."""
BLANK = "\u2581"


def wordpiece(folder: Path) -> PreTrainedTokenizerBase:
    """BERT's tokenizer: lower case, ``[CLS]`` and ``[SEP]`` around; ``unlikely`` has two pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*MARKS, *WORDS, "un", "##likely"]) + "\n")
    return BertTokenizerFast(str(vocabulary))


def blank_words(*, closes: bool) -> PreTrainedTokenizerBase:
    """A tokenizer of whole words, the blank a part of each; T5's closes every text."""
    words = ["<pad>", "</s>", "<unk>", *(BLANK + word for word in WORDS), BLANK + "Yes"]
    words += [BLANK + "No", BLANK + "Maybe"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    if closes:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
        )
    pad = {"pad_token": "<pad>"} if closes else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", **pad
    )


def bert_config(**settings: object) -> PretrainedConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": 48, "intermediate_size": 24, "max_position_embeddings": 64}
    return BertConfig(**{**sizes, **settings})


def roberta_config(**settings: object) -> PretrainedConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": 48, "intermediate_size": 24, "max_position_embeddings": 66}
    return RobertaConfig(**{**sizes, "pad_token_id": 1, **settings})


def gpt2_config(**settings: object) -> PretrainedConfig:
    sizes = {"vocab_size": 48, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 1, **settings})


def t5_config(**settings: object) -> PretrainedConfig:
    sizes = {"vocab_size": 48, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
    sizes |= {"num_layers": 1, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    return T5Config(**{**sizes, **settings})


def llama_config(**settings: object) -> PretrainedConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": 48, "intermediate_size": 24, "max_position_embeddings": 64}
    return LlamaConfig(**{**sizes, "bos_token_id": 1, "eos_token_id": 1, **settings})


def opt_config(**settings: object) -> PretrainedConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 24}
    sizes |= {"vocab_size": 48, "word_embed_proj_dim": 16, "max_position_embeddings": 64}
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    return OPTConfig(**{**sizes, **ids, **settings})


LANGUAGE_MODELS = {
    "bert": (bert_config, BertForMaskedLM),
    "roberta": (roberta_config, RobertaForMaskedLM),
    "gpt2": (gpt2_config, GPT2LMHeadModel),
    "t5": (t5_config, T5ForConditionalGeneration),
    "llama": (llama_config, LlamaForCausalLM),
    "opt": (opt_config, OPTForCausalLM),
}


def shaken(model: PreTrainedModel) -> PreTrainedModel:
    """Move every weight far from its symmetric start, as training would; in eval mode."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def language_model(name: str, **settings: object) -> PreTrainedModel:
    """A language model by its name in LANGUAGE_MODELS, the same weights every time."""
    config, made = LANGUAGE_MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return shaken(made(config(**settings)))


def tokenizer_of(name: str, folder: Path) -> PreTrainedTokenizerBase:
    return wordpiece(folder) if name == "bert" else blank_words(closes=name == "t5")


def save(name: str, folder: Path) -> Path:
    """Write the language model of that name and its tokenizer; return the folder."""
    language_model(name).save_pretrained(folder)
    tokenizer_of(name, folder).save_pretrained(folder)
    return folder
