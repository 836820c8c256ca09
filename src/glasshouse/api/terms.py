"""The terms of a capture: where they come from, whether they are right, and which attacks can run on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from glasshouse import registry
from glasshouse.api.scenario import ask
from glasshouse.audit.captured.build import truth_of
from glasshouse.audit.captured.origins import ASSUMED, COUNTED, correct, read_origins, require_capture
from glasshouse.audit.captured.terms import check_terms
from glasshouse.audit.preflight.inspect import refusal_in
from glasshouse.audit.preflight.outlook import look
from glasshouse.audit.simulation.record import TermsCheck
from glasshouse.errors import GlasshouseError
from glasshouse.outside.files import path_of
from glasshouse.scenario.axes import cells
from glasshouse.scenario.table import Plugin
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Terms

__all__ = ["CapturedTerms", "terms"]


@final
@dataclass(frozen=True, kw_only=True)
class CapturedTerms:
    """The terms of a capture. Its ``str`` is the output of ``glasshouse terms``.

    Attributes:
        folder: of the capture.
        terms: as they stand now.
        origins: of every term that is in no message, by dotted key; empty: the capture does not say.
        checked: test clients' training, repeated under these terms.
        runs: names of the attacks that this capture does not rule out.
        refused: attacks that it rules out, by the reason.
    """

    folder: Path
    terms: Terms
    origins: dict[str, str]
    checked: TermsCheck
    runs: tuple[str, ...]
    refused: dict[str, tuple[str, ...]]

    @property
    def assumed(self) -> tuple[str, ...]:
        """Keys of terms that nobody stated and nothing showed."""
        return tuple(key for key, origin in self.origins.items() if origin == ASSUMED)

    def value(self, key: str) -> Any:
        """The value of a term, by its dotted key."""
        table, _, inner = key.partition(".")
        return getattr(getattr(self.terms, table), inner) if inner else getattr(self.terms, table, "")

    def __str__(self) -> str:
        stated = self.terms
        sees = (
            "only sums are seen (secure aggregation)" if stated.secure_sum else f"each {stated.sends} is seen"
        )
        who = f"{stated.clients} clients, {stated.cohort} per round"
        lines = [f"capture '{self.folder}': {stated.protocol}, {who}; {sees}"]
        lines += [
            f"  {key} = {self.value(key)}: {origin}" for key, origin in self.origins.items() if key != COUNTED
        ]
        lines += [f"  {self.origins[COUNTED]}"] if COUNTED in self.origins else []
        if stated.sends != "document":  # which state no steps that could be repeated
            lines += [f"  {_words(self.checked)}"]
        lines += [f"  can run: {', '.join(self.runs) or 'no attack'}"]
        lines += [f"  cannot: {', '.join(names)}: {reason}" for reason, names in self.refused.items()]
        return "\n".join(lines)


def terms(captured: Path | str, *, sets: Sequence[str] = ()) -> CapturedTerms:
    """The terms of a capture, after correcting some of them.

    The federation need not run again: its messages stay, and what was computed from the terms follows them.

    Args:
        captured: folder of a capture.
        sets: ``key=value`` of terms that were not observed: ``optimizer.momentum=0.9``.

    Raises:
        BadFile: no capture.
        BadValue: a key that was observed or does not exist, or a value out of range.
    """
    folder = path_of(captured, "capture").expanduser()
    require_capture(folder)
    if sets:
        correct(folder, sets)
    transcript = read_transcript(folder / "transcript", trust_factory=True)
    truth = truth_of(folder, transcript.terms.architecture)
    runs, refused = _attacks(folder)
    return CapturedTerms(
        folder=folder,
        terms=transcript.terms,
        origins=read_origins(folder),
        checked=check_terms(folder, transcript, truth),
        runs=runs,
        refused=refused,
    )


def _words(checked: TermsCheck) -> str:
    """What test clients say of the terms."""
    if not checked.n:
        return "nobody recorded what clients trained on, so the terms are not checked"
    tested = f"{checked.n} updates of test clients, trained again"
    if not checked.suspect:
        return f"the terms are the real ones: {tested}, error {checked.error:.1e} of the change"
    advice = f"; {checked.advice}" if checked.advice else ""
    if checked.since:
        where = f"the terms are the real ones before round {checked.since} only"
        return f"{where}: {checked.suspect} ({tested}, error {checked.error:.1e} after it)"
    return f"the terms are not the real ones: {checked.suspect} ({tested}, error {checked.error:.1e}){advice}"


def _attacks(folder: Path) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The attacks that a server can run on a capture, and the others by the reason."""
    # Any scenario will do: what rules an attack out stands in the capture, but for grants and changes.
    asked = {"name": "capture", "attacks": ["label_inference"]}
    (scenario,) = ask(asked, captured=folder).scenarios
    (cell,) = cells(scenario)
    outlook = look(cell.scenario)
    runs, refused = [], dict[str, tuple[str, ...]]()
    for name in registry.names("attacks"):
        try:
            refusal = refusal_in(outlook, Plugin(name=name))
            reason = "" if refusal is None else f"needs {refusal.needs}; got {refusal.got}"
        except GlasshouseError as error:
            reason = f"needs {error.needs}; got {error.got}"
        if reason:
            refused[reason] = (*refused.get(reason, ()), name)
        else:
            runs.append(name)
    return tuple(runs), refused
