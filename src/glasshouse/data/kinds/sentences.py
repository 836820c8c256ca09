"""Built-in sentences: a generated corpus, so that language models can be audited without data files."""

from functools import lru_cache

import numpy as np

from glasshouse.data.paths import refuse_path
from glasshouse.data.texts import Texts
from glasshouse.registry import Card
from glasshouse.tokens import corpus

_TEST_EVERY = 4


@Card(summary="3,700 invented sentences of four topics, 10 to 17 words; no download; every fourth is test")
@lru_cache(maxsize=1)
def sentences(where: str, *, resize: int | None = None) -> Texts:
    """The corpus of :mod:`glasshouse.tokens.corpus`.

    Raises:
        BadValue: ``where`` is not empty; this source takes no path.
    """
    del resize  # for images only
    refuse_path("sentences", where)
    every = [(s, label) for label, part in enumerate(corpus.sentences().values()) for s in part]
    test = np.arange(len(every)) % _TEST_EVERY == _TEST_EVERY - 1
    parts = {}
    for split, rows in {"train": ~test, "test": test}.items():
        parts[split] = [every[i] for i in np.flatnonzero(rows)]
    texts, labels = {}, {}
    for split, part in parts.items():
        texts[split] = [sentence for sentence, _ in part]
        labels[split] = np.array([label for _, label in part])
    return Texts(
        name="sentences",
        sentences=texts,
        labels=labels,
        class_names=tuple(corpus.TOPICS),
        public=True,
    )
