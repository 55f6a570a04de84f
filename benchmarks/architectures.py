"""Time of private micro-batches against ordinary ones, by architecture: ``make bench``.

    python -m benchmarks.architectures --pairs 15 --rows "gpt2;LSTM" --output benchmarks/results.md

The text architectures that are used most, and the others that have ever been slow. Random weights
of width 256 and four layers, eight texts of up to 64 tokens with an attention mask, and no position
ids: what a caller passes who follows the documentation of transformers. Both are timed in one
process, taking turns, on copies of one model.
"""

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import tables
from benchmarks.interleave import Timings, take_turns
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.engines import MicroBatch

RESULTS = Path(__file__).parent / "results.md"
TITLE = "Clipping: time against ordinary training, by architecture"
NOTES = (
    "Width 256, 4 layers, 8 ragged texts of up to 64 tokens, attention_mask and default arguments; "
    "median ratio of\ninterleaved pairs of micro-batches in one process, with interquartile range. "
    "Errors of norms and of the clipped sum\nare relative to single-example execution in float32, "
    "with the clipper's own clip factors; shortened is the largest\nshare by which its bound on "
    "rounding shortens a factor."
)
COLUMNS = (
    "architecture", "engine", "time (interquartile range)", "milliseconds", "error of norms",
    "error of sums", "shortened", "pairs",
)  # fmt: skip
ALLOWED = 1e-5
"""Goal for the errors."""
SYNTHETIC_LENGTHS = ((5, 9, 2, 7), (16, 3, 11))
"""Tokens of the texts of the self-check's batches."""
EXAMPLES, LENGTH, WIDTH, LAYERS, HEADS, VOCABULARY = 8, 64, 256, 4, 4, 8192
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCABULARY}
SIZES = TOKENS | {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
    "max_position_embeddings": 2 * LENGTH,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
GPT = TOKENS | {"n_positions": 2 * LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
HALVES = TOKENS | {
    "d_model": WIDTH,
    "max_position_embeddings": 2 * LENGTH,
    "decoder_start_token_id": 1,
    **{f"{half}_layers": LAYERS // 2 for half in ("encoder", "decoder")},
    **{f"{half}_attention_heads": HEADS for half in ("encoder", "decoder")},
    **{f"{half}_ffn_dim": 4 * WIDTH for half in ("encoder", "decoder")},
}
Compute = Callable[[Any, "Batch"], Tensor]


class Batch(NamedTuple):
    """Ragged random texts, right-padded, and a class of each.

    Attributes:
        ids: Shape (b, t).
        mask: 1 for a token, 0 for padding, shape (b, t).
        classes: Shape (b,).
    """

    ids: Tensor
    mask: Tensor
    classes: Tensor

    @property
    def labels(self) -> Tensor:
        """The texts with -100 at padding, shape (b, t)."""
        return self.ids.masked_fill(self.mask == 0, -100)


@dataclass(frozen=True)
class Architecture:
    """A kind of model, and what a caller passes to it.

    Attributes:
        build: Makes it, with random weights.
        losses: Computes its per-example losses, shape (b,).
    """

    build: Callable[[], nn.Module]
    losses: Compute


def causal(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of the next token."""
    logits = model(input_ids=batch.ids, attention_mask=batch.mask).logits
    return token_losses(logits[:, :-1], batch.labels[:, 1:])


def causal_without_mask(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of the next token, of texts passed without a mask."""
    return token_losses(model(input_ids=batch.ids).logits[:, :-1], batch.labels[:, 1:])


def causal_with_positions(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of the next token, of texts passed with their positions."""
    positions = torch.arange(batch.ids.shape[1], device=batch.ids.device).expand_as(batch.ids)
    passed = {"attention_mask": batch.mask, "position_ids": positions}
    logits = model(input_ids=batch.ids, **passed).logits
    return token_losses(logits[:, :-1], batch.labels[:, 1:])


def classification(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of the class."""
    logits = model(input_ids=batch.ids, attention_mask=batch.mask).logits
    return functional.cross_entropy(logits, batch.classes, reduction="none")


def sequence_to_sequence(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of giving a text back."""
    given = functional.pad(batch.ids[:, :-1], (1, 0), value=1)
    logits = model(input_ids=batch.ids, attention_mask=batch.mask, decoder_input_ids=given).logits
    return token_losses(logits, batch.labels)


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over each text's own tokens, shape (b,)."""
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
    )
    return losses.view_as(labels).sum(1) / (labels != -100).sum(1)


class RecurrentLanguageModel(nn.Module):
    """Embeddings, recurrent layers and a head."""

    def __init__(self, kind: type[nn.RNNBase], *, batch_first: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = kind(WIDTH, WIDTH, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.batch_first = batch_first

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token, shape (b, t, v)."""
        embedded = self.embedding(ids)
        if self.batch_first:
            return self.head(self.recurrent(embedded)[0])
        return self.head(self.recurrent(embedded.transpose(0, 1))[0].transpose(0, 1))


def recurrent(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of the next token of a model of tokens alone."""
    return token_losses(model(batch.ids)[:, :-1], batch.labels[:, 1:])


def architectures() -> dict[str, Architecture]:
    """Return every architecture by its name."""
    gpt2 = _model("GPT2Config", "CausalLM", GPT)
    return {
        "gpt2": Architecture(gpt2, causal),
        "gpt2 without a mask": Architecture(gpt2, causal_without_mask),
        "gpt2 with position_ids": Architecture(gpt2, causal_with_positions),
        **{n: Architecture(_model(c, "CausalLM", o), causal) for n, c, o in _decoders()},
        **{n: Architecture(build, classification) for n, build in _encoders().items()},
        **{
            n: Architecture(_model(c, "Seq2SeqLM", o), sequence_to_sequence)
            for n, c, o in _encoder_decoders()
        },
        "gpt2, prompt tuning": Architecture(
            _with_prompt(gpt2, "PromptTuningConfig"), causal_prompt
        ),
        "gpt2, p-tuning": Architecture(_with_prompt(gpt2, "PromptEncoderConfig"), causal_prompt),
        "LSTM": Architecture(lambda: RecurrentLanguageModel(nn.LSTM), recurrent),
        "LSTM, batch second": Architecture(
            lambda: RecurrentLanguageModel(nn.LSTM, batch_first=False), recurrent
        ),
        "GRU": Architecture(lambda: RecurrentLanguageModel(nn.GRU), recurrent),
    }


def causal_prompt(model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses of the next token; peft gives the prompt's own logits first."""
    logits = model(input_ids=batch.ids, attention_mask=batch.mask).logits
    return token_losses(logits[:, -batch.ids.shape[1] : -1], batch.labels[:, 1:])


def _decoders() -> list[tuple[str, str, dict[str, Any]]]:
    neo = {
        "hidden_size": WIDTH,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "attention_types": [[["global", "local"], LAYERS // 2]],
        "max_position_embeddings": 2 * LENGTH,
    }
    opt = {"ffn_dim": 4 * WIDTH, "word_embed_proj_dim": WIDTH}
    bloom = TOKENS | {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    per_layer = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCABULARY}
    thin = {"altup_num_inputs": 2, "laurel_rank": 8, "num_kv_shared_layers": 0}
    gemma3n = GROUPED | per_layer | thin | {"activation_sparsity_pattern": None}
    return [
        ("gpt_neo", "GPTNeoConfig", TOKENS | neo),
        ("gptj", "GPTJConfig", GPT | {"rotary_dim": 32}),
        ("gpt_neox", "GPTNeoXConfig", SIZES),
        ("gpt_bigcode", "GPTBigCodeConfig", GPT),
        ("opt", "OPTConfig", SIZES | opt),
        ("bloom", "BloomConfig", bloom),
        ("llama", "LlamaConfig", GROUPED),
        ("mistral", "MistralConfig", GROUPED),
        ("qwen2", "Qwen2Config", GROUPED),
        ("qwen3", "Qwen3Config", GROUPED),
        ("gemma", "GemmaConfig", GROUPED),
        ("gemma2", "Gemma2Config", GROUPED),
        ("gemma3", "Gemma3TextConfig", GROUPED),
        ("gemma3n", "Gemma3nTextConfig", gemma3n),
        ("phi", "PhiConfig", SIZES),
        ("falcon", "FalconConfig", SIZES),
    ]


def _encoders() -> dict[str, Callable[[], nn.Module]]:
    distil = {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 4 * WIDTH}
    deberta = {
        "relative_attention": True,
        "position_buckets": 32,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    }
    kinds = {
        "bert": ("BertConfig", {}),
        "roberta": ("RobertaConfig", {"type_vocab_size": 1}),
        "distilbert": ("DistilBertConfig", distil),
        "albert": ("AlbertConfig", {"embedding_size": WIDTH // 2}),
        "electra": ("ElectraConfig", {"embedding_size": WIDTH // 2}),
        "deberta-v2": ("DebertaV2Config", deberta),
    }
    return {
        name: _model(config, "SequenceClassification", SIZES | options)
        for name, (config, options) in kinds.items()
    }


def _encoder_decoders() -> list[tuple[str, str, dict[str, Any]]]:
    t5 = {
        "d_model": WIDTH,
        "d_kv": WIDTH // HEADS,
        "d_ff": 4 * WIDTH,
        "num_layers": LAYERS // 2,
        "num_heads": HEADS,
        "decoder_start_token_id": 0,
    }
    return [
        ("t5", "T5Config", TOKENS | t5),
        ("bart", "BartConfig", HALVES),
        ("blenderbot", "BlenderbotConfig", HALVES),
    ]


def _model(config: str, head: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        made = getattr(transformers, config)(**options)
        model: nn.Module = getattr(transformers, f"AutoModelFor{head}").from_config(made)
        return model

    return build


def _with_prompt(build: Callable[[], nn.Module], config: str) -> Callable[[], nn.Module]:
    """Return a model whose prompt alone is trained, by peft as it is."""

    def prompted() -> nn.Module:
        import peft

        settings = getattr(peft, config)(task_type="CAUSAL_LM", num_virtual_tokens=20)
        model: nn.Module = peft.get_peft_model(build(), settings)
        return model

    return prompted


def make_batch(lengths: Sequence[int] | None = None) -> Batch:
    """Return random texts of these lengths; by default eight, from 64 to 16 tokens."""
    if lengths is None:
        lengths = torch.linspace(LENGTH, LENGTH // 4, EXAMPLES).long().tolist()
    longest = max(lengths)
    ids = torch.randint(3, VOCABULARY, (len(lengths), longest))
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    classes = torch.randint(0, 2, (len(lengths),))
    return Batch(ids.masked_fill(mask == 0, 0), mask, classes)


@contextmanager
def clipper_of(
    model: nn.Module, architecture: Architecture, max_grad_norm: float
) -> Iterator[PerExampleClipper]:
    """Enter a clipper of a model that has passed its self-check."""
    with PerExampleClipper(model, architecture.losses, max_grad_norm) as clipper:
        clipper.self_check(*map(make_batch, SYNTHETIC_LENGTHS))
        yield clipper


def measure(architecture: Architecture, *, pairs: int, warm_up: int = 2) -> Timings:
    """Time private and ordinary micro-batches of one model in turns."""
    torch.manual_seed(0)
    private = architecture.build().train()
    ordinary = copy.deepcopy(private)
    batch = make_batch()
    with clipper_of(private, architecture, 1.0) as clipper:
        return take_turns(
            lambda: clipper.accumulate(batch),
            lambda: architecture.losses(ordinary, batch).sum().backward(),
            pairs=pairs,
            warm_up=warm_up,
        )


class Exactness(NamedTuple):
    """Distances of a clipped sum from single-example execution in float32, all relative.

    Attributes:
        engine: The engine that the clipper chose.
        norms: The largest difference of a norm.
        sums: L2 distance of the sum from the examples' gradients weighted by the clipper's own
            factors.
        shortened: The largest share by which the bound's rounding shortens a clip factor.
    """

    engine: str
    norms: float
    sums: float
    shortened: float


def exactness(architecture: Architecture) -> Exactness:
    """Compare norms and a clipped sum with each example run separately, without dropout."""
    torch.manual_seed(0)
    model, batch = architecture.build().eval(), make_batch()
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = []
    for row in range(EXAMPLES):
        (loss,) = architecture.losses(model, Batch(*(leaf[row : row + 1] for leaf in batch)))
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        gradients.append([None if g is None else g.double() for g in found])
    norms = torch.stack([_length(each) for each in gradients])
    max_grad_norm = float(norms.median())
    with clipper_of(model, architecture, max_grad_norm) as clipper:
        clipped_norms = clipper.accumulate(batch).double()
        total = [p.grad for p in trained]
        micro_batch = MicroBatch(batch, EXAMPLES, EXAMPLES)
        (factors,) = clipper._engine.run(micro_batch, clipper.style).factors
        assert clipper.choice is not None
        engine = clipper.choice.engine
    expected = [
        sum(f * g for f, g in zip(factors, each, strict=True) if g is not None)
        for each in zip(*gradients, strict=True)
    ]
    difference = [e if t is None else t.double() - e for t, e in zip(total, expected, strict=True)]
    ideal = (max_grad_norm / norms).clamp(max=1.0)
    return Exactness(
        engine=engine,
        norms=float(((clipped_norms - norms).abs() / norms).max()),
        sums=float(_length(difference) / _length(expected)),
        shortened=float((1 - factors / ideal).max()),
    )


def _length(parts: Sequence[Tensor | float | None]) -> Tensor:
    """Return the L2 norm of tensors together; a part without a gradient is None or 0."""
    return torch.stack([p.square().sum() for p in parts if isinstance(p, Tensor)]).sum().sqrt()


def table_line(name: str, timings: Timings | None, exact: Exactness) -> str:
    """Return a row of the table in Markdown."""
    times = ("-", "-", "0")
    if timings is not None:
        times = (timings.spread, timings.milliseconds, str(len(timings.ratios)))
    distances = f"{exact.norms:.1e} | {exact.sums:.1e} | {exact.shortened:.1e}"
    return f"| {name} | {exact.engine} | {' | '.join(times[:2])} | {distances} | {times[2]} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows asked for and write the table."""
    known = architectures()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="0: only exactness")
    parser.add_argument("--rows", default=";".join(known), help="names, separated by semicolons")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision = "cpu", "fp32"
    torch.set_num_threads(options.threads)
    writer = "benchmarks/architectures.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    found = []
    for name in options.rows.split(";"):
        if name not in known:
            parser.error(f"--rows must be some of {'; '.join(known)}, got {name!r}")
        timings = measure(known[name], pairs=options.pairs) if options.pairs else None
        found.append(exactness(known[name]))
        line = table_line(name, timings, found[-1])
        print(line, flush=True)
        table += line + "\n"
        tables.write(options.output, table)
    worst = max(max(each.norms, each.sums) for each in found)
    print(f"largest error of norms and sums = {worst:.1e}  (goal: at most {ALLOWED:g})")


if __name__ == "__main__":
    main()
