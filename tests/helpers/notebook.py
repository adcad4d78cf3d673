"""A notebook as libraries see it: a shell with a kernel, and what is displayed in it."""

import builtins
import sys
import types


class ZMQInteractiveShell:
    """Under the name by which notebooks are recognised."""

    def __init__(self):
        self.kernel = object()
        self.display_pub = self
        self.shown = []

    def publish(self, data, metadata=None, *, transient=None, update=False, **_):
        self.shown.append((transient["display_id"], update, data))

    @property
    def texts(self):
        return [data["text/plain"] for _, _, data in self.shown]


def enter_notebook(monkeypatch):
    """Until the end of the test; returns the shell."""
    shell = ZMQInteractiveShell()
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    return shell
