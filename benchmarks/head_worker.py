"""A micro-batch of a GPT-2, its head fused or not, whenever it is told to.

Speaks as ``benchmarks.worker`` does. Started by ``benchmarks.head_memory``.
"""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.shapes import NO_GPT2_DROPOUT, NO_TOKENS
from benchmarks.worker import MAX_GRAD_NORM, answer, peak_bytes, timed
from benchmarks.workload import HeadWorkload
from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.head_losses import fuse_head, losses_added_up
from dpft.kinds import CAUSAL
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping import PerExampleClipper
from dpft.training.training_config import autocast

HUGGING_FACE, ORDINARY = "hugging_face", "ordinary"


def main() -> None:
    """Runs the workload that the first line of input describes."""
    workload = HeadWorkload(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(workload.threads)
    with ExitStack() as resources:
        model = make_model(workload)
        micro_batch = _micro_batch(model, workload, resources)
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=1e-5)

        def measured() -> float:
            seconds = timed(micro_batch, workload.device)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return seconds

        measured()
        measured()
        answer(ready=True)
        for _ in sys.stdin:
            answer(seconds=measured())
    answer(peak_bytes=peak_bytes(workload.device))


def make_model(workload: HeadWorkload) -> GPT2LMHeadModel:
    """Returns the model in training mode, of random weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=workload.layers, tie_word_embeddings=workload.tied, **NO_TOKENS, **NO_GPT2_DROPOUT
    )
    with torch.device(workload.device):
        model = GPT2LMHeadModel(config).train()
    if workload.method == "bitfit":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("bias")
    return model


def _micro_batch(
    model: GPT2LMHeadModel, workload: HeadWorkload, resources: ExitStack
) -> Callable[[], object]:
    size = (workload.batch_size, workload.length)
    tokens = torch.randint(1, model.config.vocab_size, size)
    if workload.engine == HUGGING_FACE:
        ids = tokens.to(workload.device)

        def ordinary_step() -> None:
            with autocast(workload.precision, ids.device):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()

        return ordinary_step
    layout = TextLayout(kind=CAUSAL, takes_position_ids=True)
    rows = [TokenizedExample(input_ids=ids, labels=ids) for ids in tokens.tolist()]
    batch = layout.collate(rows).to(torch.device(workload.device))
    if workload.fused:
        fuse_head(model)

    def compute_losses() -> torch.Tensor:
        with autocast(workload.precision, batch.labels.device):
            return per_example_losses(model, batch)

    if workload.engine == ORDINARY:

        def step() -> None:
            with losses_added_up():
                losses = compute_losses()
            (losses.sum() / len(losses)).backward()

        return step
    clipper = PerExampleClipper(model, MAX_GRAD_NORM, engine=workload.engine)
    resources.enter_context(clipper)
    return lambda: clipper.accumulate(compute_losses)


if __name__ == "__main__":
    main()
