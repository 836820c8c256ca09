"""Tokenizers: two built-in ones, and those in files.

The scenario names the tokenizer (``data.tokenizer``): ``words`` or ``bytes``, or the path of a
``tokenizer.json``, or of a folder that contains one, or GPT-2's ``vocab.json`` and ``merges.txt``, or BERT's
``vocab.txt``. Files are read by the package ``tokenizers`` of the extra ``text``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, final

from glasshouse.errors import BadFile, not_installed
from glasshouse.outside import limits
from glasshouse.outside.files import read_limited
from glasshouse.tokens.corpus import words
from glasshouse.tokens.vocabulary import Vocabulary

BUILT_IN: Final = ("words", "bytes")
_PIECES: Final = re.compile(r"\w+|[^\w\s]")
_MARKS: Final = 2
_BYTES: Final = 256
_ENDS: Final = ("<|endoftext|>", "</s>", "[SEP]", "<eos>")
_STARTS: Final = ("[CLS]", "<s>", "<bos>")
_PADS: Final = ("[PAD]", "<pad>", "<|padding|>")


class Tokenizer(Protocol):
    """Converts sentences to token ids and back."""

    @property
    def name(self) -> str:
        """Name in the scenario."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The number of tokens, and the special tokens."""

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The token ids of every sentence, without special tokens."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The sentence, without special tokens."""


@final
@dataclass(frozen=True)
class WordTokenizer:
    """Tokens for the words of the built-in corpus, in lower case; other words are split into bytes.

    Attributes:
        name: ``words``, or ``bytes`` for a byte-level tokenizer.

    Examples:
        >>> own = WordTokenizer("words")
        >>> own.decode(own.encode(["Anna feels Zyx today."])[0])
        'anna feels zyx today .'
    """

    name: str

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(size=_MARKS + _BYTES + len(self._words), pad=0, end=1)

    @property
    def _words(self) -> tuple[str, ...]:
        return words() if self.name == "words" else ()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        number = {word: _MARKS + _BYTES + i for i, word in enumerate(self._words)}
        return [self._tokens(sentence, number) for sentence in sentences]

    def _tokens(self, sentence: str, number: dict[str, int]) -> list[int]:
        if not number:
            return [_MARKS + byte for byte in sentence.encode()]
        tokens: list[int] = []
        for piece in _PIECES.findall(sentence.lower()):
            tokens += [number[piece]] if piece in number else [_MARKS + b for b in f"{piece} ".encode()]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        out = bytearray()
        for token in tokens:
            if _MARKS <= token < _MARKS + _BYTES:
                out.append(token - _MARKS)
            elif token >= _MARKS + _BYTES:
                out += f"{self._words[token - _MARKS - _BYTES]} ".encode()
        return out.decode(errors="replace").strip()


@final
@dataclass(frozen=True)
class FileTokenizer:
    """A tokenizer of the package ``tokenizers``.

    Attributes:
        name: the path in the scenario.
        inner: the package's tokenizer object.
        vocabulary: its vocabulary.
    """

    name: str
    inner: Any
    vocabulary: Vocabulary

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.inner.encode_batch(list(sentences), add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.inner.decode([t for t in tokens if t not in self.vocabulary.marks])
        return text.strip()


@lru_cache(maxsize=4)
def read_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called ``name``.

    Raises:
        BadFile: no such file, of an unknown kind, or without a token that can serve as padding.
        NotInstalled: it is in a file, and the package ``tokenizers`` is not installed.

    Examples:
        >>> read_tokenizer("bytes").vocabulary.size
        258
    """
    if name in BUILT_IN:
        return WordTokenizer(name)
    files = _files(Path(name).expanduser(), name)
    inner = _read(files, name)
    return FileTokenizer(name, inner, _vocabulary_of(inner, name))


def _files(path: Path, name: str) -> dict[str, Path]:
    """The tokenizer files at ``path`` by their standard names."""
    if path.is_file():
        return {path.name if path.name == "vocab.txt" else "tokenizer.json": path}
    for kind in (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt",)):
        if all((path / file).is_file() for file in kind):
            return {file: path / file for file in kind}
    raise BadFile(
        f"tokenizer '{name}'",
        needs=f"{', '.join(BUILT_IN)}, or a tokenizer.json, vocab.json with merges.txt, or vocab.txt",
        got=f"none of them (looked in '{Path.cwd()}')" if not path.exists() else "a folder without them",
        fix="correct data.tokenizer",
    )


def _read(files: dict[str, Path], name: str) -> Any:
    subject = f"tokenizer '{name}'"
    for file in files.values():
        read_limited(file, limits.JSONL_BYTES, subject=subject)  # check the size before parsing
    try:
        package = import_module("tokenizers")
    except ImportError as error:
        raise not_installed(subject, "tokenizers", error, extra="text") from error
    try:
        if "tokenizer.json" in files:
            return package.Tokenizer.from_file(str(files["tokenizer.json"]))
        if "vocab.txt" in files:
            return package.BertWordPieceTokenizer(str(files["vocab.txt"]))
        return package.ByteLevelBPETokenizer(str(files["vocab.json"]), str(files["merges.txt"]))
    except Exception as error:  # the package raises bare exceptions
        raise BadFile(
            subject,
            needs="files of a tokenizer, undamaged",
            got=str(error)[: limits.TEXT],
            fix="get them again",
        ) from error


def _vocabulary_of(inner: Any, name: str) -> Vocabulary:
    def first(marks: Sequence[str]) -> int:
        known = [inner.token_to_id(mark) for mark in marks]
        return next((number for number in known if number is not None), -1)

    start, end, pad = first(_STARTS), first(_ENDS), first(_PADS)
    if max(pad, end) < 0:
        raise BadFile(
            f"tokenizer '{name}'",
            needs=f"a token to fill up sentences: one of {', '.join((*_PADS, *_ENDS))}",
            got="none of them",
            fix="add one to the tokenizer",
        )
    return Vocabulary(size=inner.get_vocab_size(), pad=pad if pad >= 0 else end, end=end, start=start)
