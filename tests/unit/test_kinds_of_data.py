"""Nothing outside modalities, tasks and what belongs to one kind asks which kind of examples it has."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "glasshouse"
ASKS = re.compile(
    r"isinstance\([^()]*\b(Image|Sentence|Row|Array|NextToken|Segmentation|Regression|Multilabel)\b"
    r"|vocabulary is (not )?None|\.modality\.name ==|inputs\.name =="
    r"|inputs\.is_floating_point\(\)|inputs\.ndim\b"
)
OF_ONE_KIND = {
    # Rooms of one kind.
    "modalities/": "the kinds themselves",
    "tasks/": "the tasks themselves",
    "attacks/text/": "attacks on sentences",
    "attacks/rows/": "attacks on rows",
    "attacks/trees/": "attacks on trees over rows",
    "models/text/": "models of sentences",
    "metrics/text/": "metrics of sentences",
    "metrics/tables/rows.py": "metrics of rows",
    "guard/sentences.py": "the guard's look at sentences",
    "figures/sentences.py": "a figure of sentences",
    "figures/columns.py": "a figure of rows",
    "figures/facts.py": "a figure of facts about the columns of rows",
    "attacks/parts/documents.py": "what attacks on documents know of the table behind them",
    "federation/protocols/documents/": "documents that are made of tables",
    "audit/captured/documents.py": "documents that were made of tables",
    "integrations/documents.py": "documents that apps make of tables",
    "testing/": "contracts of one kind",
    # Readers and public functions whose subject is pictures.
    "data/kinds/hf.py": "columns of another library",
    "figures/gallery.py": "a figure of pictures",
    "data/base.py": "resizing and colours of pictures",
    "audit/simulation/deal.py": "a second set of pictures is resized like the first",
    "api/guard.py": "the guard's own pictures",
    "api/attack.py": "input_shape describes pictures",
    "api/arrays.py": "images in memory have their channels last",
    "wire.py": "Architecture.of describes pictures by their shape",
    "api/forecast.py": "a forecast for pictures",
    # Files from outside, before their kind is known.
    "transcript/described.py": "shapes of a file without a description",
    "data/shaped/": "shapes of a file without a description",
    "data/targets.py": "targets of a file without a description",
    "guard/": "the guard is given bare tensors",
    "federation/defenses/dp_sgd.py": "hooks need inputs that can require a gradient",
    "audit/scoring/evidence.py": "the figure of sentences needs their tokenizer",
    "examples.py": "one label per example",
}


def test_nobody_asks_which_kind_of_examples_there_is():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(tuple(OF_ONE_KIND)):
            continue
        found += [
            f"{place}:{number}: {line.strip()}"
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if ASKS.search(line)
        ]
    assert found == []


def test_every_exception_is_still_needed():
    for place in OF_ONE_KIND:
        assert (SOURCE / place).exists(), place
