"""The numbers that decide, in one place.

==============  =========================================================  ==============================  ===================
number          trades                                                     set by                          repeated in
==============  =========================================================  ==============================  ===================
SEARCHED        cost against read-outs missed                              32 to 532 examples give within  benchmarks guard
                                                                           .05 of each other               pursuit
JUDGED          cost against noise of the shares (one batch is 64)         4 splits move .02               benchmarks guard
                                                                                                           pursuit
CLEAR, VISIBLE  none: 30 and 18 dB of an image of variance 1/16,           arithmetic                      ``d`` of judge.py
                ``d = 1 / (1 + error)``
ROUNDING        read-outs that float32 sums destroy against real ones      float32's epsilon, N = 64       tests
MARGIN          false alarms against read-outs of few examples             210 honest models: 99 % under   benchmarks guard zoo
                                                                           .044 over 35 architectures
MARGIN_VISIBLE  the same at 18 dB                                          two honest rounds: .09          benchmarks guard zoo
CHANCE          false alarms against crafted single rows                   5,760 honest broadcasts         benchmarks guard zoo
FEWER           the same for updates of few examples                       the same                        benchmarks guard zoo
COVERED         "not judged" against models that hide in what is unseen    a tensor below 1 % holds no     tests
                                                                           picture of a small network
SUPPORTS        cost, and chance cancellations in layers behind (10 rows   honest layers behind: .07 with  benchmarks guard
                always cancel 9 dimensions) against wide windows           9 rows, so ranges use the same  pursuit
==============  =========================================================  ==============================  ===================
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
FEWER: Final = 1 / 5
"""The effective share of examples in a tensor's update may be this fraction of the least in honest models."""
COVERED: Final = 0.99
"""Share of the trainable numbers that must be looked at; below it a model is not judged."""
SUPPORTS: Final = (1, 4, 9)
"""Numbers of rows of most alike support that are subtracted from a row."""
LIKELY: Final = 2
"""Number of most correlated rows that are subtracted, at most."""
ROUNDS: Final = 10
"""Rounds of reweighting of the robust fit."""
AT_A_TIME: Final = 1024
"""Rows that are searched together; wider groups are cut into blocks of rows that fire equally often."""
DRAWS: Final = 8
"""Random divisions of the judged examples into batches."""
OTHERS: Final = 1000
"""Further examples that are tried where few make up a tensor's update."""
