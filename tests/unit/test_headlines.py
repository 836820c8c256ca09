"""What the first section of a results page says is what its largest run has in a row below."""

import csv
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "results"
INTERVAL = re.compile(r"[+−]?\d[\d.]*(?: dB)? \[[^\]]+\]")
LINK = re.compile(r"\(([a-z0-9-]+\.csv)\)")
FROM_ROWS = ("inversion", "maui", "scale-mia")
"""Pages whose first section repeats rows; on others it is the table of the largest run itself."""


def parts(page):
    """The first section of a page, and all that is below it, with the tables that the page links."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    first, _, below = text.partition("\n## Result\n")[2].partition("\n## ")
    linked = [(DOCS / name).read_text(encoding="utf-8") for name in sorted(set(LINK.findall(text)))]
    return first, "\n".join([below, *linked])


def plain(text):
    return text.replace(" dB", "").replace("+", "").replace(" ", "")


def without_a_row(first, below):
    """Figures with an interval in the first section that stand in no row."""
    return [found for found in INTERVAL.findall(first) if plain(found) not in plain(below)]


@pytest.mark.parametrize("page", FROM_ROWS)
def test_every_interval_of_the_first_section_stands_in_a_row(page):
    first, below = parts(page)
    assert INTERVAL.findall(first)
    assert without_a_row(first, below) == []


def test_a_headline_that_no_row_has_is_seen():
    _, below = parts("maui")
    assert without_a_row("leaks 0.938 [0.888, 0.988]", below) == ["0.938 [0.888, 0.988]"]


def row_of(text, label):
    """The cells of the only row of a table that begins with ``label``."""
    rows = [line for line in text.split("\n") if line.startswith(f"| {label}")]
    assert len(rows) == 1, (label, rows)
    return [cell.strip().strip("*") for cell in rows[0].strip("|").split("|")]


def table(name):
    with (DOCS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_scale_mias_rates_are_those_of_its_audit_which_has_the_most_batches():
    first, below = parts("scale-mia")
    with (DOCS / "scale-mia-audit.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:4] == ["m", "n", "rate, paper's way", "gain"]
    assert row_of(first, "Scale-MIA in an audit")[1:] == [row[2] for row in rows]
    assert row_of(first, "gain over the mean image")[1:] == [row[3].split()[0] for row in rows]
    for size, batches, *_ in rows:
        others = re.findall(rf"`\w+-{size.replace(',', '')}` \| (\d+)", below)
        assert others
        assert int(batches) >= max(map(int, others))


def test_mauis_trained_head_is_that_of_a_hundred_batches():
    first, _ = parts("maui")
    rows = [row for row in table("maui-heads.csv") if row["head"].startswith("trained, a hundred batches")]
    said = row_of(first, "the paper's trained head, a hundred batches")[1]
    assert said.split(" / ") == [row["truth"].split()[0] for row in rows]
    kept = [row for row in table("maui-heads.csv") if row["head"].startswith("exemplars")]
    said = row_of(first, "our head of examples")[1]
    assert said.split(" / ") == [row["truth"].split()[0] for row in kept]


@pytest.mark.parametrize(("label", "at"), [("membership, CIFAR-10", 4), ("membership, MNIST", 8)])
@pytest.mark.parametrize("lot", ["first", "second"])
def test_prolins_membership_is_that_of_all_rounds_in_both_lots(label, at, lot):
    first, _ = parts("prolin")
    cells = row_of(first, label)
    with (DOCS / f"prolin-membership-{lot}.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[at] == "300"
    (untold,) = (row for row in rows if row[0] == "posterior, share not told")
    assert untold[at].split()[0] in cells[1]


def test_ggls_share_is_the_mean_of_its_networks_and_the_largest_run_comes_first():
    first, _ = parts("ggl")
    rows = [line.strip("|").split("|") for line in first.split("\n") if re.match(r"\| [^|]+ \| 8 × \d", line)]
    assert len(rows) >= 8
    for cells in rows:
        shares = [{"¼": 0.25, "½": 0.5, "¾": 0.75}.get(w) or float(w.replace("¼", ".25").replace("½", ".5")
                  .replace("¾", ".75")) for w in re.split(r"[, ]+", cells[3].strip())]  # fmt: skip
        assert float(cells[2].strip(" *").split()[0]) == pytest.approx(sum(shares) / len(shares), abs=0.006)
    people = [int(cells[1].split("×")[1]) for cells in rows]
    assert people[0] == max(people)


def test_plis_gain_is_the_difference_of_its_two_shares():
    first, _ = parts("pli")
    cells = re.findall(r"\*\*\+([\d.]+) \[[^\]]+\]\*\* \(([\d.]+)(?: \[[^\]]+\])? for ([\d.]+)\)", first)
    assert len(cells) == 6
    for gain, value, null in cells:
        assert float(gain) == pytest.approx(float(value) - float(null), abs=0.0015)
