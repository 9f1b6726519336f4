"""The engine of every study: cells of work, done once and kept; tables with a schema; one result
folder."""
