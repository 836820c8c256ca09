"""Imported by the server from which workers are forked: everything that they need, once for all of them.

Nothing that is imported here ever goes, so the garbage collector skips it: that saves a third of the imports'
time, the collection when the server ends, and copies of pages in every worker.
"""

import gc
from importlib import import_module

from glasshouse.executors.local import PRELOAD
from glasshouse.registry import look_again

gc.disable()
for _name in PRELOAD:
    import_module(_name)
look_again()  # a worker sees what is installed when it starts, not what was when the server did
gc.freeze()
gc.enable()
