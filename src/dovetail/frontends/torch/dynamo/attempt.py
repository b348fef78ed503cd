"""An import that goes on after a call that it cannot read: it finds all of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import DovetailError
from dovetail.frontends.torch.exported import Call, Exported, Result
from dovetail.frontends.torch.importing.importer import Import, is_known
from dovetail.frontends.torch.importing.rule import Rule
from dovetail.ir.type import TensorType


class Attempt(Import):
    """An import in which inputs stand for the results of calls that are refused."""

    def __init__(self, program: Exported, rules: Mapping[str, Rule], refused: Mapping[str, str] | None = None) -> None:
        super().__init__(program, rules)
        self.refused: dict[str, str] = dict(refused or {})
        """Why each call is not part of the graph, by the name of the call."""

    def _refuse_missing(self) -> None:
        """Operators without a rule are refused like any other call."""

    def refusals(self) -> dict[str, str]:
        """The calls that are refused, and why; no graph is made."""
        with self.builder.recording():
            for one in self.program.leaves:
                self._made[one.name] = self._leaf(one)
            for call in self.program.calls:
                self._call(call)
        return self.refused

    def _call(self, call: Call) -> None:
        if call.name not in self.refused:
            if not is_known(call, self.rules):
                self.refused[call.name] = "there is no rule for it"
            else:
                try:
                    super()._call(call)
                    return
                except DovetailError as error:
                    self.refused[call.name] = error.message.splitlines()[0]
        self._made[call.name] = self._stand_in(call.name, call.result)

    def _stand_in(self, name: str, result: Result) -> Any:
        if isinstance(result, TensorType):
            return self.builder.input(name, result)
        if isinstance(result, tuple):
            return tuple(self._stand_in(f"{name}_{i}", r) for i, r in enumerate(result))
        return result
