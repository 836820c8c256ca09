"""The public vocabulary of a federation of language models: its size and special tokens, not the words.

Shape letters: N sentences, L tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.errors import BadValue


@final
@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The number of tokens, and the ids of special tokens.

    Attributes:
        size: V; token ids are 0 to V - 1.
        pad: padding token; ignored by attention and loss. May equal ``end``.
        end: appended to every sentence; -1: none.
        start: prepended to every sentence (BERT's ``[CLS]``, LLaMA's ``<s>``); -1: none.
    """

    size: int
    pad: int
    end: int = -1
    start: int = -1

    def __post_init__(self) -> None:
        marks = (self.end, self.start)
        if self.size < 2 or not 0 <= self.pad < self.size or not all(-1 <= m < self.size for m in marks):
            raise BadValue(
                "a vocabulary",
                needs="size >= 2, 0 <= pad < size, end and start below size (-1: none)",
                got=f"size = {self.size}, pad = {self.pad}, end = {self.end}, start = {self.start}",
                fix="take the numbers from the tokenizer",
            )

    @property
    def marks(self) -> frozenset[int]:
        """The special tokens: padding, end and start."""
        return frozenset(mark for mark in (self.pad, self.end, self.start) if mark >= 0)

    def real(self, tokens: Tensor) -> Tensor:
        """Which tokens (N, L) are part of their sentence, bool: all before the padding at its end.

        If ``pad`` equals ``end``, the first of these at the end closes the sentence and is part of it.

        Examples:
            >>> vocabulary = Vocabulary(size=9, pad=0, end=0)
            >>> vocabulary.real(torch.tensor([[5, 6, 0, 0], [5, 6, 7, 0]])).int().tolist()
            [[1, 1, 1, 0], [1, 1, 1, 1]]
        """
        mask = (tokens != self.pad).flip(1).cummax(1).values.flip(1)
        if self.pad == self.end:
            mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], dim=1)
        return mask

    def words(self, tokens: Tensor) -> list[tuple[int, ...]]:
        """The sentences of ``tokens`` (N, L) without special tokens, for comparing sentences.

        Examples:
            >>> Vocabulary(size=9, pad=0, end=1).words(torch.tensor([[5, 6, 1, 0], [1, 0, 0, 0]]))
            [(5, 6), ()]
        """
        marks = self.marks
        return [tuple(t for t in row if t not in marks) for row in tokens.tolist()]

    def stack(self, sentences: Sequence[Sequence[int]], *, length: int) -> Tensor:
        """Stack sentences to (N, ``length``): add start and end tokens, truncate and pad.

        Examples:
            >>> Vocabulary(size=9, pad=0, end=1, start=2).stack([[5, 6, 7, 8], [5]], length=4).tolist()
            [[2, 5, 6, 1], [2, 5, 1, 0]]
        """
        start, end = [[mark] if mark >= 0 else [] for mark in (self.start, self.end)]
        space = length - len(start) - len(end)
        rows = torch.full((len(sentences), length), self.pad)
        for row, sentence in zip(rows, sentences, strict=True):
            tokens = [*start, *sentence[:space], *end]
            row[: len(tokens)] = torch.tensor(tokens)
        return rows
