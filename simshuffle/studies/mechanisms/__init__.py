"""Which mechanism costs what: an exchange taken apart switch by switch."""
