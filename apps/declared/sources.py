"""Importing a file with models from a copy of it and of the modules beside it.

What serves is the copy: an edit, good or bad, changes nothing until the model is loaded anew. Modules have the file
names of the originals, so that tracebacks and ``Path(__file__)`` lead there; of an exported model there is only the
copy.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

__trireme_hides_frames__ = True


class _CopyLoader(importlib.machinery.SourceFileLoader):
    """Runs the code of a copy under the name of the original."""

    def __init__(self, fullname: str, shown: str, copy: str) -> None:
        super().__init__(fullname, shown)
        self.copy = copy

    def get_code(self, fullname: str) -> CodeType:
        with open(self.copy, "rb") as file:
            return self.source_to_code(file.read(), self.path)


class CopiedModules:
    """A finder of the modules in a folder of copies, and the module of the app's file.

    Args:
        folder: with the copies.
        origin: where they were copied from; empty if the folder is all that there is.
    """

    def __init__(self, folder: str, origin: str = "") -> None:
        self._folder, self._origin = folder, origin or folder
        self._loaders: list[_CopyLoader] = []
        self._extends_path = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """For the import system."""
        base = os.path.join(*fullname.split("."))
        for relative, is_package in ((os.path.join(base, "__init__.py"), True), (f"{base}.py", False)):
            if os.path.isfile(os.path.join(self._folder, relative)):
                return self._spec(fullname, relative, is_package)
        return None

    def _spec(self, fullname: str, relative: str, is_package: bool) -> importlib.machinery.ModuleSpec | None:
        shown = os.path.join(self._origin, relative)
        loader = _CopyLoader(fullname, shown, os.path.join(self._folder, relative))
        self._loaders.append(loader)
        places = [os.path.dirname(shown)] if is_package else None
        return importlib.util.spec_from_file_location(fullname, shown, loader=loader, submodule_search_locations=places)

    def import_app(self, file: str, instance: str) -> ModuleType:
        """Run the app's file, and what it imports. Raises whatever the code raises.

        Args:
            file: relative to the folder.
            instance: tells the module from others of that name in one process.
        """
        self._forget_others()
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        if self._origin not in sys.path:
            sys.path.append(self._origin)  # last: for what is imported by a name that only runs know
            self._extends_path = True
        name = os.path.splitext(os.path.basename(file))[0]
        name = name if name not in sys.modules else f"{name}__{instance}"
        spec = self._spec(name, file, is_package=False)
        assert spec is not None, "it has a loader"
        assert spec.loader is not None, "this one"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def _forget_others(self) -> None:
        """Modules of other copies, perhaps of the same files before they were changed, are not ours."""
        for name, module in sys.modules.copy().items():
            if isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _CopyLoader):
                sys.modules.pop(name, None)

    def close(self) -> None:
        """Be found no more, and let others import modules of these names."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type]
        if self._extends_path:
            heirs = [each for each in sys.meta_path if isinstance(each, CopiedModules) and each._origin == self._origin]
            if heirs:
                heirs[0]._extends_path = True
            elif self._origin in sys.path:
                sys.path.remove(self._origin)
            self._extends_path = False
        for name, module in sys.modules.copy().items():
            if getattr(getattr(module, "__spec__", None), "loader", None) in self._loaders:
                sys.modules.pop(name, None)
