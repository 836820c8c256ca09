"""What an audit will cost: counts of its work, and how long short pieces of it take."""
