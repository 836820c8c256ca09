"""Tables: the schema that an owner writes, and the reader of CSV and Parquet files."""
