"""What the factory of a model is called with: images and classes, or of a plain network its own arguments."""

import inspect
from collections.abc import Callable
from typing import Any, Final

from glasshouse.registry import arguments

__all__ = ["NORMALISATION", "model_arguments", "takes_images"]

NORMALISATION: Final = ("mean", "std")
"""What a plain network's images are normalised with, one number for all channels."""


def takes_images(factory: Callable[..., Any]) -> bool:
    """Whether the factory of a model wants (input_shape, classes): all do but the class of a plain network.

    Examples:
        >>> takes_images(lambda input_shape, classes, width=8: None), takes_images(lambda width=8: None)
        (True, False)
    """
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(factory).parameters.values()):
        return True
    first = list(arguments(factory).values())[:2]
    asked = [p.name for p in first] == ["input_shape", "classes"] or all(p.default is p.empty for p in first)
    return len(first) == 2 and asked


def model_arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What an architecture may say beside its images and classes, by name.

    Of a plain network that is also the ``mean`` and ``std`` of what its pixels are normalised with outside.
    """
    takes = arguments(factory)
    if takes_images(factory):
        return dict(list(takes.items())[2:])
    outside = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=float)
        for name in NORMALISATION
    )
    return {**{p.name: p for p in outside}, **takes}
