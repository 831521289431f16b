"""Runs a function once a module has been imported; called by the registration of the device."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from types import ModuleType


class _TellingLoader(importlib.abc.Loader):
    """The module's own loader, and then the function that `tell` names."""

    def __init__(self, loader: importlib.abc.Loader, tell: str) -> None:
        self._loader = loader
        self._tell = tell

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What looks at the module later (inspect, pickle, importlib.resources) meets its own loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        resolve_name(self._tell)(module)


class _TellingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of `tells` as the finders behind it do, each of them once."""

    def __init__(self, tells: Mapping[str, str]) -> None:
        self._tells = dict(tells)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        tell = self._tells.pop(fullname, None)
        if tell is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self._tells[fullname] = tell
            return None
        spec.loader = _TellingLoader(spec.loader, tell)
        return spec


def when_imported(tells: Mapping[str, str]) -> None:
    """Call the function that `tells[name]` names, as `package.module:function`, with each module once it has
    been imported; at once for those that are there.

    The library wrapt has such hooks too; it would be imported with every `import torch`.
    """
    waiting = {}
    for name, tell in tells.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = tell
        else:
            resolve_name(tell)(module)
    if waiting:
        sys.meta_path.insert(0, _TellingFinder(waiting))
