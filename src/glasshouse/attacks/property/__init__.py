"""Who is behind the sum: PROLIN and its baselines over many rounds of secure aggregation.

The expensive part is common to all five attacks and computed once per run (``evidence``): per round shadow
updates (``shadow``) of clients with and without a property (``properties``), a detector on them
(``detector``), and its linear feature of the sum. The estimators differ in what they make of the features:
``disaggregation``, ``ols``, ``reg``, ``prolin`` (with ``mtadam``), ``prolin_posterior``.

Source: Kerkouche, Ács, Fritz 2023, "Client-specific Property Inference against Secure Aggregation in
Federated Learning", WPES 2023, arXiv:2303.03908.
"""
