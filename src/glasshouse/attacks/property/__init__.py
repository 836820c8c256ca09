"""Client-level property inference from sums: PROLIN and its baselines over rounds of secure aggregation.

The expensive part is common to all five attacks and computed once per run (``evidence``): per round shadow
updates (``shadow``) of clients with and without a property (``properties``), a detector fitted to them
(``detector``), and its linear feature of the sum. The estimators differ in how they use the features:
``disaggregation``, ``ols``, ``reg``, ``prolin`` (with ``mtadam``), ``prolin_posterior``.

Source: Kerkouche, Ács, Fritz 2023, "Client-specific Property Inference against Secure Aggregation in
Federated Learning", WPES 2023, arXiv:2303.03908.
"""
