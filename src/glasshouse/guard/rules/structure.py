"""Models whose structure differs from the agreed one."""

from collections.abc import Mapping

from torch import Tensor

from glasshouse.errors import BadValue

_SHOWN = 4


def other_structure(tensors: Mapping[str, Tensor], agreed: Mapping[str, Tensor]) -> list[str]:
    """Tensors that are unexpected, missing, or of another shape or kind of numbers than agreed.

    A model casts what it loads, so integers in place of weights would become weights. Precisions may differ.
    """
    more = [name for name in tensors if name not in agreed]
    less = [name for name in agreed if name not in tensors]
    shapes = [
        f"{name} is {tuple(t.shape)}, not {tuple(agreed[name].shape)}"
        for name, t in tensors.items()
        if name in agreed and t.shape != agreed[name].shape
    ]
    types = [
        f"{name} is {t.dtype}, not {agreed[name].dtype}".replace("torch.", "")
        for name, t in tensors.items()
        if name in agreed and agreed[name].is_floating_point() and not t.is_floating_point()
    ]
    differences = (
        ("has tensors that were not agreed", more),
        ("lacks", less),
        ("another shape", shapes),
        ("another kind of numbers", types),
    )
    return [f"structure: {words}: {_some(names)}" for words, names in differences if names]


def check_related(reference: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Reject a reference that shares less than half of its tensors, by name and shape, with the model.

    Raises:
        BadValue: the reference has another architecture.
    """
    alike = sum(name in model and model[name].shape == t.shape for name, t in reference.items())
    if 2 * alike < len(reference):
        raise BadValue(
            "reference model",
            needs="an honest model of the same architecture",
            got=f"{alike} of its {len(reference)} tensors have the name and shape of one in the model",
            fix="give the last model that you accepted, in the same form, or leave --reference out",
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
