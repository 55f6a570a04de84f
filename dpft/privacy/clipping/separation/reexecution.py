"""Re-execution: a model run again without a trace, its nested arguments opened down to tensors.

Checks run a model several times on the same rows and compare what it gives. So that nobody sees
these runs, the random state, buffers and training modes are snapshots that are put back; and so
that they can be compared, dropout passes everything and random numbers become constants, while the
modules stay in the mode they are in (``in_deterministic_mode``).

A check of separation compares tensors, so it must see all of them. ``torch.utils._pytree`` opens
what was registered there and takes a dataclass or a ``SimpleNamespace`` for one leaf; a registered
class may hide what it likes. Here everything is opened by what it is made of: items of dicts, lists
and tuples and of their subclasses, and the attributes of any object whose class was written in
Python, be they in ``__dict__`` or in ``__slots__``. What remains is *plain*, a number or a name, or
it is *sealed*: a closure, a generator, a numpy array or a module may hold rows that nobody sees.

>>> import torch
>>> from types import SimpleNamespace
>>> value = {"out": SimpleNamespace(logits=torch.zeros(2, 3)), "scale": 0.5, "rows": iter([1, 2])}
>>> {place: tuple(tensor.shape) for place, tensor in named_tensors(value).items()}
{"['out'].logits": (2, 3)}
>>> sealed_types(value)
{"['rows']": 'list_iterator'}
>>> map_tensors(value, lambda place, tensor: tensor[:1])["out"].logits.shape
torch.Size([1, 3])
"""

import logging
import re
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from dpft.devices import (
    add_in_one_order,
    moved,
    order_of_addition_kept,
    random_state,
    random_states_kept,
    set_random_state,
)


@dataclass(frozen=True)
class RandomState:
    """The state of torch's generators, of the CPU and of one device."""

    device: torch.device
    cpu: Tensor
    own: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> Self:
        """Returns the state that the generators are in now."""
        return cls(device, torch.get_rng_state(), random_state(device))

    def restore(self) -> None:
        """Puts the state back, so that what was drawn after ``now`` is drawn again."""
        torch.set_rng_state(self.cpu)
        if self.own is not None:
            set_random_state(self.device, self.own)

    @property
    def was_left(self) -> bool:
        """Whether anything was drawn since."""
        now = type(self).now(self.device)
        same = torch.equal(now.cpu, self.cpu)
        if self.own is not None and now.own is not None:
            same = same and torch.equal(now.own, self.own)
        return not same


class BufferSnapshot:
    """A model's buffers as they are now: which they are, what they hold, and what changed."""

    def __init__(self, root: nn.Module) -> None:
        self._kept = [
            (module, name, buffer, buffer.clone())
            for module in root.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def restore(self) -> None:
        """Puts back the buffers that were replaced, and what they held."""
        with torch.no_grad():
            for module, name, buffer, before in self._kept:
                module._buffers[name] = buffer
                buffer.copy_(before)

    def changed(self) -> dict[tuple[nn.Module, str], Tensor]:
        """Returns copies of the buffers that hold something else since."""
        return {
            (module, name): now.clone()
            for module, name, _, before in self._kept
            if (now := module._buffers.get(name)) is not None and not torch.equal(now, before)
        }


class ModelSnapshot:
    """Buffers and training modes of a model, to be put back after a run that nobody is to see."""

    def __init__(self, root: nn.Module) -> None:
        self._buffers = BufferSnapshot(root)
        self._modes = [(module, module.training) for module in root.modules()]

    def restore(self) -> None:
        """Puts them back."""
        self._buffers.restore()
        for module, mode in self._modes:
            module.training = mode


@contextmanager
def random_state_restored_on_failure(device: torch.device) -> Iterator[None]:
    """Puts the random state back if the body raises: a second attempt draws the same numbers."""
    state = RandomState.now(device)
    try:
        yield
    except BaseException:
        state.restore()
        raise


@contextmanager
def state_preserved(root: nn.Module) -> Iterator[None]:
    """Puts random state and the model's buffers back at the end: nobody is to see the runs."""
    devices = {parameter.device for parameter in root.parameters()}
    buffers = BufferSnapshot(root)
    with random_states_kept(devices):
        try:
            yield
        finally:
            buffers.restore()


@contextmanager
def one_order_of_addition(device: torch.device) -> Iterator[None]:
    """Makes an accelerator's kernels add in one order, so that two runs give the same bits.

    Attention's backward kernels add in any order as they come, and half precision shows it: a
    gradient then differs from itself by more than another example's share that is looked for. On
    a CPU nothing changes. A layer whose kernel knows no one order raises an error that
    ``knows_no_order`` tells from others.
    """
    with order_of_addition_kept():
        add_in_one_order(device, strictly=True)
        yield


def knows_no_order(error: BaseException) -> bool:
    """Whether an error says that a kernel adds in any order alone."""
    return isinstance(error, RuntimeError) and "deterministic" in str(error)


@contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Puts every module into evaluation mode for a while.

    Recurrent layers only drop nothing: cuDNN runs them back in training mode alone.
    """
    modes = [(module, module.training) for module in root.modules()]
    recurrent = [(m, m.dropout) for m in root.modules() if isinstance(m, nn.RNNBase)]
    root.eval()
    for layer, _ in recurrent:
        layer.training, layer.dropout = True, 0.0
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, rate in recurrent:
            layer.dropout = rate


_DROPOUTS = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout,
        torch.dropout_,
    }
)
_WITH_A_RATE = {
    F.scaled_dot_product_attention: 4,
    F.multi_head_attention_forward: 10,
}
"""Functions that drop inside, and the place of their rate among the positional arguments."""
_CONSTANTS: Mapping[Callable[..., Any], Callable[[Tensor], Tensor]] = {
    torch.rand: lambda drawn: drawn.fill_(0.5),
    torch.rand_like: lambda drawn: drawn.fill_(0.5),
    torch.randn: lambda drawn: drawn.fill_(0.25),
    torch.randn_like: lambda drawn: drawn.fill_(0.25),
    torch.randperm: lambda drawn: drawn.sort(descending=True).values,
    torch.bernoulli: lambda drawn: drawn.fill_(1.0),
    Tensor.bernoulli_: lambda drawn: drawn.fill_(1.0),
    Tensor.uniform_: lambda drawn: drawn.fill_(0.5),
    Tensor.normal_: lambda drawn: drawn.fill_(0.25),
}
"""What draws, and what it gives instead, the same for every row and any number of rows."""
_RANDOM = frozenset({*_DROPOUTS, *_WITH_A_RATE, *_CONSTANTS})
"""What deterministic mode runs otherwise: of a thousand functions that it sees, one or two."""

_DRAWN = frozenset(
    {
        *(func for func in _CONSTANTS if func is not torch.randperm),
        *(torch.randint, torch.randint_like, torch.normal, torch.multinomial, torch.poisson),
        *(Tensor.multinomial, Tensor.bernoulli, Tensor.random_, Tensor.exponential_),
        *(Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_),
    }
)
"""What draws; a permutation of rows becomes a constant, for of fewer rows it is another."""


class Draws:
    """What a function of the caller's draws: kept in a run on all rows, given again for some."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._next: int | None = None

    def again(self) -> None:
        """Gives from now on what was kept, from the first."""
        self._next = 0

    def draw(
        self,
        func: Callable[..., Any],
        args: Any,
        options: Mapping[str, Any],
        cut: Mapping[int, Tensor],
    ) -> Any:
        """Returns what a function gives, whose draw is kept or was kept.

        Raises:
            ValueError: What was kept has another shape.
        """
        drawn = func(*args, **options)
        if func not in _DRAWN or options.get("generator") is not None:
            return drawn
        if self._next is None:
            self._kept.append(drawn.detach().clone())
            return drawn
        kept = self._kept[self._next] if self._next < len(self._kept) else drawn.new_empty(0)
        self._next += 1
        if kept.shape != drawn.shape and kept.dim() and len(kept) in cut:
            kept = kept[cut[len(kept)].to(kept.device)]
        if kept.shape != drawn.shape:
            raise ValueError("what is drawn for fewer rows is of another shape")
        with torch.no_grad():
            return drawn.copy_(kept)


def in_deterministic_mode() -> bool:
    """Whether nothing is drawn now: ``vmap`` calls a rule outside of what a mode sees."""
    return any(isinstance(mode, DeterministicMode) for mode in _get_current_function_mode_stack())


class DeterministicMode(TorchFunctionMode):
    """Lets dropout pass everything and gives constants for what is drawn; modules stay as they are.

    Not all that draws is known here: what is left shows in the state of the generators.
    """

    def __init__(self, *, noise: bool = True) -> None:
        """Prepares.

        Args:
            noise: Whether numbers that are drawn become constants; a caller may draw its whole
                batch, of which constants would say nothing.
        """
        super().__init__()
        self._noise = noise

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function without its randomness."""
        if func not in _RANDOM:
            return func(*args, **(kwargs or {}))
        options = dict(kwargs or {})
        if func in _DROPOUTS:
            inputs: Tensor = args[0] if args else options["input"]
            rate = args[1] if len(args) > 1 else options.get("p", 0.5)
            # One that drops nothing answers with its input, and takes no memory.
            return inputs.clone() if rate else func(*args, **options)
        known = func in _CONSTANTS and options.get("generator") is None
        if known and (self._noise or func is torch.randperm):
            # Drawn first, so that shape, dtype and refusals are those of the function.
            with torch.no_grad(), torch.random.fork_rng(devices=()):
                return _CONSTANTS[func](func(*args, **options))
        place = _WITH_A_RATE.get(func)
        if place is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in options:
                options["dropout_p"] = 0.0
        return func(*args, **options)


_NUMBERS = (int, float, complex, str, bytes)
_PLAIN = frozenset(
    {
        *(type(None), type(...), type(NotImplemented), bool, range, object, *_NUMBERS),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
        *(ModuleType, logging.Logger, re.Pattern, type(threading.Lock()), type(threading.RLock())),
    }
)
"""Types whose values hold no tensor; modules of code and loggers are no call's own."""
_COLLECTIONS = (dict, list, tuple, set, frozenset, deque, MappingProxyType)
_NATIVE = frozenset({object, SimpleNamespace, OrderedDict, defaultdict, *_COLLECTIONS})
"""Types written in C that are opened, and whose subclasses are."""
_HEAP_TYPE, _MANAGED_DICT, _POINTER = 1 << 9, 1 << 4, 8
"""Of a class: CPython's flags of classes made at run time and of a dict outside of the object's
own memory; and the bytes of a slot."""
_UNFINISHED = object()
Change = Callable[[str, Tensor], Any]
"""(place, tensor) -> what takes the tensor's place."""


class HoldsItself(ValueError):
    """A tuple holds itself, so that it cannot be built with other tensors."""


@dataclass(frozen=True)
class _Sealed:
    """Stands for what a collection keeps elsewhere than in its items: a key, a factory."""

    kind: str


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """Returns tensors, plain values and sealed ones of a nested value, with their places.

    A container that comes twice is opened once, so that cycles end.
    """
    found: list[tuple[str, Any]] = []
    _collect(value, "", found, set())
    return found


def named_tensors(value: Any) -> dict[str, Tensor]:
    """Returns the tensors of nested arguments or results by their places."""
    return {place: leaf for place, leaf in leaves_of(value) if isinstance(leaf, Tensor)}


def sealed_types(value: Any) -> dict[str, str]:
    """Returns the names of the types of what cannot be opened and may hold tensors, by place."""
    found = {}
    for place, leaf in leaves_of(value):
        if isinstance(leaf, _Sealed):
            found[place] = leaf.kind
        elif isinstance(leaf, Tensor):
            if not all(_is_plain(each) for each in vars(leaf).values()):
                found[place] = f"{type(leaf).__name__} with attributes"
        elif not _is_plain(leaf):
            found[place] = type(leaf).__name__
    return found


def map_tensors(value: Any, change: Change) -> Any:
    """Returns a nested value with other tensors; the value itself stays as it is.

    Collections are new ones, since a forward may write into them. So is an object that holds a
    tensor or a collection, and all of what a cache is made of.

    Raises:
        HoldsItself: It cannot be built.
    """
    return _mapped(value, "", change, {}, anew=False)


def _collect(value: Any, place: str, found: list[tuple[str, Any]], seen: set[int]) -> None:
    kind: Any = type(value)
    if kind in _PLAIN or isinstance(value, Tensor) or not _is_opened(kind):
        found.append((place, value))
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for key, item in _items(value):
        _collect(item, f"{place}[{key!r}]", found, seen)
    if kind not in _COLLECTIONS:
        for name, child in _own_attributes(value):
            _collect(child, f"{place}.{name}", found, seen)
    if issubclass(kind, dict | MappingProxyType):
        found += [(f"{place}.{of}", _Sealed(type(each).__name__)) for of, each in _hidden(value)]


def _mapped(value: Any, place: str, change: Change, known: dict[int, Any], *, anew: bool) -> Any:
    """Returns a copy; ``known`` has what was copied already, by the id of its original."""
    kind: Any = type(value)
    if isinstance(value, Tensor):
        return change(place, value)
    if kind in _PLAIN or not _is_opened(kind):
        return value
    if id(value) in known:
        if known[id(value)] is _UNFINISHED:
            raise HoldsItself(f"a {kind.__name__} that holds itself cannot be copied")
        return known[id(value)]
    anew = anew or kind.__name__.endswith("Cache")
    known[id(value)] = _UNFINISHED if _is_frozen(kind) else _empty(value)

    def copied(child: Any, at: str) -> Any:
        return _mapped(child, place + at, change, known, anew=anew)

    items = [(key, copied(item, f"[{key!r}]")) for key, item in _items(value)]
    if _is_frozen(kind):
        known[id(value)] = _frozen(kind, items)
    else:
        _fill(known[id(value)], kind, items)
    new = known[id(value)]
    if kind in _COLLECTIONS:
        return new
    before = dict(_own_attributes(value))
    after = {name: copied(child, f".{name}") for name, child in before.items()}
    is_object = not issubclass(kind, _COLLECTIONS)
    if is_object and not anew and all(after[name] is child for name, child in before.items()):
        known[id(value)] = value
        return value
    _set_attributes(new, value, after)
    return new


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the items of a collection with their keys or numbers, whatever its class says."""
    kind: Any = type(value)
    if issubclass(kind, OrderedDict):
        yield from OrderedDict.items(value)
    elif issubclass(kind, dict):
        yield from dict.items(value)
    elif issubclass(kind, MappingProxyType):
        yield from value.items()
    elif issubclass(kind, _COLLECTIONS):
        native = next(each for each in _COLLECTIONS if issubclass(kind, each))
        yield from enumerate(native.__iter__(value))


def _hidden(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a dict keeps beside its items and may hold a tensor."""
    yield from (("keys()", key) for key, _ in _items(value) if not _is_plain_key(key))
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if not _is_plain(factory):
        yield "default_factory", factory


def _is_plain_key(key: Any) -> bool:
    return all(map(_is_plain_key, key)) if type(key) is tuple else _is_plain(key)


def _own_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields an object's attributes, of which those that repeat an item of a dict are none.

    A ``ModelOutput`` is a dict whose items are its attributes too.
    """
    kind: Any = type(value)
    items = value if issubclass(kind, dict) else {}
    for name, child in _dict_of(value).items():
        if dict.get(items, name, _UNFINISHED) is not child:
            yield name, child
    for name, slot in _slots_of(kind):
        try:
            yield name, slot.__get__(value)
        except AttributeError:
            continue


def _set_attributes(new: Any, value: Any, changed: dict[str, Any]) -> None:
    kind: Any = type(value)
    slots, own = dict(_slots_of(kind)), _dict_of(new)
    for name in _dict_of(value):
        own[name] = changed[name] if name in changed else dict.__getitem__(new, name)
    for name, slot in slots.items():
        if name in changed:
            slot.__set__(new, changed[name])


def _dict_of(value: Any) -> dict[str, Any]:
    """Returns an object's own ``__dict__``, also where its class shows another; {} for none."""
    for each in type(value).__mro__:
        found = vars(each).get("__dict__")
        if isinstance(found, GetSetDescriptorType | MemberDescriptorType):
            own: dict[str, Any] = found.__get__(value)
            return own
    return {}


@lru_cache(maxsize=4096)
def _slots_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Returns the slots of a class and of those it is derived from, with their descriptors."""
    return tuple(
        (name, each)
        for base in kind.__mro__
        if base.__flags__ & _HEAP_TYPE
        for name, each in vars(base).items()
        if isinstance(each, MemberDescriptorType)
    )


@lru_cache(maxsize=4096)
def _is_opened(kind: type) -> bool:
    """Whether all that an instance holds is its items, its ``__dict__`` and its slots."""
    if issubclass(kind, nn.Module) or kind is object:
        return False
    return all(base in _NATIVE or _is_written_in_python(base) for base in kind.__mro__)


def _is_written_in_python(kind: type) -> bool:
    """Whether a class adds no memory to its base but its slots, a dict and weak references.

    A type written in C may keep anything there. The results of torch's functions are tuples.
    """
    if issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields"):
        return True
    base = kind.__base__
    if base is None or not kind.__flags__ & _HEAP_TYPE:
        return False
    if isinstance(vars(kind).get("__new__"), BuiltinFunctionType):
        return False
    pointers = sum(isinstance(each, MemberDescriptorType) for each in vars(kind).values())
    pointers += kind.__weakrefoffset__ > 0 and base.__weakrefoffset__ == 0
    if kind.__dictoffset__ != 0 and base.__dictoffset__ == 0:
        pointers += not kind.__flags__ & _MANAGED_DICT
    return kind.__basicsize__ - base.__basicsize__ <= pointers * _POINTER


def _is_plain(value: Any) -> bool:
    """Whether a value that was not opened, or is looked at by itself, holds no tensor."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return True
    if issubclass(kind, _NUMBERS):
        return all(map(_is_plain, _dict_of(value).values()))
    if isinstance(value, FunctionType):
        held = (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        return _is_global(value) or not any(held)
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    if isinstance(value, type):
        return _is_global(value)
    return _is_opened(kind) and not any(
        isinstance(leaf, Tensor | _Sealed) or not _is_plain(leaf) for _, leaf in leaves_of(value)
    )


def _is_global(value: Any) -> bool:
    """Whether a class or function is found by its name, and so is no call's own."""
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _is_frozen(kind: type) -> bool:
    return issubclass(kind, tuple | frozenset | MappingProxyType)


def _frozen(kind: Any, items: list[tuple[Any, Any]]) -> Any:
    if issubclass(kind, MappingProxyType):
        return MappingProxyType(dict(items))
    each = [item for _, item in items]
    if hasattr(kind, "n_sequence_fields"):
        return kind(each)
    return tuple.__new__(kind, each) if issubclass(kind, tuple) else frozenset.__new__(kind, each)


def _empty(value: Any) -> Any:
    """Returns an object of the same class that holds nothing yet; no code of the class runs."""
    kind: Any = type(value)
    native: Any = next((base for base in kind.__mro__ if base in _NATIVE), object)
    new = native.__new__(kind)
    if isinstance(value, defaultdict):
        defaultdict.__init__(new, value.default_factory)
    elif isinstance(value, deque):
        deque.__init__(new, maxlen=value.maxlen)
    return new


def _fill(new: Any, kind: type, items: list[tuple[Any, Any]]) -> None:
    if issubclass(kind, dict):
        put = OrderedDict.__setitem__ if issubclass(kind, OrderedDict) else dict.__setitem__
        for key, item in items:
            put(new, key, item)
    elif issubclass(kind, list):
        list.extend(new, [item for _, item in items])
    elif issubclass(kind, deque):
        deque.extend(new, [item for _, item in items])
    elif issubclass(kind, set):
        set.update(new, {item for _, item in items})


def batch_size_of(arguments: Any) -> int:
    """Returns the leading dimension of the first tensor among nested arguments; 0 for none."""
    return next((len(x) for x in named_tensors(arguments).values() if x.dim()), 0)


def places_of_rows(arguments: Any, count: int) -> list[str]:
    """Returns the places of the tensors that have ``count`` rows, the first argument's first."""
    return [
        place
        for place, leaf in named_tensors(arguments).items()
        if leaf.dim() and len(leaf) == count
    ]


def take_rows(arguments: Any, rows: int) -> Any:
    """Returns the arguments with ``rows`` examples in place of however many there are."""
    count = batch_size_of(arguments)
    return pick_rows(arguments, torch.arange(rows) % max(count, 1))


def pick_rows(arguments: Any, rows: Tensor, *, whole: Collection[str] = ()) -> Any:
    """Returns the arguments with some of their examples, in an order of their own.

    Args:
        arguments: Whose first tensor carries the batch in front.
        rows: Numbers of the rows to take, shape (n,).
        whole: Places whose tensors are left as they are, though they have as many rows.
    """
    count = batch_size_of(arguments)

    def take(place: str, leaf: Tensor) -> Tensor:
        if leaf.dim() == 0 or len(leaf) != count or place in whole:
            return leaf
        return leaf.detach()[moved(rows, leaf.device)]

    return map_tensors(arguments, take)
