"""The numbers that decide, in one place.

"Prototype": 32 crafted and 210 honest models of 35 architectures, on CIFAR-10 at 16 x 16, before this code
was written. "Repeated" names a part of ``python -m benchmarks.guard pursuit``, or ``traps``
and ``rounds`` of ``benchmarks.guard``.

==============  =====================================  ====================================  ========
number          trades                                 set by                                repeated
==============  =====================================  ====================================  ========
SEARCHED        cost, and read-outs missed             32 to 532 examples: within .05        kinds
JUDGED          cost, and noise of the shares          four splits: within .04               kinds
CLEAR, VISIBLE  nothing: 30 and 18 dB of an image of   1 / (1 + error), arithmetic           kinds
                variance 1/16
ROUNDING        read-outs that float32 destroys        float32's sums of 64                  kinds
MARGIN          false alarms, and faint combinations   prototype: 99 % of honest below .044  zoo
MARGIN_VISIBLE  the same at 18 dB                      two honest rounds: .09                zoo
MARGIN          the same for single rows, and for the  honest digits: at most .20 of focus,  traps,
                focus beyond which only it is allowed  trap weights .27 to .60               zoo
CHANCE          false alarms, and crafted single rows  the limits that this replaces         zoo
CHANCE_ROUNDS   false alarms, and two-round designs    honest digits, 600 to 963            rounds
FEWER           false alarms, and fishing              the limits that this replaces         zoo
REMEMBERED      cost and memory, and servers that      a choice                              -
                wait for a batch to come again
AHEAD           cost, and read-outs that open later    layers behind zeros: all open after   delayed
                                                       one step, and stay so for 16
LONGEST         models that diverge, and slow ones     a choice                              zoo
COVERED         "not judged", and models that hide in  a choice                              zoo
                what nobody looks at
OWN_COLUMNS     false alarms, and pictures of so few   chance fills more of wide layers:     zoo
                numbers                                0.01 of a batch 8 of 512, 0.37 of
                                                       12,288, but 128 of these 0.01
SUPPORTS        wide windows, and 9 dimensions that    prototype: honest layers behind: .07  zoo
                10 rows always cancel
CROWD,          cost, and wide windows                 windows of 13 and 21 rows: they are   adaptive
CROWDED                                                .9 alike and more
ALWAYS          cost, and read-outs that share rows    halves, other pictures                adaptive
LIKELY, ROUNDS  cost                                   prototype: within .03                 cost
GIVEN_UP,       cost, and read-outs that the rest of   crafted and honest models: the same   kinds,
LITTLE, SPIKES  the fit would have made sparse         numbers                               cost
==============  =====================================  ====================================  ========
"""

from typing import Final

SEARCHED: Final = 64
"""Examples on which read-outs are searched."""
JUDGED: Final = 128
"""Other examples on which they are judged."""
FEWEST: Final = 16
"""Minimum number of examples: half of them are searched, and the others are a batch of at least 8."""
CLEAR: Final = 0.984
"""Dominance from which on an image is read at 30 dB."""
VISIBLE: Final = 0.8
"""Dominance from which on an image is read at 18 dB."""
ROUNDING: Final = 1e-5
"""Noise of a float32 sum, relative to the root of its sum of squares."""
MARGIN: Final = 0.05
"""What combinations may add at 30 dB beyond all measured honest models: share of a batch of ``MANY``."""
MARGIN_VISIBLE: Final = 0.1
"""The same at 18 dB."""
MANY: Final = 64
"""Batch size of these margins: in smaller batches they are as many examples."""
CHANCE: Final = 1e-5
"""Share of honest models in which single rows isolate more examples than the limit allows."""
CHANCE_ROUNDS: Final = 1e-3
"""Share of honest models of which two rounds, at their worst distance, give away more than the limit."""
FEWER: Final = 1 / 5
"""The effective share of examples in a tensor's update may be this fraction of the least in honest models."""
COVERED: Final = 0.99
"""Share of the trainable numbers that must be looked at; below it a model is not judged."""
OWN_COLUMNS: Final = (8, 32, 128)
"""Numbers of columns of one tensor that an example may fill alone: each has a limit of its own. Of single
rows the smallest says nothing: a trained VGG fills 8 of some row for 0.8 of a batch."""
SUPPORTS: Final = (1, 4, 9)
"""Numbers of rows of most alike support that are subtracted from a row."""
CROWD: Final = 32
"""The same where more rows than ``SUPPORTS`` tries fire for nearly the same examples."""
CROWDED: Final = 0.8
"""How alike the examples are for which two rows fire, from which on they are in one crowd."""
ALWAYS: Final = 0.95
"""Share of the examples from which on a row counts as one that always fires."""
SHARED: Final = 64
"""Rows that always fire and that read-outs share, at most."""
LIKELY: Final = 2
"""Number of most correlated rows that are subtracted, at most."""
ROUNDS: Final = 10
"""Rounds of reweighting of the robust fit."""
GIVEN_UP: Final = 2
"""Round of the fit after which it is given up where what is left is no spike."""
LITTLE: Final = 0.01
"""Energy, of a row's own, that may be left for any number of examples."""
SPIKES: Final = 8
"""Effective number of examples above which what is left is no spike."""
AT_A_TIME: Final = 1024
"""Rows that are searched together; wider groups are cut into blocks of rows that fire equally often."""
DRAWS: Final = 8
"""Random divisions of the judged examples into batches."""
REMEMBERED: Final = 3
"""Rounds before this one that are judged together with it: each costs a pass and a search of two rounds'
rows, and a client keeps as many models (and updates, before sending). A server may wait longer."""
AHEAD: Final = (2, 8)
"""Fewest and most steps of training after which a received model is judged again."""
LONGEST: Final = 0.1
"""Share of the weights' length by which one such step may move them, at most."""
OTHERS: Final = 1000
"""Further examples that are tried where few make up a tensor's update."""
