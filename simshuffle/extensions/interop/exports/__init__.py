"""A run or its machine in the formats of other tools: one file a format."""
