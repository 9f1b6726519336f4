"""The reference, made from what it describes: JSON Schemas of the files that people write, and the
pages of keys, tables and verbs."""
