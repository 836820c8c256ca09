"""Flower's protobuf classes without the rest of Flower, for the process that opens messages.

Importing any part of ``flwr`` runs the package's own start, which brings its command line, gRPC and HTTP:
60 MB, of which every fork would copy the tables. Here the package stands as a folder alone.
"""

import sys
from importlib.util import find_spec, module_from_spec

_spec = find_spec("flwr")
if _spec is not None and "flwr" not in sys.modules:
    sys.modules["flwr"] = module_from_spec(_spec)
