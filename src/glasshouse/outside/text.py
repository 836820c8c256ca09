r"""The one sanitiser for text from outside: names, messages and examples on their way to a reader.

Whatever a file, a plug-in or a client says may steer a terminal, break an XML file or read backwards. Each
place where text leaves the program (terminal, page, SVG, Markdown, LaTeX, CSV, JSON, file name) calls the
function of its kind; characters that act or hide are shown as the escape that Python writes for them
(``\x1b``, ``\u202e``).

Source: Unicode 15, categories Cc, Cf, Cs, Zl and Zp; XML 1.0, production 2 (Char); OWASP, "CSV Injection".
We keep the joiners U+200C and U+200D, which Persian, Hindi and emoji need, and signs of category Cf that
have a shape.
"""

import codecs
import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any, Final

ACTIVE: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls: bell, escape, carriage return, their eight-bit twins
    "\u00ad\u180e\u200b\u2060-\u2064\ufeff\ufff9-\ufffb"  # seen by nobody: two names that look the same
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # turn the direction of what follows
    "\u2028\u2029"  # line breaks to some programs and not to others
    "\ud800-\udfff\ufdd0-\ufdef"  # no characters: nothing can encode them, or no XML may hold them
    + "".join(chr((plane << 16) | 0xFFFE) + chr((plane << 16) | 0xFFFF) for plane in range(17))
    + "\U000e0000-\U000e007f"  # tags: a second text inside a name
)
"""Characters that act or hide, as the inside of a regular expression's brackets; without newline and TAB."""
BREAKS: Final = "\t\n"

_LINE: Final = re.compile(f"[{ACTIVE}{BREAKS}]")
_LINES: Final = re.compile(f"[{ACTIVE}]")
_MARKDOWN: Final = re.compile(
    r"[\\`*\[\]<>|~#$&@]"  # code, emphasis, links, HTML, cells, headings, formulas, entities, addresses
    r"|(?<![^\W_])_|_(?![^\W_])"  # an underscore at the edge of a word; inside one it is only an underscore
    r"|(?<=\w):(?=//)|(?<=www)\."  # addresses that readers turn into links by themselves
    r"|^[-+=](?=[-+=\s])|(?<=^\d)[.)]",  # lists and rules at the start of a line
    re.IGNORECASE,
)
_FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_PLAIN: Final = {
    "●": "*", "○": "o", "◇": "?", "×": "x", "‼": "!!", "→": "->", "≤": "<=", "≥": ">=", "ε": "eps",
    "δ": "delta", "σ": "sigma", "²": "2", "–": "-", "—": "-", "−": "-", "…": "...", "·": ".", "’": "'",
    "“": '"', "”": '"', "\u00a0": " ", "│": "|", "─": "-", "━": "-", "╸": "-", "╺": "-",
}  # fmt: skip
"""What stands for our own signs where an encoding lacks them."""
ERRORS: Final = "glasshouse.plain"
"""Name of the error handler for encodings that lack a character: ``text.encode("ascii", ERRORS)``."""


def visible(text: str, *, several_lines: bool = False) -> str:
    r"""``text`` in the composed form NFC, with characters that act or hide escaped; nothing else changes.

    Args:
        text: from anywhere.
        several_lines: newlines and TABs are the text's own layout and stay.

    Examples:
        >>> visible("a" + chr(27) + "[2J") == r"a\x1b[2J", visible("a\nb") == r"a\nb"
        (True, True)
        >>> visible("a\nb", several_lines=True) == "a\nb", visible(chr(0x202E)) == r"\u202e"
        (True, True)
    """
    composed = text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)
    return (_LINES if several_lines else _LINE).sub(_escape, composed)


def markdown(text: str) -> str:
    r"""One line of text for Markdown: read as it is written, never as a heading, link, cell, formula or HTML.

    Examples:
        >>> print(markdown("# [a](http://b) | label_inference"))
        \# \[a\](http\://b) \| label_inference
    """
    return _MARKDOWN.sub(lambda match: "\\" + match[0], visible(text))


def csv_cell(value: Any) -> Any:
    r"""A value for a CSV file: texts stay on one line, and no spreadsheet takes one for a formula.

    Texts that begin with ``=``, ``+``, ``-`` or ``@`` (or their wide forms) get a leading apostrophe.

    Examples:
        >>> csv_cell("=1+1"), csv_cell(-0.5), csv_cell("a\r\nb") == r"a\r\nb"
        ("'=1+1", -0.5, True)
    """
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def as_json(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] = str) -> str:
    r"""``value`` as JSON in ASCII without any control character but newlines; NaN is refused.

    Args:
        value: to print.
        indent: spaces of each level; None: one line.
        default: makes something plain of what JSON does not know.

    Raises:
        ValueError: a number is not finite.

    Examples:
        >>> as_json([chr(127), chr(0xD800)])
        '["\\u007f", "\\ud800"]'
    """
    return json.dumps(value, allow_nan=False, indent=indent, default=default).replace("\x7f", "\\u007f")


def file_name(text: str, *, most: int = 100) -> str:
    """A name of one file, inside its folder, on any system: letters, digits, ``.``, ``-`` and ``_``.

    Args:
        text: from anywhere.
        most: characters that are kept.

    Examples:
        >>> file_name("../a b"), file_name("")
        ('a-b', 'unnamed')
    """
    return re.sub(r"[^\w.-]+", "-", visible(text))[:most].strip("-.") or "unnamed"


def encodable(text: str, encoding: str) -> str:
    r"""``text`` with what ``encoding`` lacks spelt in ASCII or escaped, so that writing it cannot fail.

    Examples:
        >>> encodable("● 3 ≤ 4 \u4e00", "cp1252") == "* 3 <= 4 " + chr(92) + "u4e00"
        True
    """
    return text.encode(encoding, ERRORS).decode(encoding)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _spell(error: UnicodeError) -> tuple[str, int]:
    """Handler for :data:`ERRORS`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c, c.encode("unicode_escape").decode("ascii")) for c in missing), error.end


codecs.register_error(ERRORS, _spell)
