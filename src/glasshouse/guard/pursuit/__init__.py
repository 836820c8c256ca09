"""The pursuit: which fixed read-outs of an update isolate an example, and do honest models have them too?

A malicious server fixes its read-out before it sees the batch: some combination of the rows of an update.
Such a read-out isolates an example if the examples' contributions to it ("pulls") are sparse, and it
generalises: what is found on one half of a client's examples isolates those of the other half.
"""
