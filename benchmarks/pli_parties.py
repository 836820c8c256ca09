"""How well the parties of logit protocols learn: ``python -m benchmarks.pli_parties RUN``.

RUN is the folder of an audit that ended. For each cell, means over seeds: accuracy of clients and server over
the uploads (0: before the first round), by the data it is measured on, and the entropy of their last
predictions, nats. Then the clients' held-out accuracy by seed, the last with its interval.
"""

import argparse
from pathlib import Path
from statistics import fmean

from glasshouse.audit.simulation.record import GroupRecord, read_record
from glasshouse.scenario.load import read_resolved


def cells(run: Path) -> dict[str, list[GroupRecord]]:
    """The federations of each protocol and number of clients."""
    tables: dict[str, list[GroupRecord]] = {}
    for marker in sorted(run.glob("cells/*/**/group.json")):
        federation = read_resolved(marker.parent / "scenario.toml").federation
        record = read_record(marker.parent)
        if record.parties:
            tables.setdefault(f"{federation.protocol}, K = {federation.clients}", []).append(record)
    return tables


def accuracies(record: GroupRecord) -> dict[str, list[float]]:
    """By party and data, one for each upload."""
    rows: dict[str, list[float]] = {}
    for row in sorted(record.parties, key=lambda row: int(row["round"])):
        rows.setdefault(f"{row['who']} on {row['on']} data", []).append(float(row["accuracy"]))
    return rows


def show(name: str, records: list[GroupRecord]) -> None:
    """The lines of one cell."""
    each = [accuracies(record) for record in records]
    for who in each[0]:
        curve = ", ".join(f"{fmean(at):.2f}" for at in zip(*(one[who] for one in each), strict=True))
        sure = fmean(fmean(record.entropies[who]) for record in records)
        print(f"{name}, {who}: {curve}; entropy {sure:.2f}")
    for record, one in zip(records, each, strict=True):
        if last := record.utility:
            curve = ", ".join(f"{value:.2f}" for value in one["clients on held-out data"])
            interval = f"{last['value']:.2f} [{last['low']:.2f}, {last['high']:.2f}]"
            print(f"{name}, seed {record.seed}: {curve}; last {interval}, {last['n']:.0f} images")


def main() -> None:
    """Print every cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    tables = cells(run)
    if not tables:
        raise SystemExit(f"no federations of logits in {run}")
    for name, records in tables.items():
        show(name, records)


if __name__ == "__main__":
    main()
