"""Registries of components by name; each component registers itself."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from dpft.errors import InputError

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """The components that one module, or the modules of one package, provide by name.

    Modules of the package that register nothing are allowed and need not be listed.
    """

    def __init__(self, package: str, *, key: str) -> None:
        """Start without entries.

        Args:
            package: Dotted name of the module, or of the package with modules that register
                themselves.
            key: The configuration key that names an entry, for messages.
        """
        self._package, self._key = package, key
        self._entries: dict[str, Entry] = {}

    def register(self, *names: str) -> Callable[[Entry], Entry]:
        """Return a decorator that registers an object under each of the names.

        Raises:
            ValueError: A name is taken.
        """

        def registered(entry: Entry) -> Entry:
            for name in names:
                if name in self._entries:
                    raise ValueError(f"{self._package} has a {name} already; choose another name.")
                self._entries[name] = entry
            return entry

        return registered

    def _import(self, names: Iterable[str]) -> None:
        for name in names:
            importlib.import_module(f"{self._package}.{name}")

    def _modules(self) -> list[str]:
        package = importlib.import_module(self._package)
        return [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", ()))]

    def entries(self) -> dict[str, Entry]:
        """Return all entries by name, sorted, after importing all modules of the package."""
        self._import(self._modules())
        return dict(sorted(self._entries.items()))

    def named(self, name: str) -> Entry:
        """Return the entry with this name.

        The module of the same name is imported first, because importing all modules of a package
        may take seconds.
        """
        if name not in self._entries:
            self._import({name} & set(self._modules()))
        if name in self._entries:
            return self._entries[name]
        entries = self.entries()
        if name not in entries:
            raise InputError(
                f"{self._key} must be one of {', '.join(entries)}, got {name!r}.",
                key=self._key,
                value=name,
            )
        return entries[name]
