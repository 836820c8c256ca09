"""One file per kind of source. Each is called ``factory(where, resize=...)`` and returns a ``DataSource``."""
