"""The terminal: everything that is printed on it passes the sanitiser, and fits the terminal's encoding."""

from collections.abc import Iterable
from typing import final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from glasshouse.outside.text import encodable, visible

__all__ = ["Screen"]


@final
class Screen(Console):
    """rich's console; text that would steer the terminal is shown, and what its encoding lacks is spelt.

    Layout belongs to rich: control codes that rich itself writes (of a progress bar) pass.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``, sanitised."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                shown = visible(segment.text, several_lines=True)
                yield Segment(encodable(shown, self.encoding), segment.style)
