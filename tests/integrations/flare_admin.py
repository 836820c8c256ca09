"""One command of a federation's administrator, in a process of its own: FLARE keeps one session a process.

``connected KIT SITE``, ``run KIT JOB SECONDS``, ``cat KIT TARGET FILE``; prints JSON.
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from nvflare.fuel.flare_api.api_spec import AuthorizationError
from nvflare.fuel.flare_api.flare_api import new_secure_session


def open_session(kit, seconds=120.0):
    """A session, once the server answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            return new_secure_session(Path(kit).name, kit, timeout=10.0)
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def connected(kit, site):
    """Wait until the site has registered."""
    session = open_session(kit)
    for _ in range(120):
        with suppress(Exception):
            if any(one.name == site for one in session.get_connected_client_list()):
                return {"connected": site}
        time.sleep(1)
    raise TimeoutError(site)


def run(kit, job, seconds):
    """Submit a job and wait for its end."""
    session = open_session(kit)
    number = session.submit_job(job)
    end = time.monotonic() + float(seconds)
    while True:
        status = session.get_job_meta(number)["status"]
        if status.startswith("FINISHED"):
            return {"job": number, "status": status}
        if time.monotonic() > end:
            session.abort_job(number)
            raise TimeoutError(f"{job}: {status}")
        time.sleep(1)


def cat(kit, target, file):
    """A file of a site, as the administrator reads it over the network."""
    try:
        return {"text": open_session(kit).cat_target(target, file=file)}
    except AuthorizationError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    command = {"connected": connected, "run": run, "cat": cat}[sys.argv[1]]
    told = json.dumps(command(*sys.argv[2:]))
    sys.stdout.write(f"\nANSWER {told}\n")
    sys.stdout.flush()
    os._exit(0)  # FLARE's threads would keep the process
