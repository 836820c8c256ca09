"""What a site's officer reads off a log: what left, what was refused, and the privacy spent, by job."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from glasshouse.gate.ledger import LEFT
from glasshouse.gate.mechanism import spent_epsilon
from glasshouse.gate.policy import Policy


@final
@dataclass(kw_only=True)
class Job:
    """Totals of one run of one app.

    Attributes:
        run: as the server named it.
        app: SHA-256 of the uploaded code; empty if unknown.
        first, last: time of its first and last entry.
        actions: messages by what was decided (``observed``: sent as they were, only written down).
        would: observed messages by what would have been decided.
        bytes_out: bytes that left for messages that were not refused.
        refusals: refused messages by rule; a message refused by several counts for each.
        changes: changed messages by rule.
        kept_out: messages of the server that were kept from the app, by rule.
        mu_squared: sum of (sensitivity ÷ noise)² of the gate's noise.
        epsilon: that it spent of its data set's budget, as if alone; None: it sent no noised update.
    """

    run: str
    app: str = ""
    first: str = ""
    last: str = ""
    actions: Counter[str] = field(default_factory=Counter)
    would: Counter[str] = field(default_factory=Counter)
    bytes_out: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    kept_out: Counter[str] = field(default_factory=Counter)
    mu_squared: float = 0.0
    epsilon: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Spent:
    """Privacy spent on one data set.

    Attributes:
        dataset: its name in the policy.
        epsilon: at ``delta``, by the gate's own noise alone; None: a message left without it, so none holds.
        delta: of the policy.
        releases: messages with tensors that left.
        bare: of these, how many left without the gate's noise.
        bits: most that the noised ones can have carried in all, on average, whatever their sender did.
    """

    dataset: str
    epsilon: float | None
    delta: float
    releases: int
    bare: int
    bits: float


@final
@dataclass(frozen=True, kw_only=True)
class Summary:
    """A log, summed up.

    Attributes:
        jobs: in order of their first entry.
        spent: by data set.
        grade: of the last start (A or B), and its sentence; empty if no start is logged.
        unknown: requests of a kind that the gate does not know.
    """

    jobs: tuple[Job, ...]
    spent: tuple[Spent, ...]
    grade: str = ""
    sentence: str = ""
    unknown: int = 0

    @property
    def actions(self) -> Counter[str]:
        """Messages of all jobs, by what was decided."""
        return sum((job.actions for job in self.jobs), Counter())

    @property
    def would(self) -> Counter[str]:
        """Observed messages of all jobs, by what would have been decided."""
        return sum((job.would for job in self.jobs), Counter())


def summarize(entries: Iterable[Mapping[str, Any]], policy: Policy | None = None) -> Summary:
    """Sum up a log's entries.

    Args:
        entries: of a verified log.
        policy: of the site, for δ; without it δ is 1e-5.
    """
    jobs: dict[str, Job] = {}
    releases, bare = Counter[str](), Counter[str]()
    total, bits = defaultdict[str, float](float), defaultdict[str, float](float)
    start: Mapping[str, Any] = {}
    unknown = 0
    for entry in entries:
        event = entry["event"]
        start = entry if event == "start" else start
        unknown += event == "unknown"
        if event not in ("in", "out"):
            continue
        job = jobs.setdefault(entry["run"], Job(run=entry["run"], first=entry["time"]))
        job.app, job.last = entry["app"] or job.app, entry["time"]
        # What arrives costs no privacy; it is listed for the rules that it broke.
        if event == "in":
            job.kept_out.update(set(entry["rules"]))
            continue
        _count(job, entry)
        # Every release counts, also one that was only observed: without the gate's own noise it has no finite
        # ε, and one such release leaves its data set without any.
        if entry["tensors"] and entry["action"] in (*LEFT, "observed"):
            dataset, mu_squared = entry["dataset"], entry["mu_squared"]
            releases[dataset] += 1
            is_bare = entry["action"] == "observed" or mu_squared == 0
            bare[dataset] += is_bare
            total[dataset] += 0 if is_bare else mu_squared
            bits[dataset] += entry["measures"].get("bits", 0.0)
    # Gaussian releases add up in μ², and become an ε once, at the end.
    mechanism = policy.out.mechanism if policy else None
    delta = mechanism.delta if mechanism else 1e-5
    for job in jobs.values():
        job.epsilon = spent_epsilon(job.mu_squared, delta=delta) if job.mu_squared else None
    spent = (
        Spent(
            dataset=name,
            epsilon=None if bare[name] else spent_epsilon(total[name], delta=delta),
            delta=delta,
            releases=count,
            bare=bare[name],
            bits=bits[name],
        )
        for name, count in releases.items()
    )
    return Summary(
        jobs=tuple(jobs.values()),
        spent=tuple(spent),
        grade=start.get("grade", ""),
        sentence=start.get("egress", ""),
        unknown=unknown,
    )


def _count(job: Job, entry: Mapping[str, Any]) -> None:
    job.actions[entry["action"]] += 1
    job.bytes_out += entry["bytes_out"]
    decided = entry.get("would", entry["action"])
    job.would.update([decided] if entry["action"] == "observed" else [])
    rules = job.refusals if decided == "refused" else job.changes
    rules.update(set(entry["rules"]))
    job.mu_squared += entry["mu_squared"]
