"""Sharding of a model with FSDP2: each rank stores a shard of each parameter.

Each block is a group of parameters that are gathered for its forward and backward pass and then
released. One root group holds the rest, including all parameters that several blocks share or that
are tied. FSDP does not reduce gradients here, because layers that the clipper records form no
gradients.

While a model is saved, its parameters are replaced by ``Unread`` tensors, which have their shapes
but no values. Code that writes a parameter to a file calls ``contiguous`` and then receives the
values. A writer that processes one file at a time, such as ``save_pretrained``, therefore holds
only the tensors of one file and of one group.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather

from dpft.parallel.parallel_config import sharding
from dpft.parallel.rank_sums import (
    Cut,
    FinishPieces,
    PushedSums,
    Rounds,
    WholeShardedSums,
    finish_pushed,
    finish_whole,
)
from dpft.parallel.ranks import REPLICAS, SHARDS, RankGrid, Ranks
from dpft.parallel.sharding import ReadRows, blocks_apart, fill, from_rows, local


@dataclass(frozen=True)
class UnshardedSums:
    """A sharded model whose sums each rank keeps whole, even if training keeps sharded sums."""

    unsharded: Mapping[str, nn.Parameter]
    """The unsharded parameters; see ``ShardedModel``."""

    def new_sums(self) -> None:
        """Return None, because ``grad`` of the unsharded parameters holds the sums."""
        return


class ShardedModel:
    """A model whose parameters are sharded, except while a part of the model runs.

    Guarantees:
        A parameter's shard is a range of consecutive rows. Shard k begins at row ``k * ceil(rows /
        shards)``. Whenever a parameter's group is gathered, the parameter's name refers to the same
        tensor object (``unsharded``).
    """

    def __init__(
        self,
        model: nn.Module,
        grid: RankGrid,
        ranks: Ranks,
        *,
        blocks: Sequence[nn.Module],
        accumulates_shards: bool = False,
        offload: bool = False,
        read: ReadRows | None = None,
    ) -> None:
        """Shard a model in place; until now, this process holds the whole model.

        Args:
            model: A model that ``check_can_be_sharded`` accepts, the same on each rank; trainable
                parameters require grad.
            grid: The shard of each rank.
            ranks: All ranks of the run.
            blocks: Modules that are gathered one at a time; a block that shares a parameter with
                the rest of the model stays in the root group.
            accumulates_shards: Whether each micro-batch's sum is sent to the shards immediately, so
                that no rank holds a whole sum.
            offload: Whether shards are stored in CPU memory.
            read: Reads the shards of parameters that are on the meta device.
        """
        self.model, self.grid, self.ranks = model, grid, ranks
        device = grid.device
        self.rounds = Rounds(ranks, grid.mesh.get_group(SHARDS), grid.words, device)
        mesh = grid.mesh if grid.replicas > 1 else grid.mesh[SHARDS]
        policy = CPUOffloadPolicy(pin_memory=True) if offload else OffloadPolicy()
        separate_blocks = blocks_apart(model, blocks)
        for block in separate_blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True, offload_policy=policy)
        fully_shard(model, mesh=mesh, reshard_after_forward=False, offload_policy=policy)
        if read is not None:
            fill(model, read, torch.device("cpu") if offload else device)
        # Without this call, the first module that runs would become the root.
        model._get_fsdp_state()._lazy_init()  # type: ignore[operator]
        self._groups = [m for m in model.modules() if isinstance(m, FSDPModule)]
        for group in self._groups:
            group.set_requires_gradient_sync(False, recurse=False)
            group.set_modules_to_backward_prefetch([group])  # Prefetches no other block.
            if self.grid.shard_size > 1:
                group.set_custom_all_gather(_Gathering(group, self.rounds))
        # Gather the root's parameters before any module that may use them runs. This is usually the
        # model, but generation with a seq2seq model calls its encoder directly.
        inside = {module for block in separate_blocks for module in block.modules()}
        for module in model.modules():
            if module not in inside:
                module.register_forward_pre_hook(self._gather_root, prepend=True)
        self.unsharded = self._unsharded()
        """For each parameter name, in the model's order, the whole tensor that the model uses while
        the parameter's group is gathered."""
        cuts = {n: Cut(tuple(p.shape), grid.shard_size) for n, p in model.named_parameters()}
        self._cuts, self._shard = cuts, grid.place[1]
        self.sharding = sharding(
            grid.shard_size, grid.replicas, accumulates_shards=accumulates_shards, offload=offload
        )
        """Description of what each rank holds, for reports and journals."""
        self.twins = Ranks(grid.place[0], grid.replicas, group=grid.mesh.get_group(REPLICAS))
        """The ranks with the same shard as this rank."""
        self.twins.traffic = ranks.traffic
        where = torch.device("cpu") if offload else device
        self._pushed = PushedSums(cuts, self.rounds, where) if accumulates_shards else None

    def new_sums(self) -> PushedSums | None:
        """Return the object that adds up micro-batch sums; None if ``unsharded`` holds the sums."""
        return self._pushed

    def group_of(self, name: str) -> dict[str, Tensor]:
        """Return copies, on the CPU, of all parameters that are gathered with the named parameter.

        The other ranks must be inside ``serving_other_ranks``, or call this method for the same
        group.
        """
        (group,) = [group for group, names in self._members.items() if name in names]
        group.unshard()
        values = {
            member: self.unsharded[member].detach().to("cpu", copy=True)
            for member in self._members[group]
        }
        group.reshard()
        return values

    def take_gradients(self) -> None:
        """Move the gradients of an ordinary backward pass to the shards' sums, if there are any."""
        if self._pushed is None:
            return
        for name, parameter in self.unsharded.items():
            if parameter.grad is not None:
                self._pushed.add(name, None, parameter.grad)
                parameter.grad = None

    @contextmanager
    def serving_other_ranks(self) -> Iterator[None]:
        """See ``Rounds.serving_other_ranks``; afterwards each rank holds only its shards."""
        try:
            with self.rounds.serving_other_ranks():
                yield
        finally:
            for group in self._groups:
                group.reshard()

    def fingerprint(self, gradients: Sequence[Tensor]) -> dict[str, str]:
        """Return the sum and the sum of squares of each rank's shards, bit for bit in hex."""
        moments = []
        for gradient in gradients:
            values = gradient.detach().double()
            moments.append(torch.stack((values.sum(), values.square().sum())))
        local_sums = torch.zeros(2, dtype=torch.float64)
        for pair in torch.stack(moments).cpu():  # one device synchronization
            local_sums += pair
        everyones = torch.stack(self.ranks.all_gather(local_sums)).t().tolist()
        sums, squares = (" ".join(value.hex() for value in column) for column in everyones)
        return {"sum": sums, "sum_of_squares": squares}

    def forget_sums(self) -> None:
        """Drop the unfinished sums of a step."""
        for parameter in self.unsharded.values():
            parameter.grad = None
        if self._pushed is not None:
            self._pushed.clear()

    def reduce_sums(self, block: int, finish: FinishPieces) -> None:
        """Leave the shard of the finished sum in ``grad`` of each trainable parameter.

        See ``StepSums``.
        """
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        numbers = {name: place for place, name in enumerate(self.unsharded)}
        cuts = {name: self._cuts[name] for name in parameters}
        if self._pushed is not None:
            finished = finish_pushed(
                self._pushed, cuts, numbers, block, finish, twins=self.twins, shard=self._shard
            )
        else:
            finished = finish_whole(
                WholeShardedSums(self.unsharded, cuts),
                cuts,
                numbers,
                block,
                finish,
                ranks=self.ranks,
                twins=self.twins,
                shard=self._shard,
            )
        for name, shard in finished:
            local_shard = local(parameters[name].data)
            parameters[name].grad = from_rows(
                parameters[name].data, shard.to(local_shard).view_as(local_shard)
            )

    def _gather_root(self, *_: object) -> None:
        # Disable torch functions: a mode of the clipper cuts the model's inputs to a few rows.
        with torch._C.DisableTorchFunction():
            self.model.unshard()  # type: ignore[operator]

    def _unsharded(self) -> dict[str, nn.Parameter]:
        """Return the unsharded tensor of each parameter, created before anything is gathered.

        The memory of the tensors is freed again before it is used, so that a loading rank holds
        only its shards.
        """
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        unsharded: dict[str, nn.Parameter] = {}
        self._members: dict[FSDPModule, list[str]] = {}
        for group in self._groups:
            state = group._get_fsdp_state()._fsdp_param_group
            members = [] if state is None else state.fsdp_params
            for parameter in members:
                shard = parameter._sharded_param_data
                parameter.init_all_gather_outputs(
                    [shard.numel()], [shard.dtype], self.grid.shard_size, self.grid.device
                )
                parameter.init_unsharded_param()
                parameter.free_unsharded_param()
                unsharded[names[parameter.sharded_param]] = parameter._unsharded_param
            self._members[group] = [names[p.sharded_param] for p in members]
        return {name: unsharded[name] for name in names.values()}


class _Gathering(AllGather):
    """Custom all-gather of one group's parameters, which makes a request in a round."""

    def __init__(self, group: FSDPModule, rounds: Rounds) -> None:
        self._group, self._rounds = group, rounds
        self._number = rounds.offer(self._own)

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        with torch._C.DisableTorchFunction():
            self._rounds.gather(self._number, output_tensor, input_tensor)

    def _own(self) -> Tensor:
        """Return this rank's shards of the group's parameters, concatenated like FSDP does."""
        state = self._group._get_fsdp_state()
        group = state._fsdp_param_group
        assert group is not None
        # Do not use ``all_gather_inputs``: it fails while this rank has the group gathered.
        parts = [parameter._sharded_param_data for parameter in group.fsdp_params]
        if len({part.dtype for part in parts}) > 1:
            parts = [part.view(torch.uint8) for part in parts]
        return torch.cat([part.to(state._device).view(-1) for part in parts])


class Unread(Tensor):
    """A stand-in for a parameter, without values.

    ``contiguous`` and similar methods read the values and return a new copy each time.
    """

    _is_param = True  # Makes torch treat the tensor as a parameter.
    read: Callable[[], Tensor]

    def __new__(cls, like: Tensor, read: Callable[[], Tensor]) -> "Unread":
        """Return a stand-in with the shape and dtype of a parameter."""
        empty = torch.empty(like.shape, dtype=like.dtype, device="meta")
        stand_in = cast(Unread, empty.as_subclass(cls).requires_grad_(like.requires_grad))
        stand_in.read = read
        return stand_in

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Read the values if a function needs them; all other functions of torch see no values."""
        if func is Tensor.detach:
            return args[0]
        if func in READING and isinstance(args[0], Unread):
            return func(args[0].read(), *args[1:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def whole_reader(shards: ShardedModel) -> Callable[[Tensor], Tensor]:
    """Return a function that reads a whole parameter on the CPU.

    The function returns all other tensors unchanged. Only one group of parameters is held at a
    time. The other ranks serve the reading rank inside ``ranks.failing_together()``.
    """
    names: dict[Tensor, str] = {p: name for name, p in shards.model.named_parameters()}
    group: dict[str, Tensor] = {}

    def read(parameter: Tensor) -> Tensor:
        name = names.get(parameter)
        if name is None:
            return parameter
        if name not in group:
            group.clear()
            group.update(shards.group_of(name))
        return group[name]

    return read


READING = frozenset({Tensor.contiguous, Tensor.clone, Tensor.cpu, Tensor.to})
"""Functions that read the values of a parameter."""


@contextmanager
def gathered(shards: ShardedModel, *, held: Callable[[nn.Parameter], bool]) -> Iterator[None]:
    """Let one rank save a model, which the others serve inside ``ranks.failing_together()``.

    Args:
        shards: The model; its parameters are restored afterwards.
        held: Selects the parameters that have values inside the block, in CPU memory.
    """
    places = [
        (module, attribute, parameter)
        for module in shards.model.modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None
    ]
    names = {parameter: name for name, parameter in shards.model.named_parameters()}
    group: dict[str, Tensor] = {}

    def values(name: str) -> Tensor:
        if name not in group:
            group.clear()
            group.update(shards.group_of(name))
            replace()
        return group[name]

    stand_ins: dict[Tensor, Tensor] = {}

    def replace() -> None:
        for module, attribute, parameter in places:
            if parameter in stand_ins:
                module._parameters[attribute] = stand_ins[parameter]  # type: ignore[assignment]

    for parameter, name in names.items():
        stand_ins[parameter] = (
            nn.Parameter(values(name).clone(), requires_grad=parameter.requires_grad)
            if held(parameter)
            else Unread(parameter, lambda name=name: values(name))  # type: ignore[misc]
        )
    replace()
    try:
        yield
    finally:
        for module, attribute, parameter in places:
            module._parameters[attribute] = parameter
