"""Every name of NVIDIA FLARE that this adapter relies on, and that a release may change.

Tried on 2.9.0 with all of the adapter; on 2.8.3 filters, messages and capture work in memory. There scripts
run under other executors (:data:`LAUNCHERS_2_8`), which the site's launcher does not know: it refuses their
jobs. A new release needs a look at this file, and at what its job process imports before the launcher's look.
"""

from typing import Final

from nvflare import client as flare
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException, Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, JobConstants, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_launcher_spec import JobHandleSpec
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.job_launcher.client_process_launcher import (
    ClientProcessJobLauncher,
)
from nvflare.app_common.statistics.statisitcs_objects_decomposer import (
    fobs_registration,
)
from nvflare.fuel.utils import fobs

__all__ = [
    "AUTHORIZATION",
    "CLIENT_CONFIG",
    "CONTENT",
    "CUSTOM",
    "DXO",
    "EXECUTOR",
    "HEADERS",
    "IN_PROCESS",
    "LAUNCHER",
    "LAUNCHERS_2_8",
    "OUTSIDE",
    "PEER",
    "PRIVACY",
    "RESOURCES",
    "RIGHTS",
    "SHELL",
    "SIGNATURES",
    "STEPS",
    "STREAMERS",
    "TRAINER",
    "AppConstants",
    "ClientProcessJobLauncher",
    "ContentBlockedException",
    "DataKind",
    "EventScope",
    "EventType",
    "FLComponent",
    "FLContext",
    "FLContextKey",
    "FLModel",
    "FedEventHeader",
    "Filter",
    "JobConstants",
    "JobHandleSpec",
    "ReturnCode",
    "Shareable",
    "UnsafeComponentError",
    "flare",
    "fobs",
    "fobs_registration",
    "from_shareable",
]

EXECUTOR: Final = "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor"
TRAINER: Final = "nvflare.app_common.np.np_trainer.NPTrainer"
IN_PROCESS: Final = "InProcessClientAPIExecutor"
"""Ending of the names of older executors that run a script in the job's process."""
OUTSIDE: Final = ("external_process", "attach")
"""Ways of :data:`EXECUTOR` to run a script outside the job's process."""
LAUNCHERS_2_8: Final = (
    "nvflare.app_common.executors.client_api_launcher_executor.ClientAPILauncherExecutor",
    "nvflare.app_opt.pt.client_api_launcher_executor.PTClientAPILauncherExecutor",
    "nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher",
    "nvflare.fuel.utils.pipe.cell_pipe.CellPipe",
)
"""What a job of 2.8 builds to run a script in a process of its own."""
LAUNCHER: Final = "ClientProcessJobLauncher"
STREAMERS: Final = ("site_log_streamer.", "job_log_streamer.", "SiteLogStreamer", "JobLogStreamer")
"""Components of a site that send its logs to the server."""
PRIVACY: Final = "privacy.json"
RESOURCES: Final = "resources.json"
AUTHORIZATION: Final = "authorization.json"
CLIENT_CONFIG: Final = "config_fed_client"
CUSTOM: Final = "custom"
SIGNATURES: Final = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""Files that FLARE adds to a job's folders when it is submitted."""
SHELL: Final = "shell_commands"
RIGHTS: Final = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "byoc")
"""Rights that ``any`` stands for in a site's authorization, but those of :data:`SHELL`."""
HEADERS: Final = "__headers__"
PEER: Final = "__peer_props__"
CONTENT: Final = "DXO"
STEPS: Final = "NUM_STEPS_CURRENT_ROUND"
"""Meta key with the number of local steps, which is the weight of an update in FLARE's mean."""
