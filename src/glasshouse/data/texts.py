"""Sentences as returned by a source, and their conversion to token ids.

Shape letters: N sentences, L tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.cache import digest
from glasshouse.data.base import DataSource, Examples, check_count, check_labels
from glasshouse.errors import BadFile, BadValue
from glasshouse.modalities.sentence import Sentence
from glasshouse.outside import limits
from glasshouse.tasks.next_token import NextToken
from glasshouse.tokens.tokenizers import Tokenizer

_SHORTEST: Final = 4


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """Sentences of one source.

    Attributes:
        name: as given by the user.
        sentences: sentences of each split.
        labels: labels of each split, (N,) integers.
        class_names: one per class.
        public: the sentences are public; the report hides those of other sources.
    """

    name: str
    sentences: Mapping[str, Sequence[str]]
    labels: Mapping[str, NDArray[Any]]
    class_names: tuple[str, ...]
    public: bool = False


def tokenized(texts: Texts, tokenizer: Tokenizer, *, length: int) -> DataSource:
    """``texts`` as a data set of tokens (N, ``length``); longer sentences are cut, empty ones left out.

    Raises:
        BadFile: a split without sentences, or labels that do not fit.
        BadValue: ``length`` is out of range; a shorter one would leave room only for special tokens.
    """
    if not _SHORTEST <= length <= limits.TOKENS:
        raise BadValue(
            f"data '{texts.name}'",
            needs=f"data.length from {_SHORTEST} to {limits.TOKENS:,} tokens",
            got=str(length),
            fix="set the longest sentence that the model reads",
        )
    check_count(len(texts.class_names), limits.CLASSES, "classes", name=texts.name)
    splits = {}
    for split, sentences in texts.sentences.items():
        subject = f"data '{texts.name}', split '{split}'"
        check_count(len(sentences), limits.EXAMPLES, "sentences", name=texts.name)
        encoded = tokenizer.encode(sentences)
        # A sentence without a token cannot be a victim, nor be guessed.
        nonempty = np.array([bool(tokens) for tokens in encoded], dtype=bool)
        if not nonempty.any():
            raise BadFile(
                subject, needs="at least one sentence", got="none", fix="leave the split out, or fill it"
            )
        rows = tokenizer.vocabulary.stack([tokens for tokens in encoded if tokens], length=length)
        labels = check_labels(np.asarray(texts.labels[split])[nonempty], len(rows), subject)
        if int(labels.max()) >= len(texts.class_names):
            raise BadFile(
                subject,
                needs=f"labels below {len(texts.class_names)}",
                got=str(int(labels.max())),
                fix="name every class",
            )
        splits[split] = Examples(stored=rows, labels=labels)
    content = {split: [part.stored, part.labels] for split, part in splits.items()}
    return DataSource(
        name=texts.name,
        splits=splits,
        class_names=texts.class_names,
        checksum=digest({"splits": content, "names": list(texts.class_names)}),
        public=texts.public,
        inputs=Sentence(vocabulary=tokenizer.vocabulary, length=length),
        task=NextToken(
            vocabulary=tokenizer.vocabulary, length=length, classes=max(1, len(texts.class_names))
        ),
    )
