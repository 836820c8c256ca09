"""The site's gate: judges what may leave a site by the site's own policy, and logs it.

Nothing here knows a federated-learning framework. Adapters in ``glasshouse.integrations`` turn a
framework's messages into :class:`~glasshouse.gate.message.Outgoing`, and send what
:func:`~glasshouse.gate.judge.judge` returns. See docs/gate.md.
"""
