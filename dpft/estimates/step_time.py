"""Estimate of training time, from a model's shapes and a probe of the machine.

A token costs 2 operations forward for each weight it is multiplied with, 2 backward where a
gradient goes through, and 2 for the gradient of a weight that trains; where gradients are clipped,
2 more for their norms. To these come the calls of the layers, what is done to each number of their
outputs and, once a step, noise and optimizer. ``dpft.runs.planned_run`` times a model of random
weights instead.

The probe takes about half a second: it multiplies matrices as wide as the model, takes a function
of many numbers one by one, draws noise, and takes a clipped gradient of layers that are too narrow
to cost anything but their calls.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from dpft.head_losses import LossHead
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.records.plans import EstimatedTime
from dpft.training.training_config import autocast

SECONDS = 0.1
"""Of each of the four parts, at least one repetition."""
LAYERS = 8
"""Of the narrow stack, each a dense layer and a norm."""
MOST_TOKENS = 2048
"""Rows of the probe's matrix: beyond them the rate no longer rises."""
MOST_WIDTH = 4096
NUMBERS = 2**22
"""That a function is taken of: more than a processor's nearer caches hold."""
NOISE_NUMBERS = 2**18


@dataclass(frozen=True, kw_only=True)
class MachineSpeed:
    """The outcome of the probe."""

    operations_per_second: float
    """Multiplications and additions of a product of matrices."""
    values_per_second: float
    """Of a function of single numbers, such as an activation's."""
    noise_per_second: float
    """Numbers that get noise; infinite where none is added."""
    seconds_per_layer: float
    """Calls of one layer with parameters, forward, backward and clipped, whatever its size."""


def probe_machine(
    device: torch.device,
    *,
    width: int,
    tokens: int,
    options: ClippingOptions | None,
    precision: str = "fp32",
) -> MachineSpeed:
    """Returns how fast the machine is now, with all else that it is doing.

    Args:
        device: What training runs on.
        width: Of the model's layers.
        tokens: In a micro-batch.
        options: What training clips with; None probes ordinary gradients, without noise.
        precision: As in training.
    """
    rows, inner = min(tokens, MOST_TOKENS), min(width, MOST_WIDTH)
    left = torch.randn(rows, inner, device=device)
    right = torch.randn(inner, 4 * inner, device=device)

    def multiply() -> None:
        with autocast(precision, device):
            torch.matmul(left, right)

    numbers = torch.randn(NUMBERS, device=device)
    return MachineSpeed(
        operations_per_second=8 * rows * inner**2 / _seconds_of(multiply),
        values_per_second=NUMBERS / _seconds_of(lambda: nn.functional.gelu(numbers)),
        noise_per_second=float("inf") if options is None else _noise_rate(device),
        seconds_per_layer=_seconds_per_layer(device, options),
    )


def _noise_rate(device: torch.device) -> float:
    parameter = nn.Parameter(torch.zeros(NOISE_NUMBERS, device=device))
    parameter.grad = torch.zeros_like(parameter)
    noise = make_randomness(device).noise
    return parameter.numel() / _seconds_of(lambda: add_noise([parameter], 1.0, noise))


def _seconds_per_layer(device: torch.device, options: ClippingOptions | None) -> float:
    """Returns the seconds of a layer's calls, from a stack of narrow ones."""
    # A norm layer's outputs add up to 0: were it the last, losses would be rounding alone.
    layers = [module for _ in range(LAYERS) for module in (nn.LayerNorm(8), nn.Linear(8, 8))]
    stack = nn.Sequential(*layers).to(device)
    given = torch.randn(4, 8, 8, device=device)

    def losses() -> torch.Tensor:
        sums: torch.Tensor = stack(given).sum(dim=(1, 2))
        return sums

    if options is None:
        return _seconds_of(lambda: losses().sum().backward()) / len(layers)
    # Patterns of groups are of the model's own names.
    with replace(options, groups=None).resolved(stack).make(stack) as clipper:
        return _seconds_of(lambda: clipper.accumulate(losses)) / len(layers)


def _seconds_of(work: Callable[[], object]) -> float:
    """Returns the mean seconds of some runs, after a first that warms up."""
    work()
    began, runs = time.monotonic(), 0
    while True:
        work()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        runs += 1
        elapsed = time.monotonic() - began
        if elapsed > SECONDS:
            return elapsed / runs


FORWARD, THROUGH, GRADIENT, NORM = 2, 2, 2, 2
"""Operations for each weight and token."""
FUNCTIONS = 10
"""Of each number that a layer takes or gives, forward and backward (activation, dropout, norm,
residual), and of each that is trained (the optimizer's moments and root)."""
PROOF = 5
"""Micro-batches that the proof of the clipper on the first one takes."""
STEP_SECONDS = 0.01
"""Ledger, journal and diagnostics of a step, each on disk before the next."""
NUMBER_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ModelShapes:
    """Shapes from which a step's cost follows; all public.

    Attributes:
        layers: Modules with parameters of their own.
        forward_weights: Numbers of the matrices below all that trains.
        frozen_weights: Numbers of the matrices that do not train, and that gradients go through.
        trained_weights: Numbers of the matrices that train.
        outputs: Numbers that a token leaves in memory, of all layers together.
        logits: Of them, those of the largest layer's output, such as a vocabulary's.
        trainable: Parameters that train.
        total: All parameters.
        fused_vocabulary: Tokens of a fused head, whose logits are never whole; 0 for none.
    """

    layers: int
    forward_weights: int
    frozen_weights: int
    trained_weights: int
    outputs: int
    logits: int
    trainable: int
    total: int
    fused_vocabulary: int = 0


HOW = "a probe of this machine and the model's shapes; evaluation and loading left out"


def model_shapes(
    model: nn.Module, *, enters_early: bool = False, positions: Mapping[str, float] | None = None
) -> ModelShapes:
    """Returns the shapes of a prepared model, which may be without weights (``meta``).

    Args:
        model: After ``Method.prepare``.
        enters_early: What trains stands at the model's input, whatever its place among modules.
        positions: How often a record uses each layer, by its name; then numbers are of a record,
            not of a token. None: a record uses each once for a token.
    """
    forward = frozen = trained = outputs = logits = layers = fused = 0
    reached = enters_early
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        often = 1.0 if positions is None else positions.get(name, 0.0)
        layers += bool(own)
        reached = reached or any(parameter.requires_grad for parameter in own)
        if isinstance(module, nn.Embedding):
            continue
        for matrix in (parameter for parameter in own if parameter.dim() >= 2):
            if isinstance(module, LossHead):
                fused, outputs = len(matrix), outputs + 2 * matrix.shape[1]
            else:
                outputs += round(often * sum(matrix.shape[:2]))
                logits = max(logits, *(round(often * size) for size in matrix.shape[:2]))
            used = round(often * matrix.numel())
            if matrix.requires_grad:
                trained += used
            elif reached:
                frozen += used
            else:
                forward += used
    return ModelShapes(
        layers=layers,
        forward_weights=forward,
        frozen_weights=frozen,
        trained_weights=trained,
        outputs=outputs,
        logits=logits,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        total=sum(p.numel() for p in model.parameters()),
        fused_vocabulary=fused,
    )


def estimate(
    shapes: ModelShapes,
    speed: MachineSpeed,
    *,
    private: bool,
    typical_length: int,
    micro_batch_size: int,
    expected_batch_size: int,
    steps: int,
    peak_memory_bytes: int,
) -> EstimatedTime:
    """Returns the time that the steps of a run would take."""
    size = min(micro_batch_size, expected_batch_size)
    tokens = typical_length * expected_batch_size
    micro_batches = -(-expected_batch_size // size)
    gradients = (
        tokens * operations_per_token(shapes, private=private) / speed.operations_per_second
        + tokens * shapes.outputs * FUNCTIONS / speed.values_per_second
        + micro_batches * shapes.layers * speed.seconds_per_layer
    )
    update = shapes.trainable * (1 / speed.noise_per_second + FUNCTIONS / speed.values_per_second)
    seconds = STEP_SECONDS + gradients + update
    proof = PROOF * gradients / micro_batches if private else 0.0
    return EstimatedTime(
        seconds_per_step=seconds,
        seconds_total=seconds * steps + proof,
        peak_memory_bytes=peak_memory_bytes,
        typical_length=typical_length,
        how=HOW,
    )


def operations_per_token(shapes: ModelShapes, *, private: bool) -> int:
    """Returns multiplications and additions of a token, forward, backward and clipped."""
    through = FORWARD + THROUGH
    return (
        FORWARD * shapes.forward_weights
        + through * shapes.frozen_weights
        + (through + GRADIENT + (NORM if private else 0)) * shapes.trained_weights
    )
