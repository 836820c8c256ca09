"""Validate JSON against a schema: types, ranges, and no unknown keys."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import shorten
from glasshouse.registry import names, nearest_names

M = TypeVar("M", bound=BaseModel)

Text = Annotated[str, Field(max_length=limits.TEXT)]
Count = Annotated[int, Field(ge=1, le=limits.EXAMPLES)]
Client = Annotated[int, Field(ge=0, le=limits.CLIENTS)]
Round = Annotated[int, Field(ge=0, le=limits.ROUNDS)]
Number = Annotated[int, Field(ge=-(2**31), le=2**31)]
Value = float | Number | Text | bool
Values = Annotated[dict[Text, Value], Field(max_length=limits.ARGUMENTS)]


class Described(BaseModel):
    """A JSON object with fixed keys and strict types: neither ``True`` nor ``"5"`` is a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _small(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    if shape[0] * shape[1] * shape[2] > limits.IMAGE_VALUES:
        raise ValueError(f"images should have at most {limits.IMAGE_VALUES:,} numbers")
    return shape


Channels = Annotated[int, Field(ge=1, le=limits.CHANNELS)]
Side = Annotated[int, Field(ge=1, le=limits.SIDE)]
ImageShape = Annotated[tuple[Channels, Side, Side], AfterValidator(_small)]
TextShape = tuple[Annotated[int, Field(ge=2, le=limits.TOKENS)]]
Mark = Annotated[int, Field(ge=-1, lt=limits.VOCABULARY)]


class VocabularyFile(Described):
    """The vocabulary of a language model, as stored in files."""

    size: Annotated[int, Field(ge=2, le=limits.VOCABULARY)]
    pad: Annotated[int, Field(ge=0, lt=limits.VOCABULARY)]
    end: Mark = -1
    start: Mark = -1


class ArchitectureFile(Described):
    """An architecture, as stored in files: for images, or for sentences with a vocabulary."""

    name: Text
    input_shape: ImageShape | TextShape
    classes: Annotated[int, Field(ge=1, le=limits.CLASSES)]
    arguments: Values = {}
    vocabulary: VocabularyFile | None = None

    @model_validator(mode="after")
    def _whole(self) -> "ArchitectureFile":
        if (len(self.input_shape) == 1) != (self.vocabulary is not None):
            raise ValueError("sentences have an input_shape (L,) and a vocabulary, images neither")
        return self


def parse_as(kind: type[M], raw: object, *, subject: str, fix: str) -> M:
    """Validate ``raw`` (from JSON) as a ``kind``.

    Raises:
        BadFile: ``raw`` does not fit; the message names the first problem and its location.
    """
    try:
        return kind.model_validate(freeze(raw))
    except RecursionError as error:
        got = "brackets nested too deeply"
        raise BadFile(subject, needs="plain lists and tables", got=got, fix=fix) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadFile(
            subject,
            needs=(f"'{place}': " if place else "") + first["msg"][:1].lower() + first["msg"][1:],
            got=shorten(first["input"]),
            fix=fix,
        ) from error


def check_name(name: str, *, subject: str, trust_factory: bool) -> None:
    """Refuse an architecture name that is not registered, or that would import a module without permission.

    Args:
        name: name of a model, from a file.
        subject: names the file in errors.
        trust_factory: allow ``module:factory``, which runs code of that module.

    Raises:
        BadFile: not a registered model.
    """
    registered, code = names("models"), ":" in name
    if name in registered or (trust_factory and code):
        return
    raise BadFile(
        subject,
        needs="a registered model" + (": a file from outside never has code imported" if code else ""),
        got=f"the architecture {shorten(name)}",
        fix="--trust-factory runs that module's code: only if you wrote it or read it"
        if code
        else f"{nearest_names(name, registered)}; install the plug-in that has it",
    )


def freeze(value: Any) -> Any:
    """Convert lists to tuples recursively, as strict tuple types require."""
    if isinstance(value, Mapping):
        return {key: freeze(item) for key, item in value.items()}
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value
