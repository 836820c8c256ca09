"""SEER on CIFAR-10, for docs/results/active.md: ``python -m reproduce.seer WHAT --source npz:FILE``.

``rounds``: how often the brightest example of a sum is recovered. 8,000 train images are the server's own,
evaluation is on test images; recipes were tuned on the other train images (``--split train``). ``guard``:
whether a client that inspects the model before training refuses it, and D-SNR, compared with untrained and
trained models.
"""
