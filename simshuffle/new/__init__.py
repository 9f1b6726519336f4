"""New scenarios and machines as commented files, from questions, from DLIO or from a fabric; and
what a sample costs this host."""
