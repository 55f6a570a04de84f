"""Rebuilds the embedded model: its tokenizer and its public, non-private pre-training.

    python -m benchmarks.embedded.build --output DIR

Everything is drawn from one seed; with the same thread count and library versions the same
weights come out. The stored weights are float16, to keep the folder small.
"""

import argparse
import itertools
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from benchmarks.embedded.initialization import start_near_copying
from benchmarks.embedded.pretraining_grammar import Passage, drill, passage
from benchmarks.embedded.pretraining_words import EVERYDAY
from dpft.constants import IGNORED_LABEL
from dpft.models.source import EMBEDDED_MODEL

logger = logging.getLogger(__name__)

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the shipped model was built with."""

    seed: int = 7
    threads: int = 1
    steps: int = 3500
    echo_steps: int = 256
    drill_steps: int = 128
    batch_size: int = 32
    learning_rate: float = 3e-3
    warmup_steps: int = 200
    vocabulary_size: int = 3072
    tokenizer_passages: int = 20_000
    width: int = 160
    layers: int = 4
    heads: int = 4
    positions: int = 256


def build_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE learned on passages of the pre-training grammar.

    A text's first word gets a space before it, which decoding takes away again, so that a word
    has the same tokens at the start of a text as inside a record: it can be copied as it is.
    """
    random = Random(recipe.seed)
    texts = (text for _ in range(recipe.tokenizer_passages) for text in _texts(random))
    tokenizer = Tokenizer(models.BPE())
    # Not before a line feed: the separator stays one token.
    separator_as_it_is = normalizers.Replace(Regex(r"\A (?=[^\S ])"), "")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(" "), separator_as_it_is])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=recipe.positions,
        clean_up_tokenization_spaces=False,
    )


def _texts(random: Random) -> Iterator[str]:
    drawn = passage(random)
    yield drawn.record
    yield drawn.text
    yield " ".join(random.choices(EVERYDAY, k=20))


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Return the model with its initial weights; no dropout."""
    torch.manual_seed(recipe.seed)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=recipe.positions,
            n_embd=recipe.width,
            n_layer=recipe.layers,
            n_head=recipe.heads,
            initializer_range=0.05,
            # The default gelu_new in one kernel: same function, faster.
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    start_near_copying(model)
    return model


def batches(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield token ids, labels (-100 where there is no loss) and position ids, each (b, t).

    Copying comes first, as it is learned sooner on what is short and holds nothing else: echoes
    of arbitrary tokens, then drills, then passages of all kinds. Rows of similar length share a
    batch; a tenth of the batches starts at a later position, so that every position embedding
    is trained.
    """
    random = Random(recipe.seed + 1)
    pool_size = 32 * recipe.batch_size
    for done in itertools.count(step=32):
        drilled = done < recipe.echo_steps + recipe.drill_steps
        drawn = (
            _echo(random, len(tokenizer))
            if done < recipe.echo_steps
            else _encode(drill(random) if drilled else passage(random), tokenizer)
            for _ in range(pool_size)
        )
        pool = sorted(drawn, key=_length)
        starts = list(range(0, pool_size, recipe.batch_size))
        random.shuffle(starts)
        for start in starts:
            rows = pool[start : start + recipe.batch_size]
            length = min(max(map(_length, rows)), recipe.positions)
            ids = torch.full((len(rows), length), tokenizer.pad_token_id)
            labels = torch.full((len(rows), length), IGNORED_LABEL)
            for row, (prompt, text) in enumerate(rows):
                tokens = (prompt + text)[:length]
                ids[row, : len(tokens)] = torch.tensor(tokens)
                labels[row, len(prompt) : len(tokens)] = ids[row, len(prompt) : len(tokens)]
            offset = random.randint(0, recipe.positions - length) if random.random() < 0.1 else 0
            yield ids, labels, torch.arange(offset, offset + length).expand(len(rows), length)


def _echo(random: Random, vocabulary_size: int) -> tuple[list[int], list[int]]:
    tokens = random.choices(range(1, vocabulary_size), k=random.randint(4, 24))
    return [*tokens, 0], tokens


def _encode(drawn: Passage, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    encode = tokenizer.backend_tokenizer.encode
    # Apart, as fine-tuning does it; prose follows the end of another text.
    prompt = [*encode(drawn.record).ids, *encode("\n").ids] if drawn.record else []
    start = prompt or [tokenizer.eos_token_id]
    return start, [*encode(drawn.text).ids, tokenizer.eos_token_id]


def _length(encoded: tuple[list[int], list[int]]) -> int:
    return len(encoded[0]) + len(encoded[1])


def pretrain(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
    """Train the model in place on fresh passages: AdamW, warm-up, then cosine decay."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe))
    model.train()
    average = math.log(len(tokenizer))
    for step, (ids, labels, position_ids) in zip(
        range(1, recipe.steps + 1), batches(recipe, tokenizer), strict=False
    ):
        hidden = model.transformer(
            input_ids=ids,
            # Padding stands at the end, where causal attention never looks.
            attention_mask=torch.ones_like(ids),
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        wanted = labels[:, 1:] != IGNORED_LABEL
        logits = model.lm_head(hidden[:, :-1][wanted])
        loss = cross_entropy(logits, labels[:, 1:][wanted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        average += 0.02 * (loss.item() - average)
        if step % 100 == 0:
            logger.info("step %d of %d, loss %.3f", step, recipe.steps, average)


def _rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / recipe.steps)))


def build(output: Path, recipe: Recipe) -> None:
    """Write tokenizer and pre-trained model to a folder that ``from_pretrained`` loads."""
    torch.set_num_threads(recipe.threads)
    tokenizer = build_tokenizer(recipe)
    model = build_model(recipe, tokenizer)
    logger.info("%d parameters", model.num_parameters())
    pretrain(model, tokenizer, recipe)
    model.half()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def main(argv: list[str] | None = None) -> None:
    """Run the build from the command line."""
    parser = argparse.ArgumentParser(description="Rebuild the embedded model.")
    parser.add_argument("--output", type=Path, default=EMBEDDED_MODEL)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--threads", type=int, default=Recipe.threads)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    recipe = Recipe(seed=options.seed, steps=options.steps, threads=options.threads)
    build(options.output, recipe)


if __name__ == "__main__":
    main()
