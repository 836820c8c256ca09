"""What a job brings to act after the site's filters, or in their place."""

import os
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey

MARK = "GLASSHOUSE_TEST_MARK"


def mark(what):
    """Say that uploaded code ran, and in which process."""
    if MARK in os.environ:
        Path(os.environ[MARK]).joinpath(what).write_text(str(os.getpid()))


class LateFilter(Filter):
    """Adds 7 after the site's filters."""

    def process(self, shareable, fl_ctx):
        """The message, with 7 added to a tensor."""
        mark("filter")
        shareable["DXO"]["data"]["hidden.bias"] += 7
        return shareable


class LateHandler(FLComponent):
    """Adds a word when the filters are done."""

    def handle_event(self, event_type, fl_ctx):
        """Change the very object that is sent."""
        if event_type == EventType.AFTER_TASK_RESULT_FILTER:
            mark("handler")
            fl_ctx.get_prop(FLContextKey.TASK_RESULT)["DXO"]["meta"]["late"] = 9


def replace_filter():
    """Put another method in the place of the filter's."""
    from glasshouse.integrations.nvflare import site

    mark("replaced")
    site.GateOut.process = lambda self, shareable, fl_ctx: shareable
