"""Runs programs that are data on the pure matchers alone: no context, no loop, no store."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from resurgam.core import event as events
from resurgam.core.commands import Intent
from resurgam.core.history import History
from resurgam.core.location import ROOT, Location
from resurgam.core.matchers import Cursor, Diverged, Ignored, Peeked, Replayed, by_location, removal, version_check
from vectors.history_notation import KINDS, place
from vectors.program_notation import Call, Program

WISHES = {**KINDS, "activity": events.ActivityScheduled, "wait": events.ListenStarted, "strand": events.BranchStarted}
SPELLED = {"wait": "~listen", "strand": "~branch"}


class Parted(Exception):
    """Code and history do not fit: where, and in which field."""

    def __init__(self, where: Location, field: str) -> None:
        super().__init__(place(where), field)
        self.where, self.field = place(where), field


@dataclass
class Strand:
    """One scope: where it is, how far it has come, and what its calls are stored with."""

    at: Location
    cursor: Cursor
    version: int = 1
    gate: int | None = None


@dataclass
class Matching:
    """What came of the calls of a program."""

    history: Sequence[events.Command]
    written: list[str] = field(default_factory=list)
    gates: dict[str, int | None] = field(default_factory=dict)
    replayed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def run(self, calls: Program, at: Location = ROOT, version: int = 1) -> "Matching":
        """Match the calls of one scope, and those below it; what is left over at its end is a divergence."""
        strand = Strand(at, Cursor(History(self.history).commands(at)), version)
        self._play(calls, strand)
        if strand.cursor.next is not None:
            raise Parted(strand.cursor.next.location, "end")
        return self

    def _play(self, calls: Program, strand: Strand) -> None:
        for call in calls:
            {"removed": self._remove, "check": self._check}.get(call.verb, self._call)(call, strand)

    def _call(self, call: Call, strand: Strand) -> None:
        if call.verb in ("gather", "task_group"):
            self._play(call.parts[0], strand)
            return
        version = strand.version + (call.version or 1) - 1
        verdict = by_location(strand.cursor, Intent(WISHES[call.verb], call.name, version))
        if isinstance(verdict, Diverged):
            raise Parted(verdict.event.location, verdict.field)
        strand.cursor.take(verdict)
        gate, strand.gate = strand.gate, None
        if isinstance(verdict, Replayed):
            where = verdict.event.location
            self.replayed.append(place(where))
        else:
            where = strand.at.child(verdict.coordinate)
            self._write(
                where, call.name if call.verb == "activity" else SPELLED.get(call.verb, f"~{call.verb}"), version
            )
            self.gates[place(where)] = gate
        self._below(call, where, version)

    def _below(self, call: Call, where: Location, version: int) -> None:
        if call.verb == "loop":
            for number in range(1, call.number + 1):
                self.run(call.parts[0], where.child((number,)), version)
        elif call.parts:
            self.run(call.parts[0], where, version)

    def _remove(self, call: Call, strand: Strand) -> None:
        intent = Intent(WISHES[call.parts[0][0].verb], call.name, strand.version)
        verdict = removal(strand.cursor, intent, by_type=False)
        if isinstance(verdict, Ignored):
            self.ignored.append(str(call.name))
            return
        strand.cursor.take(verdict)
        strand.gate = None
        if isinstance(verdict, Replayed):
            self.replayed.append(place(verdict.event.location))
        else:
            self._write(strand.at.child(verdict.coordinate), f"~gone:{call.name}", strand.version)

    def _check(self, call: Call, strand: Strand) -> None:
        verdict = version_check(strand.cursor, call.name, by_type=False)
        if isinstance(verdict, Diverged):
            raise Parted(verdict.event.location, verdict.field)
        if isinstance(verdict, Peeked):
            strand.gate = verdict.version
            answer = verdict.version - strand.version + 1
        else:
            strand.cursor.take(verdict)
            answer = call.number
            if isinstance(verdict, Replayed):
                assert isinstance(verdict.event, events.VersionChecked)
                answer = verdict.event.answer
            else:
                version = strand.version + call.number - 1
                self._write(strand.at.child(verdict.coordinate), f"~check:{answer}", version)
        self.answers.append(answer)
        if answer in call.arms:
            self._play(call.parts[call.arms.index(answer)], strand)

    def _write(self, where: Location, what: str | None, version: int) -> None:
        self.written.append(f"{place(where)}={what}{'' if version == 1 else f'@{version}'}")
