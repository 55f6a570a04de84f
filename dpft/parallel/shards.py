"""Shard a model with FSDP2: each rank stores a shard of each parameter; gather them to save it.

Each block is a group of parameters that are gathered for its forward and backward pass and let go
again; one root group holds the rest, and everything that several blocks share or is tied. FSDP
reduces no gradient here: a layer that the clipper records forms none.

While a model is saved, its parameters are replaced by ones that have their shapes and no values,
``Unread``; whoever writes one to a file, by ``contiguous``, gets its values then. So a writer that
goes file by file, as ``save_pretrained`` does, holds one file's tensors and one group's.
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
    """A sharded model whose sums each rank keeps whole, whatever it does in training."""

    unsharded: Mapping[str, nn.Parameter]
    """As of ``ShardedModel``."""

    def new_sums(self) -> None:
        """Return nothing: ``grad`` of what is unsharded holds the sums."""
        return


class ShardedModel:
    """A model whose parameters are shards, but while a part of it runs.

    Guarantees:
        A parameter's shard is a stretch of its rows, in order: that of place k begins at row
        ``k * ceil(rows / shards)``. What bears a parameter's name while its group is gathered is
        the same tensor each time (``unsharded``).
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
        """Cuts a model that lies whole in this process's memory, in place.

        Args:
            model: As ``check_can_be_sharded`` wants it, the same on each rank; what trains requires
                grad.
            grid: Which rank gets which shard.
            ranks: All of the run.
            blocks: What is gathered one at a time; one that shares a parameter with the rest of
                the model stays with the root.
            accumulates_shards: Whether each micro-batch's sum goes to the shards at once, so that
                no rank holds a whole one.
            offload: Whether shards lie in the processor's memory.
            read: Reads the shards of parameters that lie on the meta device.
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
        model._get_fsdp_state()._lazy_init()  # type: ignore[operator]  # else who runs first is root
        self._groups = [m for m in model.modules() if isinstance(m, FSDPModule)]
        for group in self._groups:
            group.set_requires_gradient_sync(False, recurse=False)
            group.set_modules_to_backward_prefetch([group])  # itself: no second block is gathered
            if self.grid.shard_size > 1:
                group.set_custom_all_gather(_Gathering(group, self.rounds))
        # The root's parameters are gathered before a module that may use them runs: the model as a
        # rule; who writes with a seq2seq model runs its encoder by itself.
        inside = {module for block in separate_blocks for module in block.modules()}
        for module in model.modules():
            if module not in inside:
                module.register_forward_pre_hook(self._gather_root, prepend=True)
        self.unsharded = self._unsharded()
        """What bears each parameter's name while its group is gathered, in the model's order."""
        cuts = {n: Cut(tuple(p.shape), grid.shard_size) for n, p in model.named_parameters()}
        self._cuts, self._shard = cuts, grid.place[1]
        self.sharding = sharding(
            grid.shard_size, grid.replicas, accumulates_shards=accumulates_shards, offload=offload
        )
        """What each rank holds, in the words of reports and journals."""
        self.twins = Ranks(grid.place[0], grid.replicas, group=grid.mesh.get_group(REPLICAS))
        """The ranks with the same shard as this one."""
        self.twins.traffic = ranks.traffic
        where = torch.device("cpu") if offload else device
        self._pushed = PushedSums(cuts, self.rounds, where) if accumulates_shards else None

    def new_sums(self) -> PushedSums | None:
        """Return what adds up micro-batches' sums; None where ``unsharded`` holds them whole."""
        return self._pushed

    def group_of(self, name: str) -> dict[str, Tensor]:
        """Return copies, on the CPU, of all parameters that are gathered with the one of a name.

        The other ranks are to be inside ``serving_other_ranks``, or to ask for the same.
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
        """Take the gradients of an ordinary backward pass, where no whole ones are to be kept."""
        if self._pushed is None:
            return
        for name, parameter in self.unsharded.items():
            if parameter.grad is not None:
                self._pushed.add(name, None, parameter.grad)
                parameter.grad = None

    @contextmanager
    def serving_other_ranks(self) -> Iterator[None]:
        """As the method of ``Rounds``; afterwards each rank holds its shards and nothing more."""
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
        for pair in torch.stack(moments).cpu():  # one look at the device
            local_sums += pair
        everyones = torch.stack(self.ranks.all_gather(local_sums)).t().tolist()
        sums, squares = (" ".join(value.hex() for value in column) for column in everyones)
        return {"sum": sums, "sum_of_squares": squares}

    def forget_sums(self) -> None:
        """Drop what a step has added up that is not finished."""
        for parameter in self.unsharded.values():
            parameter.grad = None
        if self._pushed is not None:
            self._pushed.clear()

    def reduce_sums(self, block: int, finish: FinishPieces) -> None:
        """Leave each trainable parameter's shard of the finished sum, as ``StepSums`` does."""
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
        # Plainly: the clipper cuts, in a mode of its own, what reaches a model to few rows.
        with torch._C.DisableTorchFunction():
            self.model.unshard()  # type: ignore[operator]

    def _unsharded(self) -> dict[str, nn.Parameter]:
        """Return each parameter's unsharded tensor, made before anything is gathered.

        Its memory is freed again untouched: a rank that loads holds its shards and nothing more.
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
    """How one group's parameters come together: by a wish in a round."""

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
        """Return this rank's shards of the group's parameters, as FSDP puts them together."""
        state = self._group._get_fsdp_state()
        group = state._fsdp_param_group
        assert group is not None
        # Not ``all_gather_inputs``, which are refused while this rank has the group gathered.
        parts = [parameter._sharded_param_data for parameter in group.fsdp_params]
        if len({part.dtype for part in parts}) > 1:
            parts = [part.view(torch.uint8) for part in parts]
        return torch.cat([part.to(state._device).view(-1) for part in parts])


class Unread(Tensor):
    """A parameter without values, which ``contiguous`` and its like read; a copy each time."""

    _is_param = True  # What torch takes for a parameter.
    read: Callable[[], Tensor]

    def __new__(cls, like: Tensor, read: Callable[[], Tensor]) -> "Unread":
        """Return a stand-in of a parameter's shape and type."""
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
        """Read where values are asked for; whatever else torch does sees no values."""
        if func is Tensor.detach:
            return args[0]
        if func in READING and isinstance(args[0], Unread):
            return func(args[0].read(), *args[1:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def whole_reader(shards: ShardedModel) -> Callable[[Tensor], Tensor]:
    """Return what reads all of a parameter, on the CPU; whatever else it is given it returns.

    One group of parameters is held at a time. The other ranks serve it inside
    ``ranks.failing_together()``.
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
"""What asks a parameter for its values."""


@contextmanager
def gathered(shards: ShardedModel, *, held: Callable[[nn.Parameter], bool]) -> Iterator[None]:
    """Let one rank save a model, which the others serve: inside ``ranks.failing_together()``.

    Args:
        shards: The model; its parameters are as they were afterwards.
        held: Which parameters are to be real in the meantime, in the processor's memory.
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
