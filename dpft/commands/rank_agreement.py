"""Checks that all processes of a run have the same settings, records, plan and weights.

Each process composes its configuration, reads the records and loads the model by itself. If one
process formed different micro-batches, a record could be counted twice or not at all. All inputs
are therefore compared first, and every process receives the keys, plan and weights of rank 0.
"""

import hashlib
import hmac
import json
import secrets as entropy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

import dpft
from dpft.commands.new_run import Secrets
from dpft.commands.run_plan import RunPlan
from dpft.config.keys import leaves
from dpft.config.load import from_values, plain
from dpft.config.schema import EvaluateConfig, GenerateConfig, TrainConfig
from dpft.data.batches import Layout
from dpft.data.encoding import fingerprint
from dpft.data.training_records import KEY_BYTES
from dpft.devices import device_name
from dpft.errors import InputError
from dpft.models.checkpoint_rows import RowsOfModel
from dpft.models.losses import per_example_losses
from dpft.parallel.ranks import Ranks
from dpft.privacy.plan import PrivacyPlan
from dpft.strict_model import json_text, parse_text
from dpft.tasks.base import Record
from dpft.training.loop import TrainingSet
from dpft.training.synthetic_batches import SHORT_LENGTH, synthetic_batch
from dpft.training.training_config import autocast
from dpft.training.training_state import model_state

ROWS = 3


def processor(device: torch.device) -> tuple[str, ...]:
    """Return the device and CPU features that a process uses, and its number of threads."""
    capability = torch.backends.cpu.get_cpu_capability()
    return device.type, device_name(device), capability, str(torch.get_num_threads())


def bits_of_a_gradient(
    model: nn.Module,
    layout: Layout,
    *,
    max_length: int,
    precision: str,
    unsharded: Mapping[str, nn.Parameter] | None = None,
) -> str:
    """Return a hash of losses and gradients of synthetic records, in evaluation mode.

    The gradients and the mode of the model are not changed. For a sharded model, ``unsharded`` maps
    each parameter name to the tensor that replaces the parameter while the model runs.
    """
    was_training = model.training
    model.eval()
    digest = hashlib.sha256()
    now = dict(model.named_parameters()) if unsharded is None else unsharded
    trainable = [now[name] for name, p in model.named_parameters() if p.requires_grad]
    for longest in sorted({min(SHORT_LENGTH, max_length), max_length}):
        batch = synthetic_batch(model, ROWS, longest, layout=layout)
        with autocast(precision, trainable[0].device):
            losses = per_example_losses(model, batch)
        gradients = torch.autograd.grad(losses.sum(), trainable, allow_unused=True)
        for tensor in (
            losses.detach(),
            *(gradient for gradient in gradients if gradient is not None),
        ):
            values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(values.numpy().data)
    model.train(was_training)
    return digest.hexdigest()


LIBRARIES = ("torch", "transformers", "tokenizers", "peft", "numpy")
"""Libraries whose versions affect the results of a process."""


def check_alike(config: TrainConfig | EvaluateConfig | GenerateConfig, ranks: Ranks) -> None:
    """Reject processes whose code or configuration differs from rank 0."""
    if ranks.size == 1:
        return
    settings = {**_versions(), **leaves(plain(config))}
    everyones = [json.loads(answer) for answer in ranks.everyones(json.dumps(settings).encode())]
    with ranks.failing_together():
        for rank, other in enumerate(everyones):
            different = [
                key for key in {**settings, **other} if settings.get(key) != other.get(key)
            ]
            if different and ranks.is_rank_0:
                raise InputError(
                    "All processes of a run must have the same configuration and code, but"
                    f" {different[0]} on rank {rank} differs from rank 0. Start all processes with"
                    " the same arguments, from the same installation.",
                    key=different[0],
                    value=other.get(different[0]),
                )


def share_settings(
    config: TrainConfig | None, folder: Path, *, resumes: bool, ranks: Ranks
) -> tuple[TrainConfig, Path, bool]:
    """Return rank 0's configuration and folder, and whether its run is resumed.

    Only rank 0 reads the arguments. The other ranks write to no file of the folder except their
    shards of a checkpoint.
    """
    if ranks.size == 1:
        assert config is not None
        return config, folder, resumes
    content = b""
    if config is not None:
        content = json.dumps([plain(config), str(folder.absolute()), resumes]).encode()
    values, path, resumes = json.loads(ranks.broadcast(content))
    if config is not None:
        return config, folder, resumes
    return from_values(values, TrainConfig), Path(path), resumes


def share_secrets(secrets: Secrets | None, ranks: Ranks) -> Secrets:
    """Return rank 0's keys, which decide which units are held out and which records are skipped."""
    if ranks.size == 1:
        assert secrets is not None
        return secrets
    keys = (
        []
        if secrets is None
        else [secrets.unit_key, secrets.audit_key, secrets.held_out_key or b""]
    )
    heard = ranks.broadcast(b"".join(key.ljust(KEY_BYTES) for key in keys[:2]) + b"".join(keys[2:]))
    unit, audit = heard[:KEY_BYTES], heard[KEY_BYTES : 2 * KEY_BYTES]
    held_out = heard[2 * KEY_BYTES :] or None
    return Secrets(unit_key=unit, audit_key=audit, held_out_key=held_out)


def share_plan(plan: RunPlan, ranks: Ranks) -> RunPlan:
    """Return a plan with the noise of rank 0; another machine may round the noise differently."""
    if ranks.size == 1:
        return plan
    content = ranks.broadcast(b"" if plan.privacy is None else json_text(plan.privacy).encode())
    return replace(plan, privacy=parse_text(content.decode(), PrivacyPlan) if content else None)


def check_same_inputs(
    config: TrainConfig,
    plan: RunPlan,
    model: nn.Module,
    training_set: TrainingSet,
    scored: Mapping[str, Sequence[Record]],
    rows: RowsOfModel | None,
    ranks: Ranks,
) -> None:
    """Reject processes whose records, micro-batches or model differ.

    Every process then receives the weights of rank 0. If the model will be sharded, ``rows`` reads
    the weights that are not loaded yet.
    """
    if ranks.size == 1:
        return
    key = ranks.broadcast(entropy.token_bytes(KEY_BYTES))
    cut = (
        training_set.micro_batch_size,
        training_set.micro_batch_tokens,
        training_set.layout,
        config.train.precision,
        training_set.device.type,
        {part: len(records) for part, records in scored.items()},
        plan.steps,
    )
    state = model_state(model)
    shapes = {name: [list(t.shape), t.is_meta] for name, t in state.items()}
    sampled = "" if rows is None else rows.sampled(model, Random(key))
    hashes = {
        "data": fingerprint(training_set.examples, training_set.units, key),
        "train.micro_batch_size, and records to score": _keyed(key, repr(cut)),
        "model": _keyed(key, json.dumps([sampled, shapes], sort_keys=True)),
        "processor, device and train.num_threads": repr(processor(training_set.device)),
    }
    _refuse_different(hashes, ranks)
    ranks.broadcast_tensors([t for t in state.values() if not t.is_meta])


def check_same_model(model: nn.Module, records: object, ranks: Ranks) -> None:
    """Reject processes whose records or model differ from rank 0."""
    if ranks.size == 1:
        return
    key = ranks.broadcast(entropy.token_bytes(KEY_BYTES))
    sums = {name: _bit_sum(tensor) for name, tensor in model_state(model).items()}
    hashes = {"data": _keyed(key, repr(records)), "model": _keyed(key, json.dumps(sums))}
    _refuse_different(hashes, ranks)


def _refuse_different(hashes: Mapping[str, str], ranks: Ranks) -> None:
    """Reject the processes if the keyed hashes of any process differ from rank 0."""
    everyones = [json.loads(answer) for answer in ranks.everyones(json.dumps(hashes).encode())]
    with ranks.failing_together():
        for other in everyones:
            different = [name for name in other if other[name] != everyones[0][name]]
            if different and ranks.is_rank_0:
                raise InputError(
                    f"All processes of a run must have the same {different[0]}, but at least two"
                    f" differ. Copy the same {different[0]} to every machine.",
                    key=different[0],
                )


def _bit_sum(tensor: Tensor) -> list[int]:
    """Return a tensor's size and the exact sum of its bits read as integers, which is fast."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().contiguous().view(integers[tensor.element_size()])
    return [tensor.numel(), int(bits.sum(dtype=torch.int64))]


def check_arithmetic(
    config: TrainConfig,
    model: nn.Module,
    layout: Layout,
    ranks: Ranks,
    unsharded: Mapping[str, nn.Parameter] | None = None,
) -> None:
    """Reject processes that round differently; ``unsharded`` is as in ``bits_of_a_gradient``."""
    with ranks.failing_together():
        bits = bits_of_a_gradient(
            model,
            layout,
            max_length=config.task.longest,
            precision=config.train.precision,
            unsharded=unsharded,
        )
    bits_of_ranks = ranks.everyones(bits.encode())
    with ranks.failing_together():
        if ranks.is_rank_0 and len(set(bits_of_ranks)) > 1:
            raise InputError(
                "All processes of a run must compute the same bits, but their gradients of the same"
                " synthetic records differ. Use machines of one kind, with the same libraries and"
                " environment variables.",
                key=None,
            )


def _keyed(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _versions() -> dict[str, str]:
    """Return the versions of dpft and of the libraries it uses, and a hash of its code."""
    digest = hashlib.sha256()
    for path in sorted(Path(dpft.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    versions = {name: version(name) for name in LIBRARIES}
    return {"dpft version": dpft.__version__, "dpft code": digest.hexdigest(), **versions}
